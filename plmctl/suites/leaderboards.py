"""The documents that leaderboards take, from scores by column and predictions by task or part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from plmctl.suites.base import Suite

Scores = Mapping[str, float]
"""By column, in per cent."""
Predictions = Mapping[str, Mapping[str, Sequence[Any]]]
"""By task or part, then by file or paradigm: texts that a model prefers, numbers of labels, or the
fields of an answer, in the order of the rows."""


def collated(suite: Suite, scores: Scores, predictions: Predictions) -> dict[str, Any]:
    """BabyLM's: ``{part: {paradigm: {"predictions": [...]}}}``; the tasks are under ``glue``."""
    parts = {part.name: part for part in suite.parts}
    document: dict[str, Any] = {}
    for name, of in predictions.items():
        if name in parts and parts[name].asked_for:  # not among the leaderboard's parts
            continue
        official = (parts[name].official or name) if name in parts else "glue"
        part = document.setdefault(official, {})
        for paradigm, several in of.items():
            answers = [
                {"id": number, **given}
                if isinstance(given, Mapping)
                else {"id": f"{paradigm}_{number}", "pred": given}
                for number, given in enumerate(several)
            ]
            part[paradigm] = {"predictions": answers}
    return document


def accuracies(suite: Suite, scores: Scores, predictions: Predictions) -> dict[str, Any]:
    """The Chinese BabyLM's: accuracies from 0 to 1 by the official names of parts and tasks."""
    return {
        column.task: {"accuracy": scores[column.name] / 100}
        for column in suite.columns
        if column.name in scores
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
