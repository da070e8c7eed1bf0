"""The yardstick of a finetuning: what counting gives on the same rows.

It is made once for the same rows and the same task, and kept in ``eval/yardstick.json``; a resumed
run and the other runs of ``--seeds`` and ``--grid`` take it from there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plmctl.counting.rows import drawn
from plmctl.errors import DataError, PlmError
from plmctl.metrics.statistics import paired
from plmctl.run.display import say
from plmctl.run.folder import read_results, write_results

if TYPE_CHECKING:
    from plmctl.corpus.labelled import Row
    from plmctl.tasks.base import Answer, ScoredConfig, Task, TaskExamples

_NAME = "yardstick"

WORTH_IT = (
    "is a network worth it? finetune also says what counting gives on your rows: docs/worth-it.md"
)


def keep_yardstick(
    folder: Path,
    task: Task[ScoredConfig],
    labels: tuple[str, ...],
    rows: tuple[Sequence[Row], Sequence[Row]],
    examples: TaskExamples[ScoredConfig],
    digest: str | None,
) -> None:
    """Make what counting gives, unless it is there; a line says why there is none.

    Args:
        folder: Of the run.
        rows: Training rows, and validation rows.
        examples: The validation rows, which score the answers.
        digest: The hash of all rows.
    """
    made_of = {"rows": digest, "task": task.config.model_dump(mode="json", exclude={"baseline"})}
    own = folder / "eval" / f"{_NAME}.json"
    several = folder.parent.parent.glob(f"*/seed=*/eval/{_NAME}.json")
    for path in (own, *(several if folder.name.startswith("seed=") else ())):
        with suppress(DataError):
            document = read_results(path, "made_of", "methods")
            if document["made_of"] == made_of:
                write_results(folder, _NAME, document)
                return
    own.unlink(missing_ok=True)  # of other rows
    methods: list[dict[str, Any]] = []
    try:
        _count(methods, task, labels, rows, examples)
    except PlmError as error:
        say(f"no yardstick: {error.message}")
    except Exception as error:  # of scikit-learn on odd rows: a run does not need a yardstick
        say(f"no yardstick: {type(error).__name__}: {next(iter(str(error).splitlines()), '')}")
    if methods:
        write_results(folder, _NAME, {"kind": _NAME, "made_of": made_of, "methods": methods})


def _count(
    methods: list[dict[str, Any]],
    task: Task[ScoredConfig],
    labels: tuple[str, ...],
    rows: tuple[Sequence[Row], Sequence[Row]],
    examples: TaskExamples[ScoredConfig],
) -> None:
    """Add the results of each method, as far as they succeed."""
    train, valid = rows
    began = time.monotonic()
    for counted in task.count(drawn(train), labels):
        answers: list[Answer] = counted.answers(valid, examples)
        metrics = examples.compute_metrics(answers)
        credit, values = examples.per_example_scores(answers)
        seconds = time.monotonic() - began
        methods.append(
            {
                "name": counted.name,
                "rows": counted.rows,
                "seconds": round(seconds, 1),
                "metrics": {
                    name: float(value)
                    for name, value in metrics.items()
                    if isinstance(value, int | float) and np.isfinite(value)
                },
                "credit": credit,
                "values": values,
            }
        )
        some = f" (learned from {counted.rows:,} of {len(train):,} rows)"
        say(
            f"{counted.name}: {_first_metrics(metrics)}in {seconds:.1f} s"
            f"{some if 0 < counted.rows < len(train) else ''}"
        )
        began = time.monotonic()


def _first_metrics(metrics: Mapping[str, Any]) -> str:
    numbers = [(k, v) for k, v in metrics.items() if isinstance(v, float) and not k.endswith("_se")]
    return "".join(f"{name} {value:.3f} " for name, value in numbers[:1])


def yardsticks(
    folder: Path, metrics: Mapping[str, Any], metric: str, *, larger: bool, values: Sequence[float]
) -> list[dict[str, Any]]:
    """The methods of a run beside its network, the best first; none without a yardstick.

    Args:
        metrics: Of the network.
        metric: The one that decides.
        larger: Whether a larger one is better.
        values: The network's score of each validation row.

    Returns:
        For each: name, rows, seconds, metric and its value, and how the network differs by the mean
        score of a row, ``credit``: difference, low, high and p of the paired bootstrap.
    """
    try:
        methods: Iterable[Mapping[str, Any]] = read_results(
            folder / "eval" / f"{_NAME}.json", "methods"
        )["methods"]
    except DataError:
        return []
    beside = []
    for method in methods:
        name = metric if metric in method["metrics"] else ""
        if not name or len(method["values"]) != len(values):
            continue
        difference = paired(
            lambda given, _: float(np.mean(given)),
            np.array(method["values"]),
            np.array(values),
            np.zeros(len(values)),
            0,
        )
        kept = {key: method[key] for key in ("name", "rows", "seconds", "credit")}
        beside.append({**kept, "metric": name, "value": method["metrics"][name], **difference})
    return sorted(beside, key=lambda one: one["value"], reverse=larger)
