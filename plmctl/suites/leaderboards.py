"""The documents that leaderboards take, from scores by column and predictions by task or part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from plmctl.suites.base import Suite

Scores = Mapping[str, float]
"""By column, in per cent."""
Predictions = Mapping[str, Mapping[str, Sequence[str | int]]]
"""By task or part, then by file or paradigm: texts that a model prefers, or numbers of labels, in
the order of the rows."""

_NAMES = {"supplement": "blimp_supplement"}  # the official names of parts, where others


def collated(suite: Suite, scores: Scores, predictions: Predictions) -> dict[str, Any]:
    """BabyLM's: ``{part: {paradigm: {"predictions": [...]}}}``.

    The finetuned tasks are under ``glue``; MultiBLiMP is not among the leaderboard's parts.
    """
    tasks = [task.name for task in suite.tasks]
    document: dict[str, Any] = {}
    for name, of in predictions.items():
        if name == "multiblimp":
            continue
        part = document.setdefault("glue" if name in tasks else _NAMES.get(name, name), {})
        for paradigm, several in of.items():
            answers = [
                {"id": f"{paradigm}_{number}", "pred": given}
                for number, given in enumerate(several)
            ]
            part[paradigm] = {"predictions": answers}
    return document


def accuracies(suite: Suite, scores: Scores, predictions: Predictions) -> dict[str, Any]:
    """The Chinese BabyLM's: scores from 0 to 1 by the official names of parts and tasks.

    They are accuracies, and of the recordings of the brain mean correlations.
    """
    without = [part.name for part in suite.parts if part.asked_for]
    return {
        column.task: {metric: scores[column.name] / 100}
        for column in suite.columns
        if (metric := column.metric.partition("/")[0]) in ("accuracy", "mean")
        and column.name in scores
        and column.task not in without
    }


_LEADERBOARDS: Mapping[str, Callable[[Suite, Scores, Predictions], dict[str, Any]]] = {
    "babylm": collated,
    "chinese_babylm": accuracies,
}


def submission(suite: Suite, scores: Scores, predictions: Predictions) -> dict[str, Any] | None:
    """The document that the suite's leaderboard takes; None: there is none."""
    if suite.leaderboard is None:
        return None
    return _LEADERBOARDS[suite.leaderboard](suite, scores, predictions)
