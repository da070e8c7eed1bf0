"""The Chinese BabyLM (NLPCC 2026): ZhoBLiMP, knowledge of characters, and four tasks of CLUE.

Its track of brain recordings is not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plmctl.suites.base import (
    Average,
    Column,
    Predictions,
    Published,
    Suite,
    SuitePart,
    SuiteTask,
    recipes,
)

_ORGANISERS = "chinese-babylm-org"


def _part(name: str, hub: str, rows: str) -> SuitePart:
    files = (f"full_eval/{name}/*.jsonl", f"{name}/*.jsonl")
    source = f"Hub: {_ORGANISERS}/{hub}, prepared by the official pipeline.py download"
    return SuitePart(name, "chinese-minimal-pairs.yaml", files, source, rows)


_PAIRS = "columns sentence_good, sentence_bad, UID"

PARTS = (
    _part("zhoblimp", "zhoblimp", f"{_PAIRS}, one file per paradigm"),
    _part("hanzi_structure", "hanzi-structure", _PAIRS),
    _part("hanzi_pinyin", "hanzi-pinyin", _PAIRS),
)


def _task(name: str, rows: str) -> SuiteTask:
    at = (f"full_eval/clue/{name}", f"clue/{name}")
    places = tuple((f"{place}.train", f"{place}.valid") for place in at)
    return SuiteTask(name, f"clue/clue, config {name}", rows, places=places)


TASKS = (
    _task("afqmc", "columns sentence1, sentence2, label"),
    _task("ocnli", "columns sentence1, sentence2, label"),
    _task("tnews", "columns sentence, label"),
    _task("cluewsc2020", "columns text, span1_text, span2_text, label"),
)

_MACRO = "accuracy, mean of the {}, unweighted"

COLUMNS = (
    Column("ZhoBLiMP", "zhoblimp", "accuracy/macro", _MACRO.format("paradigms")),
    Column("Structure", "hanzi_structure", "accuracy/macro", _MACRO.format("conditions")),
    Column("Pinyin", "hanzi_pinyin", "accuracy/macro", _MACRO.format("conditions")),
    Column("AFQMC", "afqmc", "accuracy", "accuracy"),
    Column("OCNLI", "ocnli", "accuracy", "accuracy"),
    Column("TNEWS", "tnews", "accuracy", "accuracy"),
    Column("CLUEWSC", "cluewsc2020", "accuracy", "accuracy"),
)

_CLUE = ("AFQMC", "OCNLI", "TNEWS", "CLUEWSC")

AVERAGES = (
    Average("CLUE 4", tuple((name,) for name in _CLUE), "mean of the four tasks of CLUE"),
    Average("Hanzi", (("Structure",), ("Pinyin",)), "mean of both sets of character pairs"),
)

_TASKS = tuple(task.name for task in TASKS)
_RECIPES = recipes("chinese-babylm", _TASKS)

RECIPES = {
    **dict.fromkeys(("bert", "distilbert", "roberta", "albert", "spanbert"), _RECIPES),
    **dict.fromkeys(("gpt1", "gpt2", "gpt3"), _RECIPES),
    "elmo": recipes("chinese-babylm", _TASKS, "optim.lr=1e-3"),  # as in glue
    "t5": {},
}

# No table of baselines of the Chinese task is known: the monolingual one of the multilingual track.
PUBLISHED = (
    Published(
        "GPT-2 zho 2026",
        "gpt2",
        "dev",
        "README of babylm-org/babylm-eval, ZhoBLiMP by lm-eval",
        {"ZhoBLiMP": 78.79},
    ),
)


class ChineseBabylm(Suite):
    """See ``title``."""

    title = "Chinese BabyLM, NLPCC 2026 (chinese-babylm.github.io), without its brain recordings"
    tasks = TASKS
    parts = PARTS
    columns = COLUMNS
    averages = AVERAGES
    recipes = RECIPES
    published = PUBLISHED

    def beside(self, family: str) -> tuple[Published, ...]:
        """All baselines: the task compares all families."""
        return self.published

    def submission(self, scores: Mapping[str, float], predictions: Predictions) -> dict[str, Any]:
        """Accuracies from 0 to 1 by the official names of parts and tasks."""
        return {
            column.task: {"accuracy": scores[column.name] / 100}
            for column in self.columns
            if column.name in scores
        }
