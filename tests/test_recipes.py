"""Recipes that claim a paper or published code do as these: configs/sources.yml, row by row."""

import math
import re
from collections import Counter, defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from plmctl.commands.config import PublishedRow, published_rows, value_at
from plmctl.commands.finetune_grid import protocol_runs
from plmctl.config.document import read_document
from plmctl.config.load import dump, kind_of
from plmctl.families.base import get_family
from plmctl.metrics.classification import classification_metrics, regression_metrics
from plmctl.run.configs import FinetuneConfig, load
from plmctl.training.schedule import ramp

ROOT = Path(__file__).parents[1] / "configs"


FILES = sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*.yaml"))


# The folders of recipes for everybody; the others hold our own runs.
RECIPES = ("pretrain", "tokenizer", "finetune")


OWN = ("pretrain/continue.yaml", "pretrain/t5-mini.yaml", "finetune/cmrc2018.yaml")


CLAIM = re.compile(
    r"(?i)\bet al\b|arxiv|\bpapers?\b|publish|\breleased|readme|\b(bert|gpt-\d|t5|albert|elmo)'s\b"
)


# Claims that are not about values.
NO_CLAIM = {
    "eval/blimp.yaml": "where BLiMP's files are",
    **{
        f"eval/babylm/{name}.yaml": "whose data, and which mean"
        for name in ("blimp", "supplement", "ewok", "comps", "entity-tracking", "reading")
    },
    "eval/chinese-minimal-pairs.yaml": "whose data, and which mean",
    "eval/multiblimp.yaml": "whose data, and which mean",
    "eval/glue-ax.yaml": "where the diagnostics with labels are",
    "pretrain/proof/gpt3.yaml": "that a small run has a growing batch",
}


# Rows of each family, so that nobody empties the table: raise them with it.
AT_LEAST = {
    "albert": 280,
    "babylm": 210,
    "bert": 500,
    "deberta": 70,
    "distilbert": 80,
    "electra": 38,
    "elmo": 70,
    "eval": 16,
    "gpt_bert": 40,
    "gpt1": 175,
    "gpt2": 65,
    "gpt3": 145,
    "llama": 25,
    "modernbert": 22,
    "roberta": 190,
    "spanbert": 185,
    "t5": 546,
}


TABLE = published_rows()


BY_FILE: dict[str, list[PublishedRow]] = defaultdict(list)


for _row in TABLE:
    BY_FILE[_row.file].append(_row)


def resolved(file: str, folder: Path) -> dict[str, Any]:
    """A config with all its defaults, as plain data."""
    kind = kind_of(ROOT / file)
    config = load(kind, ROOT / file)
    written = folder / "resolved.yaml"
    written.write_text(dump(config), encoding="utf-8")
    data = dict(read_document(written).data)
    if kind == "tokenizer":
        data["rules"] = asdict(get_family(config.family).TOKENIZER(config).rules)
    return data


def value_of(data: dict[str, Any], key: str) -> Any:
    """What a config has at a key of the table."""
    if match := re.fullmatch(r"steps over (\d+) rows", key):
        train = data["train"]
        return math.ceil(train["epochs"] * int(match[1]) / train["batch_size"])
    if key == "billion tokens":
        return round(tokens_of(data["train"]) / 1e9)
    if key.startswith("grid."):
        return data["grid"][key.removeprefix("grid.")]
    return value_at(data, key)


def tokens_of(train: dict[str, Any]) -> int:
    """Tokens of a pretraining of one phase whose batch grows."""
    (phase,), grows = train["phases"], train["batch_ramp"]
    length = phase["seq_len"]
    sizes = ramp(grows["start"], train["batch_size"], grows["tokens"], length)
    return int(sizes.first(phase["steps"]) * length)


def header_of(file: str) -> str:
    """The comment at the top of a config."""
    lines = (ROOT / file).read_text(encoding="utf-8").split("\n")
    top = lines[: next(n for n, line in enumerate(lines) if not line.startswith("#"))]
    return " ".join(line.removeprefix("#").strip() for line in top)


