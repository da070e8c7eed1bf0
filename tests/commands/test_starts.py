"""A start that failed before its first step does not fix the config of its folder."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from plmctl.errors import ConfigError
from plmctl.run.configs import load
from plmctl.run.folder import is_unstarted, open_run
from tests.commands.conftest import Cli, write
from tests.commands.test_bad_input import finetune_config, refused
from tests.commands.test_budget import config as budgeted
from tests.commands.test_scaling import SIZES, options, scaled
from tests.commands.test_startup import in_a_process

REPLACED = "an earlier start failed before its first step; its config is replaced"


def failing(kind: str, run: Path) -> tuple[list[str], list[str], str]:
    """A command line that fails at work, what is changed for the next try, and the run folder."""
    fields: dict[str, Any]
    if kind == "pretrain":
        write("failing.yaml", budgeted("1s") | {"run": "failed"})
        return ["pretrain", "failing.yaml"], ["train.budget=2s"], "failed"
    if kind == "eval":
        Path("empty.txt").write_text("")
        measures = [{"name": "perplexity", "data": ["empty.txt"]}]
        fields = {"run": "failed", "model": str(run / "model"), "measures": measures}
        write("failing.yaml", fields)
        return ["eval", "failing.yaml"], ["seed=7"], "failed"
    Path("torn.tsv").write_text("text\tlabel\nonly one column\n")
    fields = finetune_config(run)
    fields["data"] |= {"train": ["torn.tsv"]}
    write("failing.yaml", fields | {"run": "failed", "grid": {"optim.lr": [1e-5, 2e-5]}})
    more = [] if kind == "finetune" else ["--grid"]
    return ["finetune", "failing.yaml", *more], ["train.epochs=5"], "failed"


@pytest.mark.parametrize("kind", ["pretrain", "finetune", "grid", "eval"])
def test_a_failed_start_takes_the_remedy(cli: Cli, pretrained: dict[str, Path], kind: str) -> None:
    command, change, folder = failing(kind, pretrained["bert"])
    shutil.rmtree(folder, ignore_errors=True)
    code, _, err = cli(*command)
    assert code, err
    saved = Path(folder) / "config.yaml"
    # A finetuning reads its rows before it makes the folder.
    assert saved.exists() == (kind != "finetune")
    before = saved.read_text() if saved.exists() else ""
    code, _, again = cli(*command, *change)
    assert "another config" not in again
    if before:
        assert REPLACED in again
        assert saved.read_text() != before


def test_what_is_work_and_what_is_not(cli: Cli) -> None:
    config = load("pretrain", "bert.yaml", ["run=begun"])
    changed = load("pretrain", "bert.yaml", ["run=begun", "seed=7"])
    folder = open_run(config, "begun", fresh=False)
    for name in ("status.json", "environment.json", "events", "budget.json"):
        (folder / name).write_text("{}\n")
    (folder / "metrics.jsonl").touch()
    (folder / "eval").mkdir()
    (folder / "eval/data.json").write_text("{}")
    (folder / "checkpoints/.step-trial.writing").mkdir(parents=True)
    (folder / "checkpoints/.step-trial.writing/state.json").write_text("{}")
    assert is_unstarted(folder)
    for name in (
        "metrics.jsonl",
        "checkpoints/step-000001/state.json",
        "model/config.json",
        "eval/valid.json",
        "lr=0.1/seed=1/metrics.jsonl",
        "thesis.txt",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
        with pytest.raises(ConfigError, match="made from another config"):
            open_run(changed, "begun", fresh=False)
        path.write_text("")
    open_run(config, "begun", fresh=False)
    assert (folder / "budget.json").is_file()  # the same config resumes
    open_run(changed, "begun", fresh=False)
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "config.yaml"]
    assert "seed: 7" in (folder / "config.yaml").read_text()


@pytest.mark.slow
def test_a_ladder_that_failed_before_a_step(cli: Cli) -> None:
    command = "scaling", scaled("early"), *options(*SIZES[:2]), "--budget", "80k tokens"
    Path("early").mkdir()
    for name in ("scaling.yaml", "ladder.json"):
        Path("early", name).write_text("{}")
    code, out, err = cli(*command, "--out", "early", "--plan")
    assert code == 0, err
    assert Path("early/ladder.json").read_text() == "{}"  # --plan writes nothing
    assert cli(*command, "--out", "early")[0] == 0
    refused(cli(*command, "seed=7", "--out", "early"), 2, "a ladder of another config")


# --- What can be refused without PyTorch is refused before its import, which takes seconds ---

REFUSED = [
    ("pretrain", "bert.yaml", "run=no-run"),
    ("pretrain", "bert.yaml", "run=done-bert", "seed=7"),
    ("pretrain", "bert.yaml", "run=new", "tokenizer=./none"),
    ("pretrain", "bert.yaml", "run=new", "objective.name=clm"),
    ("pretrain", "bert.yaml", "run=new", "model.init_from=./none"),
    ("pretrain", "bert.yaml", "run=new", "optim.lr=fast"),
    ("pretrain", "none.yaml"),
    ("finetune", "tuned.yaml", "run=no-run"),
    ("finetune", "tuned.yaml", "model=no-run"),
    ("finetune", "tuned.yaml", "model=no-run", "--grid"),
    ("finetune", "tuned.yaml", "run=done-bert"),
    ("train-tokenizer", "tok-bert.yaml", "run=no-run"),
    ("train-tokenizer", "tok-bert.yaml", "run=new", "data.train=[none.txt]"),
    ("prepare", "bert.yaml", "tokenizer=./none"),
    ("preview", "bert.yaml", "tokenizer=./none"),
    ("plan", "bert.yaml", "tokenizer=./none"),
    ("plan", "elmo-none"),
    ("scaling", "bert.yaml", "tokenizer=./none"),
    ("verify-resume", "bert.yaml", "tokenizer=./none"),
    ("verify-resume", "tuned.yaml", "model=no-run"),
    ("submit", "none.yaml", "--slurm"),
    ("init", "no-run"),
    ("init", "none"),
    ("eval", "measured.yaml"),
    ("eval", "no-run"),
    ("suite", "no-run", "glue"),
    ("predict", "no-run", "text"),
    ("generate", "no-run", "--prompt", "text"),
    ("neighbours", "no-run", "text.txt", "--word", "day"),
    ("export", "no-run", "out"),
    ("push", "no-run", "me/model"),
    ("compare", "no-run", "done-bert"),
    ("report", "no-run"),
    ("status", "no-run"),
    ("reproduce", "no-run"),
    ("board", "none"),
    ("doctor", "none.yaml"),
    ("doctor", "tok-bert.yaml"),
]

LINES = """
import json, sys
from plmctl.__main__ import main
sys.modules["torch"] = None  # its import fails
codes = []
for line in json.loads(sys.argv[1]):
    sys.argv = ["plmctl", *line]
    try:
        main()
        codes.append(0)
    except SystemExit as stop:
        codes.append(stop.code)
    except ImportError as error:
        codes.append(str(error))
print("\\n" + json.dumps(codes))
"""


def test_a_wrong_folder_or_config_is_refused_without_pytorch(pretrained: dict[str, Path]) -> None:
    Path("no-run").mkdir()
    Path("no-run/notes.pdf").write_text("notes")
    write("tuned.yaml", finetune_config(pretrained["bert"]) | {"grid": {"seed": [1, 2]}})
    measures = [{"name": "perplexity", "data": ["text.txt"]}]
    write("measured.yaml", {"run": "new", "model": "no-run", "measures": measures})
    codes = json.loads(in_a_process(LINES, json.dumps(REFUSED)))
    pairs = zip(REFUSED, codes, strict=True)
    assert [(line, code) for line, code in pairs if code not in (2, 3)] == []
