"""The shipped recipes ask for the published number of updates."""

import math
import re
from pathlib import Path

import pytest

from plmctl.commands.finetune_grid import protocol_runs
from plmctl.run.configs import FinetuneConfig, load

ROOT = Path(__file__).parents[2] / "configs" / "finetune"
# Steps, warmup, and batch as RoBERTa (fairseq) and ALBERT give them; rows of GLUE's training sets.
ROWS = {"cola": 8551, "sst2": 67349, "mrpc": 3668, "qqp": 363846, "mnli": 392702, "qnli": 104743}
ROWS |= {"rte": 2490, "stsb": 5749}
UPDATES = {
    "roberta": {
        "rte": (2036, 122, 16), "cola": (5336, 320, 16), "mrpc": (2296, 137, 16),
        "sst2": (20935, 1256, 32), "qnli": (33112, 1986, 32), "qqp": (113272, 28318, 32),
        "mnli": (123873, 7432, 32), "stsb": (3598, 214, 16),
    },
    "albert": {
        "sst2": (20935, 1256, 32), "mnli": (10000, 1000, 128), "cola": (5336, 320, 16),
        "qnli": (33112, 1986, 32), "qqp": (14000, 1000, 128), "rte": (800, 200, 32),
        "mrpc": (800, 200, 32), "stsb": (3598, 214, 16),
    },
}  # fmt: skip
CASES = [(family, task) for family, tasks in UPDATES.items() for task in tasks]


@pytest.mark.parametrize(("family", "task"), CASES)
def test_steps_and_warmup(family: str, task: str) -> None:
    config = load("finetune", ROOT / "glue" / family / f"{task}.yaml")
    assert isinstance(config, FinetuneConfig)
    steps, warmup, batch = UPDATES[family][task]
    assert config.train.batch_size == batch
    assert math.ceil(config.train.epochs * ROWS[task] / batch) == steps
    assert config.schedule.warmup.root == warmup


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.yaml")), ids=lambda p: str(p.name))
def test_every_grid_can_be_run_and_local_files_are_named(path: Path) -> None:
    config = load("finetune", path)
    assert isinstance(config, FinetuneConfig)
    assert protocol_runs(config, 1, grid=bool(config.grid))
    names_local_files = re.search(r"^# Local files: data.train=", path.read_text("utf-8"), re.M)
    assert names_local_files or not any(source.startswith("hf:") for source in config.data.train)


GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")


@pytest.mark.parametrize("family", sorted(path.name for path in (ROOT / "glue").iterdir()))
def test_every_task_of_glue_is_there(family: str) -> None:
    for task in GLUE:
        config = load("finetune", ROOT / "glue" / family / f"{task}.yaml")
        assert isinstance(config, FinetuneConfig)
        assert config.run == f"runs/glue/{family}/{task}"
        assert (config.task.problem == "regression") == (task == "stsb")
        sets = config.data.valid
        assert (list(sets) if isinstance(sets, dict) else None) == (
            ["matched", "mismatched"] if task == "mnli" else None
        )
