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
AllSeries = Mapping[str, Sequence[Sequence[Any]]]
"""By part at checkpoints, for each of its measures: the ``AtCheckpoint`` of each checkpoint."""


FAST = (
    "blimp",
    "blimp_supplement",
    "ewok",
    "entity_tracking_filtered",
    "global_piqa_parallel",
    "global_piqa_nonparallel",
    "reading",
)
"""BabyLM's names of the measures of ``configs/eval/babylm/fast.yaml``, in their order."""


def collated(
    suite: Suite, scores: Scores, predictions: Predictions, series: AllSeries
) -> dict[str, Any]:
    """BabyLM's: ``{part: {paradigm: {"predictions": [...]}}}``; the tasks are under ``glue``.

    The parts at checkpoints are ``fast_eval_results``, ``aoa_surprisals`` and the score ``aoa``.
    """
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
    if "aoa" in series:
        (checkpoints,) = series["aoa"]
        document["aoa_surprisals"] = _surprisals(checkpoints)
    if "AoA" in scores:
        document["aoa"] = {"aoa": scores["AoA"] / 100}
    if "fast" in series:
        document["fast_eval_results"] = {
            name: [_fast_scores(name, one.results) for one in of]
            for name, of in zip(FAST, series["fast"], strict=True)
        }
    return document


def _surprisals(checkpoints: Sequence[Any]) -> dict[str, Any]:
    """A row per checkpoint, word and context."""
    rows = [
        {"step": one.name, "word_count": one.words, **item}
        for one in checkpoints
        for item in one.predictions["surprisals"]
    ]
    return {"metadata": {"checkpoints": len(checkpoints)}, "results": rows}


def _fast_scores(name: str, results: Mapping[str, Any]) -> dict[str, float]:
    """The scores of a checkpoint, from 0 to 1, by paradigm."""
    if name == "reading":
        return {"spr": results["self_paced"], "rt": results["eye_tracking"]}
    if name.startswith("global_piqa"):
        return {name: results["accuracy"]}
    return {row["paradigm"]: row["accuracy"] for row in results["paradigms"]}


def accuracies(
    suite: Suite, scores: Scores, predictions: Predictions, series: AllSeries
) -> dict[str, Any]:
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


_LEADERBOARDS: Mapping[str, Callable[[Suite, Scores, Predictions, AllSeries], dict[str, Any]]] = {
    "babylm": collated,
    "chinese_babylm": accuracies,
}


def submission(
    suite: Suite, scores: Scores, predictions: Predictions, series: AllSeries
) -> dict[str, Any] | None:
    """The document that the suite's leaderboard takes; None: there is none."""
    if suite.leaderboard is None:
        return None
    return _LEADERBOARDS[suite.leaderboard](suite, scores, predictions, series)
