"""``plmctl run``: what it refuses, how it divides a budget, and all stages from end to end."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from plmctl.commands import run as command
from plmctl.run.launch import children_of
from tests.conftest import Cli


@pytest.fixture
def project(world: Path) -> Path:
    """The folder of four configs, as ``plmctl init`` writes it."""
    folder = world / "project"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    runs = {name: f"project/runs/{name}" for name in ("tokenizer", "bert", "finetune", "eval")}
    tokenizer = yaml.safe_load((world / "tok-bert.yaml").read_text())
    pretrain = yaml.safe_load((world / "bert.yaml").read_text())
    model = f"{runs['bert']}/model"
    configs = {
        "tokenizer": tokenizer | {"run": runs["tokenizer"]},
        "pretrain": pretrain | {"run": runs["bert"], "tokenizer": runs["tokenizer"]},
        "eval": {
            "run": runs["eval"],
            "model": model,
            "measures": [{"name": "bits_per_byte", "data": ["text.txt"], "max_bytes": "500B"}],
        },
        "finetune": {
            "run": runs["finetune"],
            "model": model,
            "task": {"name": "classification", "text": "text", "label": "label"},
            "data": {"train": ["rows.tsv"], "valid": "20%"},
            "train": {"epochs": 1, "batch_size": 16, "max_length": 32},
        },
    }
    for name, config in configs.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
    return folder


def test_what_is_no_project_is_one_message(world: Path, project: Path, cli: Cli) -> None:
    (world / "empty").mkdir()
    for arguments, words in (
        (["nowhere"], "nowhere: no such folder\n  `plmctl init CORPUS --out nowhere`"),
        (["text.txt"], "text.txt: a file; run takes the folder of the configs"),
        (["empty"], "empty: none of tokenizer.yaml, pretrain.yaml, eval.yaml, finetune.yaml"),
        (["project", "--until", "end"], "--until end: no such stage\n  one of tokenizer, pretrain"),
        (["project", "--budget", "10M tokens"], "of several stages it is a time"),
    ):
        code, _, err = cli("run", *arguments)
        assert (code, words in err) == (2, True), err
    assert not (project / "runs").exists()
    (project / "eval.yaml").write_text("run: x\nmeasures: 3\n")
    code, _, err = cli("run", "project")  # before the tokenizer is trained
    assert code == 2
    assert "project/eval.yaml" in err
    assert not (project / "runs").exists()


def test_pretraining_gets_a_part_of_the_budget_and_keeps_it(
    project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretrain = yaml.safe_load((project / "pretrain.yaml").read_text())
    pretrain["train"]["phases"] = [{"seq_len": 32}]
    pretrain["train"]["budget"] = "1h"
    (project / "pretrain.yaml").write_text(yaml.safe_dump(pretrain))
    notes = command.Notes(budget=1000.0, spent={"tokenizer": 100.0})
    stages, left_out = command._plan(Path("project"), "pretrain", notes)
    assert [stage.name for stage in stages] == ["tokenizer", "pretrain"]
    assert not left_out
    assert stages[1].config.train.budget.written == "1h"
    stage = command._with_budget(stages[1], notes)
    assert notes.pretraining == 0.8 * 900 - 20
    assert stage.words == ("pretrain", "project/pretrain.yaml", "train.budget=700s")
    # The next start has the same config, so that the run is resumed.
    again = command._plan(Path("project"), None, notes)[0][1]
    assert again.config == stage.config
    assert command._with_budget(again, notes) is again
    command._note(Path("project"), notes, stage, 10.0)
    monkeypatch.chdir(project.parent)
    code, _, err = cli("run", "project", "--budget", "3h")
    assert code == 2
    assert "the pretraining began with 16:40 for all stages" in err


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "plmctl", "run", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(Path(command.__file__).parents[2])},
    )  # fmt: skip


@pytest.mark.slow
def test_a_stopped_run_continues_to_the_report(project: Path, cli: Cli) -> None:
    rows = (project.parent / "rows.tsv").rename(project / "later.tsv")
    process = start("project")
    assert process.stderr is not None
    lines = [process.stderr.readline() for _ in range(2)]
    assert lines[0].startswith("what the stages print: project/runs/logs/")
    assert lines[1].startswith("1/3  tokenizer")
    while not children_of(process.pid):
        pass
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 75, err
    assert "to continue: plmctl run project" in err
    assert not (project / "report.html").exists()

    out, err = start("project", "--json").communicate(timeout=600)
    assert err.splitlines()[1].endswith("finished before")
    result = json.loads(out)
    assert list(result["stages"]) == ["tokenizer", "pretrain", "eval"]
    assert "project/later.tsv" not in result["left_out"]["finetune"]
    assert "name your labelled rows in project/finetune.yaml" in result["left_out"]["finetune"]
    assert result["stages"]["pretrain"]["metrics"]["validation loss"] > 0
    assert result["stages"]["eval"]["metrics"]["bits per byte"] > 0
    assert set(json.loads((project / "run.json").read_text())["spent"]) == set(result["stages"])

    rows.rename(project.parent / "rows.tsv")
    report = (project / "report.html").read_text()
    out, err = start("project").communicate(timeout=600)
    assert "4/4  finetune" in err
    assert "rows.tsv" not in out
    assert "accuracy" in out
    assert "in a browser: plmctl try project/runs/finetune project/runs/bert" in out
    assert (project / "report.html").read_text() != report

    code, out, err = cli("run", "project")
    assert (code, err) == (0, "")  # nothing is left to do
    assert "curves and details: project/report.html" in out
    config = project / "pretrain.yaml"
    config.write_text(config.read_text() + "seed: 5\n")
    code, _, err = cli("run", "project")
    assert code == 2
    assert "made from another config" in err
