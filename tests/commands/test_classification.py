"""Each kind of classification through the commands, on a small corpus."""

import json
from pathlib import Path

import pytest

from tests.commands.conftest import NAMES, PLACES, VERBS, Cli, write
from tests.commands.test_bad_input import finetune_config, refused

KIND = {"sees": 0, "likes": 1, "follows": 2, "greets": 3}


@pytest.fixture(scope="module")
def rows(world: Path) -> Path:
    """Rows whose labels follow from their first words."""
    lines = []
    for n in range(120):
        verb = VERBS[n % 4]
        lines.append(
            {
                "text": f"{NAMES[n % 10]} {verb} {NAMES[(n * 3) % 10]}.",
                "other": f"At the {PLACES[n % 8]}.",
                "verbs": [verb, "even"] if n % 2 == 0 else [verb],
                "score": float(KIND[verb]),
                "label": verb,
                "options": [PLACES[n % 8], verb] if n % 3 else [verb, PLACES[n % 7]],
                "right": "B" if n % 3 else "A",
            }
        )
    path = world / "kinds.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    return path


def finetune(cli: Cli, pretrained: Path, run: str, task: dict, epochs: int = 16) -> dict:
    config = finetune_config(pretrained) | {"run": run, "task": task, "optim": {"lr": 0.004}}
    config["data"] = {"train": ["kinds.jsonl"], "valid": ["kinds.jsonl"]}
    config["train"] |= {"epochs": epochs}
    write("kinds.yaml", config)
    code, out, err = cli("finetune", "kinds.yaml", "--json")
    assert code == 0, err
    results: dict = json.loads(out)
    return results


def test_several_labels(cli: Cli, rows: Path, pretrained: dict[str, Path]) -> None:
    task = {"name": "classification", "label": "verbs", "problem": "multi_label"}
    results = finetune(cli, pretrained["gpt2"], "several", task)
    assert results["f1_micro"] > 0.6  # naming the most frequent label everywhere gives 0.4
    assert [row["label"] for row in results["per_class"]] == sorted([*KIND, "even"])


@pytest.mark.slow
def test_regression_of_pairs(cli: Cli, rows: Path, pretrained: dict[str, Path]) -> None:
    task = {
        "name": "classification", "text": ["text", "other"], "label": "score",
        "problem": "regression",
    }  # fmt: skip
    results = finetune(cli, pretrained["bert"], "number", task)
    assert results["pearson"] > 0.8
    write(
        "ev.yaml",
        {
            "run": "ev-number",
            "model": "number/model",
            "measures": [{"name": "task", "data": ["kinds.jsonl"]}],
            "compute": {"device": "cpu"},
        },
    )
    code, out, err = cli("eval", "ev.yaml", "--json")
    assert code == 0, err
    measured = json.loads(out)["results"]["task"]
    assert measured["pearson"] == pytest.approx(results["pearson"], rel=1e-5)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_multiple_choice(name: str, cli: Cli, rows: Path, pretrained: dict[str, Path]) -> None:
    task = {"name": "multiple_choice", "question": "text", "label": "right"}
    results = finetune(cli, pretrained[name], f"choice-{name}", task, epochs=6)
    assert results["accuracy"] > results["majority"] + 0.1


def test_weights_and_smoothing_go_through(
    cli: Cli, rows: Path, pretrained: dict[str, Path]
) -> None:
    task = {
        "name": "classification", "class_weights": {"sees": 2}, "label_smoothing": 0.1,
    }  # fmt: skip
    results = finetune(cli, pretrained["bert"], "smooth", task, epochs=1)
    assert len(results["per_class"]) == 4


def test_a_label_that_training_did_not_have(
    cli: Cli, rows: Path, pretrained: dict[str, Path]
) -> None:
    Path("other.jsonl").write_text('{"text": "Anna.", "label": "sees"}\n{"text": "x", "label": 7}')
    config = finetune_config(pretrained["bert"]) | {"run": "bad-label"}
    config["data"] = {"train": ["kinds.jsonl"], "valid": ["other.jsonl"]}
    config["task"] = {"name": "classification"}
    write("kinds.yaml", config)
    refused(cli("finetune", "kinds.yaml"), 3, "other.jsonl:2", "'label'", "'7'", "follows, greets")
    assert not Path("bad-label").exists()
    task = "task={name: classification, problem: regression}"
    refused(cli("finetune", "kinds.yaml", task), 3, "kinds.jsonl:1", "'sees'", "number")
    task = "task={name: classification, problem: regresion}"
    refused(cli("finetune", "kinds.yaml", task), 2, "task.problem", "regression")
