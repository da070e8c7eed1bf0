"""The yardstick of a finetuning: what counting gives on the same rows.

It is made once for the same rows and the same task, and kept in ``eval/yardstick.json``; a resumed
run and the other runs of ``--seeds`` and ``--grid`` take it from there. ``plmctl eval`` shows it
beside the finetuned folder, or makes one for its own rows.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plmctl.counting.rows import drawn
from plmctl.errors import DataError, PlmError, Preempted
from plmctl.formatting import format_value
from plmctl.metrics.deciding import counted_metric
from plmctl.metrics.statistics import paired
from plmctl.run.display import say
from plmctl.run.folder import read_results, write_results

if TYPE_CHECKING:
    from plmctl.corpus.labelled import Row
    from plmctl.tasks.base import Answer, ScoredConfig, Task, TaskExamples

_NAME = "yardstick"

Methods = list[dict[str, Any]]
"""What each method gives: name, rows, seconds, metrics, and the score of each validation row."""

WORTH_IT = (
    "is a network worth it? finetune also says what counting gives on your rows: "
    "plmctl docs worth-it"
)


def keep_yardstick(
    folder: Path,
    task: Task[ScoredConfig],
    labels: tuple[str, ...],
    rows: tuple[Sequence[Row], Sequence[Row]],
    examples: TaskExamples[ScoredConfig],
    hashes: Mapping[str, str | None],
    metric: str | None,
) -> None:
    """Make what counting gives, unless it is there; a line says why there is none.

    Args:
        folder: Of the run.
        rows: Training rows, and validation rows.
        examples: The validation rows, which score the answers.
        hashes: Of all rows as ``data``, of these validation rows as ``valid``.
        metric: The one that is said, as ``counted_metric`` takes it.
    """
    made_of = _made_of(task, hashes)
    several = folder.parent.parent if folder.name.startswith("seed=") else None
    with _one_at_a_time(several):
        others = several.glob(f"*/seed=*/eval/{_NAME}.json") if several else ()
        kept = (_read(path, made_of) for path in (_path(folder), *others))
        methods = next(filter(None, kept), []) or count(task, labels, rows, examples, metric)
        if methods:
            write_results(folder, _NAME, {"kind": _NAME, "made_of": made_of, "methods": methods})
        else:
            _path(folder).unlink(missing_ok=True)  # of other rows


def _path(folder: Path) -> Path:
    return folder / "eval" / f"{_NAME}.json"


def _made_of(task: Task[ScoredConfig], hashes: Mapping[str, str | None]) -> dict[str, Any]:
    own = task.config.model_dump(mode="json", exclude={"baseline"})
    return {"rows": hashes["data"], "valid": hashes["valid"], "task": own}


@contextmanager
def _one_at_a_time(several: Path | None) -> Iterator[None]:
    """Let parallel runs wait for each other: the second takes what the first has made.

    Args:
        several: The folder of the runs; None: the run is alone.
    """
    if several is None:
        yield
        return
    with (several / f".{_NAME}").open("w") as file:
        with suppress(OSError):  # a file system without locks: then each makes its own
            fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def count(
    task: Task[ScoredConfig],
    labels: tuple[str, ...],
    rows: tuple[Sequence[Row], Sequence[Row]],
    examples: TaskExamples[ScoredConfig],
    metric: str | None,
) -> Methods:
    """The results of each method, as far as they succeed; a line says what does not, and why.

    Args:
        rows: Training rows, and the rows of ``examples``.
        metric: As for ``keep_yardstick``.
    """
    methods: Methods = []
    why = ""
    try:
        for method in _each(task, labels, rows, examples, metric):
            methods.append(method)
    except Preempted:
        raise
    except PlmError as error:
        why = error.message
    except Exception as error:  # of scikit-learn on odd rows: a run does not need a yardstick
        why = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    if why:
        say(f"no {'further ' if methods else ''}yardstick: {why}")
    return methods


def _each(
    task: Task[ScoredConfig],
    labels: tuple[str, ...],
    rows: tuple[Sequence[Row], Sequence[Row]],
    examples: TaskExamples[ScoredConfig],
    metric: str | None,
) -> Iterator[dict[str, Any]]:
    train, valid = rows
    began = time.monotonic()
    for counted in task.count(drawn(train), labels):
        answers: list[Answer] = counted.answers(valid, examples)
        metrics = examples.compute_metrics(answers)
        credit, values = examples.per_example_scores(answers)
        seconds = time.monotonic() - began
        shown = counted_metric(metric, metrics)
        some = f" (learned from {counted.rows:,} of {len(train):,} rows)"
        say(
            f"{counted.name}: {shown} {format_value(metrics[shown])} in {seconds:.1f} s"
            f"{some if 0 < counted.rows < len(train) else ''}"
        )
        yield {
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
        began = time.monotonic()


def kept_methods(
    folder: Path, task: Task[ScoredConfig], hashes: Mapping[str, str | None]
) -> Methods:
    """What ``keep_yardstick`` has kept in a run folder for these rows.

    Returns:
        Nothing if there is nothing, if it is damaged, or of other rows.
    """
    return _read(_path(folder), _made_of(task, hashes))


def methods_beside(run: Path) -> dict[str, dict[str, float]]:
    """The metrics of each method, by its name, of a finished run; empty if it counted nothing."""
    return {one["name"]: one["metrics"] for one in _read(_path(run))}


def _read(path: Path, made_of: Mapping[str, Any] | None = None) -> Methods:
    with suppress(DataError):
        document = read_results(path, "made_of", "methods")
        if made_of in (None, document["made_of"]):
            return [one for one in document["methods"] if one.keys() >= _KEYS]
    return []


_KEYS = {"name", "rows", "seconds", "metrics", "credit", "values"}


def beside_network(
    methods: Methods, metric: str, *, larger: bool, values: Sequence[float]
) -> list[dict[str, Any]]:
    """The methods beside the network, the best first.

    Args:
        metric: The one that decides.
        larger: Whether a larger one is better.
        values: The network's score of each validation row.

    Returns:
        For each: name, rows, seconds, metric and its value, and how the network differs by the mean
        score of a row, ``credit``: difference, low, high and p of the paired bootstrap.
    """
    beside = []
    for method in methods:
        if metric not in method["metrics"] or len(method["values"]) != len(values):
            continue
        difference = paired(
            lambda given, _: float(np.mean(given)),
            np.array(method["values"]),
            np.array(values),
            np.zeros(len(values)),
            0,
        )
        kept = {key: method[key] for key in ("name", "rows", "seconds", "credit")}
        beside.append({**kept, "metric": metric, "value": method["metrics"][metric], **difference})
    return sorted(beside, key=lambda one: one["value"], reverse=larger)
