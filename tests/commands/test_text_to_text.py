"""Text to text through the commands: learn to copy names, be measured, and say what is wrong."""

import json
from pathlib import Path

import pytest

from tests.commands.conftest import NAMES, PLACES, Cli, run_main, write
from tests.commands.test_t5 import CONFIG, tokenizer

__all__ = ["tokenizer"]  # a fixture


@pytest.fixture(scope="module")
def rows(world: Path) -> Path:
    """Who is at which place: 80 questions about 80 pairs."""
    lines = [
        {"question": f"{name} at the {place} .", "answer": [name, name.lower()], "label": n % 2}
        for n, (name, place) in enumerate((n, p) for n in NAMES for p in PLACES)
    ]
    path = world / "asked.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def finetuning(world: Path, tokenizer: Path, rows: Path) -> dict:  # noqa: F811
    write("t2t-pre.yaml", {**CONFIG, "run": "t2t-pre", "objective": {"name": "span_corruption"}})
    assert run_main("pretrain", "t2t-pre.yaml") == 0
    return {
        "run": "t2t",
        "model": "t2t-pre/model",
        "task": {
            "name": "text_to_text",
            "source": "{question}",
            "target": "answer",
            "max_target_length": 4,
            "metrics": ["squad", "sequence_accuracy", "rouge"],
        },
        "data": {"train": ["asked.jsonl"], "valid": 0.2},
        "train": {"epochs": 30, "batch_size": 16, "max_length": 16, "dropout": 0.0},
        "optim": {"lr": 0.01},
        "compute": {"device": "cpu", "precision": "fp32"},
        "log": {"every": 20},
    }


def test_it_learns_and_is_measured(cli: Cli, world: Path, finetuning: dict) -> None:
    write("t2t.yaml", finetuning)
    code, out, err = cli("finetune", "t2t.yaml", "--json")
    assert code == 0, err
    results = json.loads(out)
    assert results["sequence_accuracy"] == pytest.approx(results["exact_match"] / 100)
    assert results["sequence_accuracy"] > 0.5  # of ten names, on pairs that were not learnt
    assert results["rouge1"] > 50
    task = json.loads((world / "t2t" / "model" / "task.json").read_text())
    assert task["task"]["source"] == "{question}"
    measures = [{"name": "task", "data": ["asked.jsonl"]}]
    write("t2t-eval.yaml", {"run": "t2t-eval", "model": "t2t/model", "measures": measures})
    code, out, err = cli("eval", "t2t-eval.yaml", "--json")
    assert code == 0, err
    (result,) = (
        json.loads(path.read_text())["results"] for path in (world / "t2t-eval").rglob("*.json")
        if "measure" in json.loads(path.read_text())
    )  # fmt: skip
    assert result["rows"] == 80
    assert result["exact_match"] > 50


def test_a_cast_with_adafactor(cli: Cli, finetuning: dict) -> None:
    task = {
        "name": "text_to_text", "cast": "sst2", "source": "sst2 sentence: {question}",
        "decoding": "rank", "max_target_length": 4,
    }  # fmt: skip
    optim = {"name": "adafactor", "lr": 0.001}
    config = {**finetuning, "run": "t2t-cast", "task": task, "optim": optim}
    write("t2t-cast.yaml", {**config, "schedule": {"name": "constant", "warmup": 0}})
    code, out, err = cli("finetune", "t2t-cast.yaml", "train.epochs=1", "--json")
    assert code == 0, err
    results = json.loads(out)
    assert {"accuracy", "majority", "no_label"} <= results.keys()
    assert results["no_label"] == 0  # ranking says nothing else


@pytest.mark.parametrize(
    ("overrides", "code", "message"),
    [
        (["task.source='{nothing}'"], 3, "no column 'nothing'"),
        (["task.source='{question'"], 2, "task.source"),
        (["task.cast=mnly"], 2, "mnli"),
        (["task.cast=rte"], 3, "no column 'sentence1'"),
        (["task.metrics=[blue]"], 2, "bleu"),
        (["model=done-bert/model"], 2, "text_to_text needs a network that writes"),
    ],
)
def test_what_is_wrong_is_said(
    cli: Cli, finetuning: dict, pretrained: dict, overrides: list[str], code: int, message: str
) -> None:
    task = {"name": "text_to_text", "target": "answer"}
    if not any("source" in override for override in overrides) and "rte" not in overrides[0]:
        task["source"] = "question"
    write("t2t-wrong.yaml", {**finetuning, "run": "t2t-wrong", "task": task})
    got, _, err = cli("finetune", "t2t-wrong.yaml", *overrides)
    assert got == code, err
    assert message in " ".join(err.split())
    assert not Path("t2t-wrong/model").exists()
