"""The measures by prompting, against what is counted by hand from single scores."""

import json
import math
from pathlib import Path

import pytest
from accelerate import Accelerator
from pydantic import ValidationError

from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.completions import score_completions
from plmctl.evaluation.generation import Decoding, encode_prompt, generate_texts
from plmctl.evaluation.model import LoadedModel
from plmctl.measures.base import get_measure

QUESTIONS = [
    {"question": "who paints?", "options": ["Carl", "the tower"], "answer": 0},
    {
        "question": "who sees the king?",
        "options": ["the people", "the city", "Anna"],
        "answer": "A",
    },
    {"question": "what is old?", "options": ["the river", "Bela"], "answer": "Bela"},
    {"question": "where?", "options": ["the garden", "to the city", "king"], "answer": 2},
]
PASSAGES = ["the king went to the city", "Anna sees the old river", "Carl paints the tower"]


def rows(path: Path, values: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in values), encoding="utf-8")
    return str(path)


def measured(name: str, folder: str, accelerator: Accelerator, size: int = 4, **fields) -> dict:
    member = get_measure(name)
    config = member.Config(name=name, **fields)
    return member(config).measure(LoadedModel(folder, accelerator, size), 42).results


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_multiple_choice(
    kind: str, folders: dict, subjects: dict, accelerator: Accelerator, tmp_path: Path
) -> None:
    data = rows(tmp_path / "items.jsonl", QUESTIONS)
    config = {"data": [data], "template": "Question: {question}\nAnswer: "}
    results = measured("multiple_choice", folders[kind], accelerator, **config)
    hits: dict[str, int] = {"sum": 0, "token": 0, "byte": 0, "unconditional": 0}
    for row, answer in zip(QUESTIONS, (0, 0, 1, 2), strict=True):
        options = [f" {option}" for option in row["options"]]
        prompt = f"Question: {row['question']}\nAnswer:"
        scores = [score_completions(subjects[kind], [(prompt, option)])[0] for option in options]
        alone = [score_completions(subjects[kind], [("Answer:", option)])[0] for option in options]
        sizes = [len(option) - 1 for option in options]
        each = {
            "sum": [g.log_prob for g in scores],
            "token": [g.log_prob / g.tokens for g in scores],
            "byte": [g.log_prob / size for g, size in zip(scores, sizes, strict=True)],
            "unconditional": [g.log_prob - a.log_prob for g, a in zip(scores, alone, strict=True)],
        }
        for name, values in each.items():
            hits[name] += values.index(max(values)) == answer
    for name, count in hits.items():
        rate = count / 4
        assert results[f"accuracy/{name}"] == rate
        assert results[f"stderr/{name}"] == pytest.approx(math.sqrt(rate * (1 - rate) / 3))
    assert results["chance"] == pytest.approx((1 / 2 + 1 / 3 + 1 / 2 + 1 / 3) / 4)
    assert results["majority"] == 0.5
    assert (results["items"], results["shots"], results["cut"]) == (4, 0, 0)
    again = measured("multiple_choice", folders[kind], accelerator, size=1, **config)
    assert again == results


def test_multiple_choice_with_examples(
    folders: dict, accelerator: Accelerator, tmp_path: Path
) -> None:
    data = rows(tmp_path / "items.jsonl", QUESTIONS)
    config = {"data": [data], "template": "{question}", "unconditional": None}
    results = measured(
        "multiple_choice",
        folders["gpt2"],
        accelerator,
        **config,
        shots={"count": 2, "train": [data], "separator": "\n"},
    )
    assert results["shots"] == 2
    assert "accuracy/unconditional" not in results
    with pytest.raises(ConfigError, match="no rows to draw them from"):
        measured("multiple_choice", folders["gpt2"], accelerator, **config, shots={"count": 2})


