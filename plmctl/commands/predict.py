"""``plmctl predict``: a model's answers to texts, or to the rows of a file.

What the model is made for decides the question: a masked model fills its mask, a T5 its sentinels,
a causal model continues the text, a finetuned model does its task. With ``--input`` a finetuned
model answers the rows of a file, however large, as a stream (``run_rows``).
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from plmctl.config.sections import ComputeConfig
from plmctl.corpus.labelled import Row
from plmctl.corpus.source import Source, resolve
from plmctl.corpus.tabular import rows as rows_of
from plmctl.errors import ConfigError, DataError
from plmctl.files import new_file, writing
from plmctl.formatting import printable_json
from plmctl.reporting.tables import rows_table
from plmctl.run.display import say, show_result
from plmctl.run.named_model import named_model
from plmctl.tasks.base import Answer, Finetuned, ReadableAnswer, read_finetuned

if TYPE_CHECKING:
    from plmctl.evaluation.model import LoadedModel
    from plmctl.evaluation.scoring import FinetunedModel


def run(name: str, texts: list[str], *, top: int, as_json: bool) -> None:
    """Fill the mask or T5's sentinels, name the class, or continue the text.

    Args:
        name: A model folder or Hub id.
        texts: For a task with several columns, one after the other.

    Raises:
        ConfigError: The model cannot answer these texts.
    """
    from plmctl.evaluation.samples import opened_for_samples

    name = named_model(name)
    model = opened_for_samples(name)
    question = question_of(model)
    head = "label" if _is_classifier(model) else "answer"
    if question == "task":
        answering = opened_for_task(model)
        answers = [answer for answer, _ in task_answers(answering, texts, top)]
    elif question == "spans":
        answers = spans(model, texts)
    elif question == "continue":
        answers = _continuations(model, texts)
    elif question == "masks":
        answers = masks(model, texts, top)
    else:
        raise ConfigError(
            f"{name}: {model.family.TITLE} gives vectors of words, and says nothing to a text",
            f"measure it with `plmctl eval` and the measure {model.family.OBJECTIVE}",
        )
    tables = [
        rows_table(item["text"], [head, ""], [_table_row(one) for one in item["answers"]])
        for item in answers
    ]
    show_result({"model": name, "answers": answers}, tables, as_json=as_json)


def question_of(model: LoadedModel) -> Literal["task", "spans", "continue", "masks"] | None:
    """What a model is made for; None: it gives vectors, and no answers (ELMo)."""
    if (Path(model.name) / "task.json").is_file() or _is_classifier(model):
        return "task"
    if model.text_to_text:
        return "spans"
    heads = model.family.HEADS
    if "lm" in heads:
        return "continue"
    return "masks" if model.is_masked or not heads else None


def _is_classifier(model: LoadedModel) -> bool:
    return (model.config.architectures or [""])[0].endswith("ForSequenceClassification")


def _table_row(answer: dict[str, Any]) -> tuple[Any, Any]:
    """What the table shows: an answer and its score, or a sentinel and what stands for it.

    Of several masks it has the number, too.
    """
    if "sentinel" in answer:
        return answer["sentinel"], answer["token"] or ""
    if "mask" in answer:  # of a text with several
        return f"{answer['mask']}: {answer['token']}", answer["score"]
    return answer["token"], answer["score"]


# --- Texts of the command line ---


def masks(model: LoadedModel, texts: list[str], top: int) -> list[dict[str, Any]]:
    """The words that a masked model puts in the place of each mask."""
    from plmctl.evaluation.samples import fill_mask
    from plmctl.families.base import longest_input

    mask: Any = model.tokenizer.mask_token
    for text in texts:
        if mask is None or mask not in text:
            raise ConfigError(
                f"no {mask} in {text!r}", f"put {mask} where a word is to be filled in"
            )
    _say_unknown(model, texts)
    filled = fill_mask(model, texts, top)
    if cut := sum("cut" in item for item in filled):
        say(
            f"{cut:,} of {len(texts):,} texts were cut around their {mask}: they are longer than "
            f"{model.name} reads, {longest_input(model.config):,} tokens"
        )
    return [{"text": item["text"], "answers": item["predictions"]} for item in filled]


def spans(model: LoadedModel, texts: list[str]) -> list[dict[str, Any]]:
    """What T5 writes for the sentinels of each text."""
    from plmctl.evaluation.samples import fill_sentinels

    generate = f"plmctl generate {shlex.quote(model.name)} --prompt TEXT"
    write = f"let the model write an answer: {generate}"
    if not model.vocab.sentinels:
        raise ConfigError(
            f"{model.name}: its tokenizer has no sentinel (<extra_id_0>) to fill", write
        )
    for text in texts:
        if "<extra_id_0>" not in text:
            raise ConfigError(
                f"no <extra_id_0> in {text!r}",
                "put <extra_id_0> where words are to be filled in, then <extra_id_1> and so on; "
                f"or {write}",
            )
    _say_unknown(model, texts)
    answers = []
    for item in fill_sentinels(model, texts):
        fills = [
            {"sentinel": name, "token": fill, "score": ""} for name, fill in item["fills"].items()
        ]
        if not any(fill["token"] for fill in fills):
            say(f"nothing was written for the sentinels of {item['text']!r}; or {write}")
        answers.append({"text": item["text"], "answers": fills})
    return answers


def _continuations(model: LoadedModel, texts: list[str]) -> list[dict[str, Any]]:
    from plmctl.evaluation.samples import continue_texts

    _say_unknown(model, texts)
    continued = continue_texts(model, texts)
    if cut := sum("cut" in item for item in continued):
        say(
            f"{cut:,} of {len(texts):,} texts were cut from the left: {model.name} reads "
            f"{model.window:,} tokens at most"
        )
    return [
        {"text": item["prompt"], "answers": [{"token": item["text"], "score": ""}]}
        for item in continued
    ]


def _say_unknown(model: LoadedModel, prompts: list[str]) -> None:
    """Say how much of prompts the tokenizer does not know."""
    model.note_unknown(model.without_special(prompts))
    model.say_unknown("the texts" if len(prompts) > 1 else "the text")


def _say_cut(count: int, rows: int, finetuned: Finetuned) -> None:
    """Say how many texts lost their ends."""
    if count:
        say(
            f"{count:,} of {rows:,} texts were cut: the model was finetuned on "
            f"{finetuned.max_length:,} tokens at most (train.max_length)"
        )


def opened_for_task(model: LoadedModel) -> FinetunedModel:
    """A finetuned model with its task."""
    from plmctl.evaluation.scoring import FinetunedModel

    return FinetunedModel(model, read_finetuned(model.name))


def task_answers(
    answering: FinetunedModel, texts: list[str], top: int
) -> list[tuple[dict[str, Any], Answer]]:
    """For each row that the texts give: the answer as a user reads it, and as the task has it."""
    model, finetuned = answering.model, answering.finetuned
    try:
        all_values = finetuned.task.values_of(texts)
    except ConfigError as error:
        raise ConfigError(f"{model.name}: {error.message}", error.hint) from None
    rows = [Row(values, f"text {n}") for n, values in enumerate(all_values, 1)]
    examples = answering.examples(rows, "predict")
    model.say_unknown("the texts")
    _say_cut(examples.cut, len(rows), finetuned)
    answers = answering.answers(examples)
    size = len(texts) // len(rows)
    return [
        (
            {
                "text": " / ".join(texts[number * size : (number + 1) * size]),
                "answers": [_with_score(a) for a in finetuned.task.readable(answer, values, top)],
            },
            answer,
        )
        for number, (values, answer) in enumerate(zip(all_values, answers, strict=True))
    ]


def _with_score(answer: ReadableAnswer) -> dict[str, Any]:
    probability = answer.probability
    return {"token": answer.text, "score": "" if probability is None else round(probability, 4)}


# --- ``--input``: a finetuned model's answers to rows, streaming ---


_CHUNK = 1024
"""Rows in memory at once: enough to batch them by length."""


def run_rows(
    model: str, source: str, output: str | None, columns: Sequence[str], *, fresh: bool
) -> None:
    """Answer every row of ``source`` in a line of ``output``: its columns, and the answer's.

    Args:
        model: A finetuned folder.
        source: As ``data.train`` of finetuning, or ``-`` for JSON lines from stdin.
        output: A file, or ``-`` (and None) for stdout; written beside and renamed at the end.
        columns: ``FIELD=COLUMN`` where a field of the task has another column here.
        fresh: Move an output that is there aside.

    Raises:
        ConfigError: The output is there already, or the model is not finetuned.
        DataError: Nothing to read, a missing column, or a row without text.
    """
    from plmctl.corpus.labelled import refuse_empty
    from plmctl.evaluation.model import LoadedModel
    from plmctl.evaluation.scoring import FinetunedModel
    from plmctl.training.engine import make_accelerator

    model = named_model(model)
    finetuned = read_finetuned(model, _fields(columns))
    path = None if output in (None, "-") else Path(str(output))
    if path is not None and path.exists() and not fresh:
        raise ConfigError(
            f"{path}: this is there already", "name another file, or add --fresh to move it aside"
        )
    sources = [Source("/dev/stdin", "jsonl")] if source == "-" else resolve((source,))
    rows = (Row(values, origin) for one in sources for values, origin in rows_of(one))
    loaded = LoadedModel(model, make_accelerator(ComputeConfig()))
    answering, count, cut = FinetunedModel(loaded, finetuned), 0, 0
    renamed: set[str] = set()
    with _writing(path) as file:
        while chunk := list(islice(rows, _CHUNK)):
            refuse_empty(chunk, finetuned.task.text_columns())
            examples = answering.examples(chunk, "predict")
            cut += examples.cut
            if not count:
                loaded.say_unknown(f"the first {len(chunk):,} rows")
            answers = answering.answers(examples)
            for row, answer in zip(chunk, answers, strict=True):
                # Parquet has values that JSON does not have, such as dates.
                values = _beside(row.values, answer)
                renamed |= values.keys() - row.values.keys()
                file.write(printable_json({**values, **answer}) + "\n")
            count += len(chunk)
            file.flush()
        if not count:
            raise DataError(f"no rows in {source}", "is the path right?")
    if renamed:
        say(
            "columns of the rows that have the name of an answer's are there as "
            f"{', '.join(sorted(renamed))}"
        )
    loaded.say_unknown("the other rows")
    _say_cut(cut, count, finetuned)
    say(f"{count:,} rows answered{'' if path is None else f': {path}'}")


def _beside(values: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    """The values of a row; ``input_NAME`` where an answer has another value of the same name."""
    kept = {}
    for name, value in values.items():
        clashes = name in answer and answer[name] != value
        while clashes and (name in answer or name in values):
            name = f"input_{name}"
        kept[name] = value
    return kept


def _fields(columns: Sequence[str]) -> Mapping[str, Any]:
    """``text=a,b`` as columns of a field of the task."""
    fields: dict[str, Any] = {}
    for option in columns:
        field, equals, column = option.partition("=")
        if not (field and equals and column):
            raise ConfigError(f"--column {option}: expected FIELD=COLUMN, as in text=review")
        several = column.split(",")
        fields[field] = tuple(several) if len(several) > 1 else column
    return fields


@contextmanager
def _writing(path: Path | None) -> Iterator[TextIO]:
    """A file that is whole or not there; stdout where there is no path."""
    if path is None:
        yield sys.stdout
        return
    with writing(path), new_file(path, several_writers=True, replaces=False) as file:
        yield TextIOWrapper(file, encoding="utf-8", write_through=True)
        if path.exists():
            say(f"{path}: what was there is kept, as {path.name}.old-TIME")
