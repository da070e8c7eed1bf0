"""What counting gives beside a finetuned network: made once, kept, shown, and never a stop."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from plmctl.corpus.labelled import Row
from plmctl.counting import texts
from plmctl.errors import ConfigError
from plmctl.reporting.board import Board
from plmctl.reporting.run_files import (
    loss_sentence,
    setting_columns,
    yardstick_list,
    yardstick_sentence,
)
from plmctl.run.folder import read_results
from plmctl.run.yardstick import beside_network, kept_methods
from plmctl.tasks import tagging
from plmctl.tasks.base import make_task
from plmctl.tasks.classification import Config
from tests.commands.conftest import NAMES, PLACES, VERBS, Cli, write
from tests.commands.test_bad_input import finetune_config
from tests.commands.test_faults import PLMCTL


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


def test_seeds_have_a_column_and_a_sentence(
    cli: Cli, rows: Path, pretrained: dict[str, Path]
) -> None:
    fields = config_of(pretrained["bert"], "column", name="classification")
    write("counted.yaml", fields | {"grid": {"data.max_rows": [40, 50]}})
    code, out, err = cli("finetune", "counted.yaml", "--grid", "--seeds=2")
    assert code == 0, err
    assert "TF-IDF" in out
    assert "TF-IDF with logistic regression is better on these" in err
    assert err.count("TF-IDF with logistic regression: accuracy") == 4  # each of other rows
    document = read_results(Path("column/eval/protocol.json"), "settings")
    each = [json.loads(path.read_text()) for path in Path("column").glob("*/*/eval/valid.json")]
    values = [one["results"]["yardsticks"][0]["value"] for one in each]
    for row in document["settings"]:
        own = [value for run, value in zip(each, values, strict=True)
               if run["results"]["rows"] == row["setting"]["data.max_rows"]]  # fmt: skip
        assert row["counted"]["value"] == median(own)
    assert setting_columns(document)[-2:] == ["TF-IDF with logistic regression", "best run"]
    page = Path("column/report.html").read_text()
    assert "TF-IDF with logistic regression</th>" in page
    assert "TF-IDF with logistic regression is better on these" in page
    board = Board(Path("column"))
    (top,) = (row["id"] for row in board.rows()["rows"] if row["members"])
    (shown,) = board.details(top)["evaluations"]
    assert shown["setting_columns"][-1] == "TF-IDF with logistic regression"
    assert shown["settings"][0][-1] == document["settings"][0]["counted"]["value"]


def test_a_resumed_run_keeps_it_unless_it_is_damaged(
    cli: Cli, rows: Path, pretrained: dict[str, Path]
) -> None:
    config = config_of(pretrained["bert"], "resumed", name="classification")
    config["train"] |= {"batch_size": 20}
    write("counted.yaml", config)
    line, kept = "TF-IDF with logistic regression: accuracy", Path("resumed/eval/yardstick.json")
    assert cli("finetune", "counted.yaml", "--until=1")[0] == 75
    code, _, err = cli("finetune", "counted.yaml", "--until=2")
    assert (code, err.count(line)) == (75, 0)
    kept.write_text(kept.read_text()[:-20])
    code, out, err = cli("finetune", "counted.yaml")
    assert (code, err.count(line)) == (0, 1)
    assert "TF-IDF with logistic regression (" in out


@pytest.mark.slow
def test_parallel_runs_make_it_once(cli: Cli, rows: Path, pretrained: dict[str, Path]) -> None:
    write("counted.yaml", config_of(pretrained["bert"], "parallel", name="classification"))
    command = [*PLMCTL, "finetune", "counted.yaml", "--seeds=2", "--jobs=2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.count("TF-IDF with logistic regression: accuracy 1.000 in") == 1
    files = [Path(f"parallel/seeds/seed={seed}/eval/yardstick.json") for seed in (42, 43)]
    assert files[0].read_text() == files[1].read_text()


@pytest.mark.slow
def test_one_of_two_processes_makes_it(
    cli: Cli, rows: Path, pretrained: dict[str, Path], tmp_path: Path
) -> None:
    """It takes longer than the network may take to be built: six times ``launch.timeout``."""
    (tmp_path / "pycrfsuite.py").write_text(
        "import time\ntime.sleep(40)\nraise ImportError('no')\n"
    )
    write("counted.yaml", config_of(pretrained["bert"], "two", name="tagging", scheme="pos"))
    command = [*PLMCTL, "finetune", "counted.yaml", "launch.processes=2", "launch.timeout=6s"]
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("most frequent tag: accuracy") == 1
    assert "no further yardstick: python-crfsuite cannot be imported (no)" in done.stderr


def test_eval_shows_it_for_the_same_rows_and_counts_others(
    cli: Cli, rows: Path, pretrained: dict[str, Path]
) -> None:
    write("counted.yaml", config_of(pretrained["bert"], "measured", name="classification"))
    assert cli("finetune", "counted.yaml")[0] == 0
    lines = rows.read_text().splitlines()
    rows.with_name("other.jsonl").write_text("\n".join(lines[:30]).replace('"text"', '"words"'))
    measures = [
        {"name": "task", "data": ["counted.jsonl"]},
        {"name": "task", "data": ["other.jsonl"], "columns": {"text": "words"}},
    ]
    write("measured.yaml", {"run": "ev", "model": "measured/model", "measures": measures})
    code, out, err = cli("eval", "measured.yaml", "--json")
    assert code == 0, err
    same, other = json.loads(out)["results"].values()
    kept = read_results(Path("measured/eval/valid.json"))["results"]
    assert same["yardsticks"] == kept["yardsticks"]
    assert other["yardsticks"][0]["value"] == 1.0
    assert err.count("TF-IDF with logistic regression: accuracy") == 1  # of the other rows
    assert "TF-IDF with logistic regression is better: more rows" in err
    figures = json.loads(cli("compare", "ev", "ev", "--json")[1])["figures"]
    assert all(one["task: accuracy by counting"] == 1.0 for one in figures.values())
    rows.write_text("\n".join(lines[1:]) + "\n")
    try:
        code, out, err = cli("eval", "measured.yaml", "run=ev-changed", "--json")
    finally:
        rows.write_text("\n".join(lines) + "\n")
    assert code == 0, err
    assert all("yardsticks" not in one for one in json.loads(out)["results"].values())
    assert err.count("no yardstick: the rows of measured changed since it was finetuned") == 2
    shutil.copytree("measured/model", "exported")
    code, out, err = cli("eval", "measured.yaml", "run=ev-exported", "model=exported", "--json")
    assert code == 0, err
    assert "no yardstick: exported is not in the folder of its finetuning" in err


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


def test_tags_without_the_package_of_the_crf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycrfsuite", None)
    rows = [Row({"tokens": ["a", "b"], "tags": ["X", "Y"]}, "f:1")] * 3
    methods = make_task(tagging.Config(scheme="pos")).count(rows, ("X", "Y"))
    frequent = next(methods)
    assert (frequent.name, frequent.rows) == ("most frequent tag", 3)
    assert frequent.answers(rows, None)[0]["prediction"] == ["X", "Y"]
    with pytest.raises(ConfigError, match="python-crfsuite is not installed: pip install"):
        next(methods)


def test_the_difference_by_hand(tmp_path: Path) -> None:
    from plmctl.run.folder import write_results

    method = {"name": "counts", "rows": 8, "seconds": 1.0, "metrics": {"accuracy": 0.5}}
    method |= {"credit": "accuracy", "values": [0.0, 1.0] * 20}
    task, hashes = make_task(Config()), {"data": "a", "valid": "b"}
    made_of = {"rows": "a", "valid": "b", "task": Config().model_dump(exclude={"baseline"})}
    methods = [method, {"name": "of another version"}]
    write_results(tmp_path, "yardstick", {"made_of": made_of, "methods": methods})
    kept = kept_methods(tmp_path, task, hashes)
    assert kept_methods(tmp_path, task, hashes | {"valid": "c"}) == []
    assert kept_methods(tmp_path / "none", task, hashes) == []
    (best,) = beside_network(kept, "accuracy", larger=True, values=[1.0] * 40)
    assert (best["value"], best["difference"]) == (0.5, 0.5)
    assert best["low"] > 0
    assert yardstick_sentence({"yardsticks": [best]}) == ""
    (same,) = beside_network(kept, "accuracy", larger=True, values=method["values"])
    assert yardstick_sentence({"yardsticks": [same], "rows": 8, "valid_rows": 40}) == (
        "counts is as good on these 8 rows: more rows, a longer pretraining or a larger model may "
        "help"
    )
    assert beside_network(kept, "f1", larger=True, values=[1.0] * 40) == []
    assert beside_network(kept, "accuracy", larger=True, values=[1.0]) == []


def test_a_damaged_yardstick_is_left_out() -> None:
    assert yardstick_list({"yardsticks": [{"name": "x"}, 3]}) == []
    assert yardstick_list({"yardsticks": "x"}) == []
    other = {"name": "x", "metric": "f1", "credit": "tag accuracy", "value": 1, "seconds": 1}
    assert "x is better (by the tag accuracy of each row): more rows" in yardstick_sentence(
        {"yardsticks": [other | {"low": -2, "high": -1}]}
    )
    assert yardstick_sentence({}) == ""


def test_a_loss_is_good_or_not_by_what_counting_gives() -> None:
    facts = {
        "frequency_loss": {"mlm": 6.0, "loss": 7.0},
        "counted_loss": {"both neighbours": {"loss": 5.0}},
    }
    assert loss_sentence({"valid/loss": 4.5}, facts) == (
        "the held-out loss 4.500 is below the best that counting gives, both neighbours (5.000)"
    )
    assert loss_sentence({"valid/loss": 5.0}, facts).startswith(
        "the held-out loss 5.000 is below token frequencies alone (7.000), and counting both "
        "neighbours (5.000) is still better"
    )
    assert "is not below token frequencies alone (7.000)" in loss_sentence(
        {"valid/loss": 7.5}, facts
    )
    assert loss_sentence({"valid/loss": float("nan")}, facts) == ""
    assert loss_sentence({"valid/loss": 4.5}, {"frequency_loss": "7"}) == ""
