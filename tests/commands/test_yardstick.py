"""What counting gives beside a finetuned network: made once, kept, shown, and never a stop."""

import json
from pathlib import Path

import pytest

from plmctl.counting import texts
from plmctl.reporting.run_files import yardstick_list, yardstick_sentence
from plmctl.run.folder import read_results
from plmctl.run.yardstick import yardsticks
from tests.commands.conftest import NAMES, PLACES, VERBS, Cli, write
from tests.commands.test_bad_input import finetune_config


@pytest.fixture(scope="module")
def rows(world: Path) -> Path:
    """Rows whose labels follow from their first words."""
    lines = [
        {
            "text": f"{NAMES[n % 10]} {VERBS[n % 4]} {NAMES[(n * 3) % 10]}.",
            "other": f"At the {PLACES[n % 8]}.",
            "label": VERBS[n % 4],
            "verbs": [VERBS[n % 4], "even"] if n % 2 == 0 else [VERBS[n % 4]],
            "score": float(n % 4),
            "options": [PLACES[n % 8], VERBS[n % 4]],
            "right": "B",
            "tokens": [NAMES[n % 10], VERBS[n % 4]],
            "tags": ["NOUN", "VERB"],
        }
        for n in range(60)
    ]
    path = world / "counted.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    return path


def config_of(model: Path, run: str, **task: object) -> dict:
    config = finetune_config(model) | {"run": run, "task": task}
    config["data"] = {"train": ["counted.jsonl"], "valid": ["counted.jsonl"]}
    config["train"] |= {"epochs": 1}
    return config


TASKS = [
    ({"name": "classification"}, "TF-IDF with logistic regression", "accuracy"),
    ({"name": "classification", "text": ["text", "other"]}, "TF-IDF with logistic", "accuracy"),
    (
        {"name": "classification", "label": "verbs", "problem": "multi_label"},
        "TF-IDF with logistic regression",
        "f1_micro",
    ),
    (
        {"name": "classification", "label": "score", "problem": "regression"},
        "TF-IDF with ridge regression",
        "pearson",
    ),
    (
        {"name": "multiple_choice", "question": "text", "label": "right"},
        "TF-IDF with logistic regression",
        "accuracy",
    ),
    ({"name": "tagging", "scheme": "pos"}, "CRF", "accuracy"),
]


@pytest.mark.parametrize(("task", "name", "metric"), TASKS)
def test_every_task_has_a_yardstick(
    task: dict, name: str, metric: str, cli: Cli, rows: Path, pretrained: dict[str, Path]
) -> None:
    if name == "CRF":
        pytest.importorskip("pycrfsuite")
    run = "counted-" + "-".join(str(value)[:9] for value in task.values())
    write("counted.yaml", config_of(pretrained["bert"], run, **task))
    code, out, err = cli("finetune", "counted.yaml", "--json")
    assert code == 0, err
    (best,) = json.loads(out)["yardsticks"]
    assert best["name"].startswith(name)
    kept = read_results(Path(run) / "eval" / "yardstick.json", "methods")["methods"][0]
    assert kept["metrics"][metric] > 0.9
    assert f"{best['name']}: " in err


def test_it_is_made_once_and_shown(
    cli: Cli, rows: Path, pretrained: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    write("counted.yaml", config_of(pretrained["bert"], "shown", name="classification"))
    code, out, err = cli("finetune", "counted.yaml", "--seeds=2")
    assert code == 0, err
    assert err.count("TF-IDF with logistic regression: accuracy 1.000 in") == 1
    first, second = (Path(f"shown/seeds/seed={seed}/eval/yardstick.json") for seed in (42, 43))
    assert first.read_text() == second.read_text()
    report = Path("shown/seeds/seed=42/report.html").read_text()
    assert "accuracy by counting" in report
    card = Path("shown/seeds/seed=42/model/README.md").read_text()
    assert "TF-IDF with logistic regression" in card
    code, out, err = cli("compare", "shown/seeds/seed=42", "shown/seeds/seed=43")
    assert "counted by" in out


def test_a_table_and_a_sentence(cli: Cli, rows: Path, pretrained: dict[str, Path]) -> None:
    write("counted.yaml", config_of(pretrained["bert"], "told", name="classification"))
    code, out, err = cli("finetune", "counted.yaml")
    assert code == 0, err
    assert "TF-IDF with logistic regression (" in out
    assert "TF-IDF with logistic regression is better on these 60 rows: more rows" in err


def test_none_is_made_if_none_is_asked_for(
    cli: Cli, rows: Path, pretrained: dict[str, Path]
) -> None:
    task = {"name": "classification", "baseline": "none"}
    write("counted.yaml", config_of(pretrained["bert"], "silent", **task))
    code, out, err = cli("finetune", "counted.yaml", "--json")
    assert code == 0, err
    assert "yardsticks" not in json.loads(out)
    assert not Path("silent/eval/yardstick.json").exists()


@pytest.mark.parametrize("error", [ValueError("odd\nrows"), MemoryError()])
def test_a_failure_is_a_line(
    error: Exception,
    cli: Cli,
    rows: Path,
    pretrained: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(texts, "learn_label", fail)
    run = f"failed-{type(error).__name__}"
    write("counted.yaml", config_of(pretrained["bert"], run, name="classification"))
    code, out, err = cli("finetune", "counted.yaml", "--json")
    assert code == 0, err
    expected = "ValueError: odd" if str(error) else "MemoryError"
    assert f"no yardstick: {expected}" in err
    assert "Traceback" not in err


def test_the_difference_by_hand(tmp_path: Path) -> None:
    from plmctl.run.folder import write_results

    method = {"name": "counts", "rows": 8, "seconds": 1.0, "metrics": {"accuracy": 0.5}}
    method |= {"credit": "accuracy", "values": [0.0, 1.0] * 20}
    write_results(tmp_path, "yardstick", {"methods": [method]})
    (best,) = yardsticks(tmp_path, {}, "accuracy", larger=True, values=[1.0] * 40)
    assert (best["value"], best["difference"]) == (0.5, 0.5)
    assert best["low"] > 0
    assert yardstick_sentence({"yardsticks": [best]}) == ""
    (same,) = yardsticks(tmp_path, {}, "accuracy", larger=True, values=method["values"])
    assert yardstick_sentence({"yardsticks": [same], "rows": 8}) == (
        "counts is as good on these 8 rows: more rows, a longer pretraining or a larger model may "
        "help"
    )
    assert yardsticks(tmp_path, {}, "f1", larger=True, values=[1.0] * 40) == []
    assert yardsticks(tmp_path / "none", {}, "f1", larger=True, values=[]) == []


def test_a_damaged_yardstick_is_left_out() -> None:
    assert yardstick_list({"yardsticks": [{"name": "x"}, 3]}) == []
    assert yardstick_list({"yardsticks": "x"}) == []
    assert yardstick_sentence({}) == ""