@pytest.mark.parametrize("form", ["txt", "jsonl", "columns"])
def test_lambada(
    form: str, folders: dict, subjects: dict, accelerator: Accelerator, tmp_path: Path
) -> None:
    halves = [passage.rsplit(" ", 1) for passage in PASSAGES]
    if form == "txt":
        path = tmp_path / "passages.txt"
        path.write_text("\n".join(PASSAGES) + "\n", encoding="utf-8")
        fields: dict = {"data": [str(path)]}
    elif form == "jsonl":
        fields = {"data": [rows(tmp_path / "p.jsonl", [{"text": text} for text in PASSAGES])]}
    else:
        values = [{"text": context, "last": word} for context, word in halves]
        fields = {"data": [rows(tmp_path / "p.jsonl", values)], "word": "last"}
    results = measured("lambada", folders["gpt2"], accelerator, **fields)
    single = [score_completions(subjects["gpt2"], [(a, f" {b}")])[0] for a, b in halves]
    assert results["accuracy"] == sum(one.greedy for one in single) / 3
    mean = -sum(one.log_prob for one in single) / 3
    assert results["perplexity"] == pytest.approx(math.exp(mean), rel=1e-4)
    assert results["tokens_per_word"] == pytest.approx(sum(one.tokens for one in single) / 3)


def test_lambada_names_a_passage_of_one_word(
    folders: dict, accelerator: Accelerator, tmp_path: Path
) -> None:
    path = tmp_path / "p.txt"
    path.write_text("two words\n\none\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"p\.txt:3: the passage has no word after a context"):
        measured("lambada", folders["gpt2"], accelerator, data=[str(path)])


@pytest.mark.parametrize("kind", ["gpt1", "gpt2"])
def test_closed_book_qa(
    kind: str, folders: dict, subjects: dict, accelerator: Accelerator, tmp_path: Path
) -> None:
    """What the model says is the answer to two of three questions, as an alias."""
    model: LoadedModel = subjects[kind]
    texts = ["who paints?", "who sees the king?", "what is old?"]
    ends = model.ids_with("\n")
    answers = []
    for text in texts:
        ids = model.plain.encode(f"Q: {text}\nA:", add_special_tokens=False).ids
        (one,) = generate_texts(model, [encode_prompt(model, ids, 6)], Decoding(6, ends=ends))
        answers.append(one.text.split("\n")[0])
    values = [
        {"question": texts[0], "answers": ["no", answers[0].upper()]},
        {"question": texts[1], "answers": ["no", answers[1]]},
        {"question": texts[2], "answers": "no"},
    ]
    data = rows(tmp_path / "qa.jsonl", values)
    config = {"data": [data], "max_new_tokens": 6}
    results = measured("closed_book_qa", folders[kind], accelerator, **config)
    assert results["exact_match"] == pytest.approx(2 / 3)
    assert results["stderr/exact_match"] == pytest.approx(math.sqrt(2 / 9 / 2))
    assert measured("closed_book_qa", folders[kind], accelerator, **config, size=1) == results
    few = {**config, "shots": {"count": 1, "train": [data]}, "beams": 2}
    assert measured("closed_book_qa", folders[kind], accelerator, **few)["shots"] == 1


def test_closed_book_qa_accepts_the_earlier_name_of_trivia_qa() -> None:
    configs = get_measure("closed_book_qa").Config
    config = configs.model_validate({"data": ["a"], "normalisation": "triviaqa"})
    assert config.normalisation == "trivia_qa"
    with pytest.raises(ValidationError):
        configs.model_validate({"data": ["a"], "normalisation": "trivia"})


def test_t5_answers_in_place_of_a_sentinel(
    folders: dict, accelerator: Accelerator, tmp_path: Path
) -> None:
    data = rows(tmp_path / "qa.jsonl", [{"question": "who?", "answers": ["no"]}])
    fields = {"data": [data], "sentinel": True, "max_new_tokens": 5}
    assert measured("closed_book_qa", folders["t5"], accelerator, **fields)["items"] == 1
    with pytest.raises(ConfigError, match="no sentinel"):
        measured("closed_book_qa", folders["gpt2"], accelerator, **fields)


def test_an_answer_that_is_not_there_is_reported(
    folders: dict, accelerator: Accelerator, tmp_path: Path
) -> None:
    data = rows(tmp_path / "qa.jsonl", [{"question": "who?", "answers": []}])
    with pytest.raises(DataError, match=r"qa\.jsonl:1: no answer in column 'answers'"):
        measured("closed_book_qa", folders["gpt2"], accelerator, data=[data])