@pytest.mark.parametrize("file", sorted(BY_FILE))
def test_a_recipe_has_the_values_of_its_sources(file: str, tmp_path: Path) -> None:
    data = resolved(file, tmp_path)
    wrong = [
        f"{row.key}: {value_of(data, row.key)!r}, but {row.value!r} in {row.source}"
        for row in BY_FILE[file]
        if value_of(data, row.key) != row.value
    ]
    assert not wrong, "\n".join([file, *wrong])


def test_no_row_is_there_twice() -> None:
    twice = [name for name, n in Counter((r.file, r.key) for r in TABLE).items() if n > 1]
    assert not twice
    assert all(row.source.strip() for row in TABLE)


def test_no_family_lost_its_rows() -> None:
    count = Counter(row.family for row in TABLE)
    assert set(count) == set(AT_LEAST)
    assert {family: n for family, n in count.items() if n < AT_LEAST[family]} == {}


def test_every_recipe_and_every_claim_is_in_the_table() -> None:
    for file in FILES:
        if file in BY_FILE:
            continue
        claim = CLAIM.search(header_of(file))
        assert claim is None or file in NO_CLAIM, f"{file} claims {claim}: put it into sources.yml"
        shared = file.startswith(tuple(f"{folder}/" for folder in RECIPES))
        own = Path(file).parent.name in ("proof", "transfer")
        assert not shared or own or file in OWN, f"{file} is neither in sources.yml nor in OWN"
    assert set(OWN) | set(NO_CLAIM) <= set(FILES) - set(BY_FILE)


# A name that no task has is refused only when the rows are read, which tests do not have.


METRICS = {*classification_metrics([0, 1], [0, 1], ["a", "b"]), *regression_metrics([0, 1], [0, 1])}


def test_the_metric_that_decides_is_one_of_the_task() -> None:
    checked = 0
    for file in FILES:
        config = load("finetune", ROOT / file) if file.startswith("finetune/") else None
        if isinstance(config, FinetuneConfig) and config.train.metric is not None:
            checked += 1
            metrics = {
                "classification": METRICS,
                "multiple_choice": {"accuracy"},
                "tagging": {"f1"},
            }
            assert config.task.name in metrics, f"{file}: say here what its metrics are"
            assert config.train.metric in metrics[config.task.name], file
    assert checked


# The shipped recipes ask for the published number of updates.


FINETUNE = ROOT / "finetune"


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
    config = load("finetune", FINETUNE / "glue" / family / f"{task}.yaml")
    assert isinstance(config, FinetuneConfig)
    steps, warmup, batch = UPDATES[family][task]
    assert config.train.batch_size == batch
    assert math.ceil(config.train.epochs * ROWS[task] / batch) == steps
    assert config.schedule.warmup.root == warmup


@pytest.mark.parametrize("path", sorted(FINETUNE.rglob("*.yaml")), ids=lambda p: str(p.name))
def test_every_grid_can_be_run_and_local_files_are_named(path: Path) -> None:
    config = load("finetune", path)
    assert isinstance(config, FinetuneConfig)
    assert protocol_runs(config, 1, grid=bool(config.grid))
    names_local_files = re.search(r"^# Local files: data.train=", path.read_text("utf-8"), re.M)
    assert names_local_files or not any(source.startswith("hf:") for source in config.data.train)


GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")


@pytest.mark.parametrize("family", sorted(path.name for path in (FINETUNE / "glue").iterdir()))
def test_every_task_of_glue_is_there(family: str) -> None:
    for task in GLUE:
        config = load("finetune", FINETUNE / "glue" / family / f"{task}.yaml")
        assert isinstance(config, FinetuneConfig)
        assert config.run == f"runs/glue/{family}/{task}"
        assert (config.task.problem == "regression") == (task == "stsb")
        sets = config.data.valid
        assert (list(sets) if isinstance(sets, dict) else None) == (
            ["matched", "mismatched"] if task == "mnli" else None
        )
