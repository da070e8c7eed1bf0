"""A suite end to end on a tiny model: runs, the table, what continues and what is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from plmctl.commands.evaluate_suite import counted, settings_of
from plmctl.suites.base import Column, get_suite
from tests.commands.conftest import Cli, sentence
from tests.commands.test_bad_input import refused
from tests.commands.test_made_from import another

SETTINGS = ("train.epochs=2", "train.max_length=32", "optim.lr=0.003", "compute.device=cpu")


def rows(path: Path, count: int, start: int, columns: tuple[str, ...], label: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(start, start + count):
        texts = {column: sentence(number + n) for n, column in enumerate(columns)}
        value = ("sees" in texts[columns[0]] or "likes" in texts[columns[0]]) == 1
        lines.append(json.dumps({**texts, label: int(value)}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def data(world: Path) -> Path:
    folder = world / "glue-data"
    rows(folder / "cola" / "train.jsonl", 80, 0, ("sentence",), "label")
    rows(folder / "cola" / "dev.jsonl", 40, 80, ("sentence",), "label")
    pair = ("premise", "hypothesis")
    rows(folder / "mnli" / "train.jsonl", 80, 0, pair, "label")
    rows(folder / "mnli" / "dev.jsonl", 40, 80, pair, "label")
    rows(folder / "mnli" / "dev_mismatched.jsonl", 30, 120, pair, "label")
    return folder


def result(run: str, name: str = "valid") -> dict:
    document = json.loads(Path(run, "eval", f"{name}.json").read_text(encoding="utf-8"))
    return {key: value for key, value in document.items() if key != "checksum"}


def test_a_suite_s_table(cli: Cli, pretrained: dict[str, Path], data: Path) -> None:
    model = str(pretrained["bert"] / "model")
    command = ("suite", model, "glue", "--data", str(data), "run=suite-1", *SETTINGS)
    code, out, err = cli(*command, "--tasks", "cola", "--seeds", "2", "--json")
    assert code == 0, err
    runs = [f"suite-1/cola/seeds/seed={seed}" for seed in (42, 43)]
    (column,) = json.loads(out)["columns"]
    values = [100 * result(run)["results"]["matthews"] for run in runs]
    assert column["value"] == pytest.approx(median(values))
    errors = [100 * result(run)["uncertainty"]["matthews"]["se"] for run in runs]
    assert column["se"] == pytest.approx(median(errors))
    assert column["low"] <= column["value"] <= column["high"]
    (counted,) = result(runs[0], "yardstick")["methods"]
    assert column["counting"] == pytest.approx(100 * counted["metrics"]["matthews"])

    # Another task later: the first keeps its place, and nothing of it runs again.
    before = Path(runs[0], "events").read_text(encoding="utf-8")
    code, out, err = cli(*command, "--tasks", "mnli", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert [c["name"] for c in document["columns"]] == ["CoLA", "MNLI-m", "MNLI-mm"]
    assert document["averages"] == []  # of part of the tasks there is none
    assert [c["counting"] is None for c in document["columns"]] == [False, False, True]
    assert document == result("suite-1", "glue")
    mnli = "suite-1/mnli/seeds/seed=42"
    mismatched = result(mnli, "dev_mismatched")
    assert document["results"]["MNLI-mm"] == 100 * mismatched["results"]["accuracy"]
    assert mismatched["results"]["rows"] == 30
    assert Path(runs[0], "events").read_text(encoding="utf-8") == before
    assert result("suite-1", "rows/mnli")["values"] == result(mnli, "rows/valid")["values"]

    code, out, err = cli(*command, "--tasks", "cola,mnli")
    assert code == 0
    assert "2 of 2 runs are finished" in err
    assert "MNLI-mm" in out
    assert "BERT-base" in out
    assert "README of transformers" in err
    assert "counting" in out
    assert f"counting: {counted['name']}, on the same rows" in err

    # Finished runs of another model are not put into the table, and nothing is run.
    with another(Path(model, "model.safetensors")):
        again = cli(*command, "--tasks", "cola,mnli")
    refused(again, 3, f"{mnli}: the model weights changed since it was trained", "--fresh")


def test_data_that_are_not_there(cli: Cli, pretrained: dict[str, Path], data: Path) -> None:
    model = str(pretrained["bert"] / "model")
    result = cli("suite", model, "glue", "--data", str(data), "run=suite-2")
    refused(
        result, 3, "nothing was scored", "glue-data/rte/train.jsonl", "nyu-mll/glue, config rte"
    )
    assert "cola" not in result[2].replace("--tasks", "")
    assert not Path("suite-2").exists()


def test_wrong_usage(cli: Cli, pretrained: dict[str, Path], data: Path) -> None:
    model = str(pretrained["bert"] / "model")
    command = ("suite", model, "glue", "--data", str(data), "run=suite-3")
    refused(cli(*command, "--tasks", "sst"), 2, "did you mean 'sst2'")
    refused(cli(*command, "--tasks", ","), 2, "the list is empty")
    refused(cli(*command, "--tasks", "cola", "train.epoch=1"), 2, "epoch", "did you mean")
    refused(cli("eval", *command[1:2], "--suite", "glue", "--seeds", "2"), 2, f"suite {model} glue")
    refused(cli("suite", model, "glu"), 2, "did you mean 'glue'")
    refused(cli("eval", model), 2, f"eval CONFIG model={model}", f"suite {model} glue")
    refused(cli("suite", "no/such/model", "glue"), 2, "no such folder")
    assert not Path("suite-3").exists()


def test_a_failed_task_leaves_the_others(cli: Cli, pretrained: dict[str, Path], data: Path) -> None:
    model, here = str(pretrained["bert"] / "model"), Path("a-task-fails")
    shutil.copytree(data, here)
    rows(here / "rte" / "train.jsonl", 20, 0, ("sentence1",), "label")  # no second sentence
    rows(here / "rte" / "dev.jsonl", 20, 0, ("sentence1",), "label")
    outcome = cli(
        *("suite", model, "glue", "--data", str(here), "run=suite-4", *SETTINGS),
        *("--tasks", "cola,rte"),
    )
    code, out, err = outcome
    assert code == 1
    assert "CoLA" in out
    no_column = (
        "no column 'sentence2'; did you mean 'sentence1'?\n    name the columns under `task`"
    )
    for words in ("1 of 2 runs failed", no_column, "the others are kept"):
        assert words in err
    assert [c["name"] for c in result("suite-4", "glue")["columns"]] == ["CoLA"]


def test_counting_is_the_median_over_the_same_seeds() -> None:
    """With fewer rows each seed has others, and counting of its own."""
    column = Column("RTE", "rte", "accuracy", "accuracy")
    counting = [{"a": {"accuracy": 0.5}, "b": {"accuracy": 0.57}}, {"a": {"accuracy": 0.53}}]
    task = {"runs": ["1", "2"], "counting": counting}
    assert counted(column, task) == pytest.approx(55)
    assert counted(column, task | {"counting": [*counting[:1], {}]}) is None  # of one seed only
    assert counted(replace(column, rows="test"), task) is None
    assert counted(column, {"runs": ["1"]}) is None  # of before there was counting


def test_what_is_set_for_finetunings_and_parts() -> None:
    """The device and the sides that a decoder sees are those of all; the rest is of recipes."""
    suite = get_suite("babylm")
    given = ["both_sides=true", "compute.device=cpu", "train.epochs=1", "blimp.batch_size=8"]
    _, _, settings = settings_of(suite, given)
    for task in suite.tasks:
        assert settings[task.name] == given[:3]
    for part in suite.parts:
        assert settings[part.name] == given[:2] + ["batch_size=8"] * (part.name == "blimp")
