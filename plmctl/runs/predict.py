"""``plmctl predict``: what a model says to a text, by what the model is for."""

import shlex
from pathlib import Path
from typing import Any

from plmctl import tasks
from plmctl.corpus.tables import Row
from plmctl.errors import ConfigError
from plmctl.reporting.tables import rows_table
from plmctl.runs.finetune import check_model
from plmctl.runs.say import say, show


def run(model: str, texts: list[str], *, top: int, as_json: bool) -> None:
    """Fill the mask or T5's sentinels, name the class, or continue the text."""
    from plmctl.modeling.auto import config_of

    check_model(model)
    made_for = (config_of(model).architectures or [""])[0]
    if (Path(model) / "task.json").is_file() or made_for.endswith("ForSequenceClassification"):
        answers = _answers(model, texts, top)
    elif made_for.startswith("Elmo"):
        raise ConfigError(
            f"{model}: ELMo gives vectors of words, and says nothing to a text",
            "measure it with `plmctl eval` and the measure bilm",
        )
    elif made_for.endswith("LMHeadModel"):
        answers = _continuations(model, texts)
    elif config_of(model).is_encoder_decoder:
        answers = _spans(model, texts)
    else:
        answers = _masks(model, texts, top)
    tables = [
        rows_table(item["text"], [made_for, ""], [_row(one) for one in item["answers"]])
        for item in answers
    ]
    show({"model": model, "answers": answers}, tables, as_json=as_json)


def _row(answer: dict[str, Any]) -> tuple[Any, Any]:
    """What the table shows: an answer and its score, or a sentinel and what stands for it."""
    if "sentinel" in answer:
        return answer["sentinel"], answer["token"] or ""
    return answer["token"], answer["score"]


def _masks(model: str, texts: list[str], top: int) -> list[dict[str, Any]]:
    from plmctl.evaluation.samples import fill_mask
    from plmctl.tokenization.load import load_tokenizer

    mask = load_tokenizer(model).mask_token
    for text in texts:
        if mask is None or mask not in text:
            raise ConfigError(
                f"no {mask} in {text!r}", f"put {mask} where a word is to be filled in"
            )
    filled = fill_mask(model, texts, top)
    return [{"text": item["text"], "answers": item["predictions"]} for item in filled]


def _spans(model: str, texts: list[str]) -> list[dict[str, Any]]:
    """What T5 writes for the sentinels of each text."""
    from plmctl.evaluation.samples import fill_sentinels
    from plmctl.tokenization.vocab import Vocab

    write = f"let the model write an answer: plmctl generate {shlex.quote(model)} --prompt TEXT"
    if not Vocab.from_folder(model).sentinels:
        raise ConfigError(f"{model}: its tokenizer has no sentinel (<extra_id_0>) to fill", write)
    for text in texts:
        if "<extra_id_0>" not in text:
            raise ConfigError(
                f"no <extra_id_0> in {text!r}",
                "put <extra_id_0> where words are to be filled in, then <extra_id_1> and so on; "
                f"or {write}",
            )
    answers = []
    for item in fill_sentinels(model, texts):
        fills = [
            {"sentinel": name, "token": fill, "score": ""} for name, fill in item["fills"].items()
        ]
        if not any(fill["token"] for fill in fills):
            say(f"nothing was written for the sentinels of {item['text']!r}; or {write}")
        answers.append({"text": item["text"], "answers": fills})
    return answers


def _continuations(model: str, texts: list[str]) -> list[dict[str, Any]]:
    from plmctl.evaluation.samples import go_on

    return [
        {"text": item["prompt"], "answers": [{"token": item["text"], "score": ""}]}
        for item in go_on(model, texts)
    ]


def _answers(model: str, texts: list[str], top: int) -> list[dict[str, Any]]:
    import torch

    from plmctl.evaluation.predict import answers
    from plmctl.modeling.network import Network

    made = tasks.finetuned(model)
    task = tasks.get(made.config.name)
    columns = task.text_columns(made.config)
    if len(texts) % len(columns):
        raise ConfigError(
            f"{model}: asks for {' and '.join(columns)}: {len(columns)} texts, not {len(texts)}",
            "give them in this order, or rows of a file: --input",
        )
    several = [texts[at : at + len(columns)] for at in range(0, len(texts), len(columns))]
    rows = [
        Row(dict(zip(columns, row, strict=True)), f"text {n}") for n, row in enumerate(several, 1)
    ]
    tokenizer = task.tokenizer(made.config, model)
    examples = task.make(made.config, rows, tokenizer, made.labels, made.max_length, "predict")
    loaded = task.load(made.config, model, made.labels, pretrained=True, changes={})
    network = Network(loaded, task.forward)
    found = []
    for row, said in zip(several, answers(network, examples, torch.device("cpu")), strict=True):
        found.append({"text": " / ".join(row), "answers": _best(said, top)})
    return found


def _best(said: tasks.Answer, top: int) -> list[dict[str, Any]]:
    """The most probable answers; what a task answers in another form, as it is."""
    probabilities = said.get("probabilities")
    if isinstance(probabilities, dict):
        ranked = sorted(probabilities.items(), key=lambda pair: -pair[1])[:top]
        return [{"token": name, "score": round(p, 4)} for name, p in ranked]
    return [{"token": str(said.get("prediction")), "score": ""}]
