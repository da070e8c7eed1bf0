"""The base class of suites: tasks, a recipe per task and family, and published results.

A suite is a declaration; ``commands.evaluate_suite`` runs it.
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from plmctl import registry


@dataclass(frozen=True)
class SuiteTask:
    """One task.

    Attributes:
        name: Its folder in a data directory, and in the suite's run folder.
        hub: Its data on the Hub.
        rows: The content of its files, in words.
        names: Stems of its two files, besides train and dev, as (train, dev).
        places: Other places of its two files in a data directory, without endings, as (train, dev);
            the first of them is named if they are missing.
        also: Further labelled files to score, by stem, and the data on the Hub for each; "": only
            scored if the file exists.
        asked_for: Run only if the user names it: not a part of the suite's score.
        optional: Run only if the user names it, or its files are in the data directory.
    """

    name: str
    hub: str
    rows: str
    names: tuple[tuple[str, str], ...] = ()
    places: tuple[tuple[str, str], ...] = ()
    also: Mapping[str, str] = field(default_factory=dict)
    asked_for: bool = False
    optional: bool = False

    @property
    def stems(self) -> tuple[tuple[str, str], ...]:
        """Where its two files may be in a data directory, without endings."""
        own = [
            (f"{self.name}/{train}", f"{self.name}/{dev}")
            for train, dev in (("train", "dev"), *self.names)
        ]
        return (*self.places, *own)


@dataclass(frozen=True)
class SuitePart:
    """A part that is scored without finetuning.

    Attributes:
        name: Its folder in the suite's run folder.
        path: The shipped config of its measure, under ``configs/eval``.
        files: Where its files may be in a data directory, as patterns: the first that matches
            anything counts.
        source: Where users get them.
        rows: Their content, in words.
        asked_for: Run only if the user names it.
        refused: By family that it does not support, the reason.
    """

    name: str
    path: str
    files: tuple[str, ...]
    source: str
    rows: str
    asked_for: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Column:
    """One metric of the table.

    Attributes:
        name: Its short name, as in papers.
        task: The task that it measures.
        metric: Its name among the task's results.
        what: The metric, in words.
        scale: Factor to per cent.
        rows: The rows that are scored: those of validation, or a file of ``also``.
    """

    name: str
    task: str
    metric: str
    what: str
    scale: float = 100.0
    rows: str = "dev"


@dataclass(frozen=True)
class Average:
    """A mean over columns.

    Attributes:
        name: Its name in the table.
        groups: Names of columns; each group is averaged first.
        what: Its definition and source.
    """

    name: str
    groups: tuple[tuple[str, ...], ...]
    what: str

    def of(self, values: Mapping[str, float]) -> float | None:
        """The mean; None if a column has no value."""
        if not all(name in values for group in self.groups for name in group):
            return None
        means = [sum(values[name] for name in group) / len(group) for group in self.groups]
        return sum(means) / len(means)

    def error(self, errors: Mapping[str, float]) -> float | None:
        """Its standard error from those of the columns.

        Groups are measured on different rows, so that their errors are independent. The metrics of
        one group are measured on the same rows; their errors are treated as fully correlated, which
        is the worst case.
        """
        mean = self.of(errors)
        if mean is None:
            return None
        within = [sum(errors[name] for name in group) / len(group) for group in self.groups]
        return math.sqrt(sum(error**2 for error in within)) / len(within)


@dataclass(frozen=True)
class Recipe:
    """How one task is finetuned by one family.

    Attributes:
        path: The shipped config, under ``configs/finetune``.
        changes: ``KEY=VALUE`` that differ for this family.
    """

    path: str
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Published:
    """Published results of a model.

    Attributes:
        model: Its name.
        family: Its family in plmctl.
        split: The rows of the results, dev or test; ours are on dev.
        source: The publication.
        scores: By column, in per cent.
        shape: Layers and hidden size, if these identify the size.
    """

    model: str
    family: str
    split: str
    source: str
    scores: Mapping[str, float]
    shape: tuple[int, int] | None = None


class Suite(ABC):
    """A suite of tasks."""

    title: ClassVar[str]
    """In words, with its paper."""
    tasks: ClassVar[tuple[SuiteTask, ...]]
    """The tasks that models are finetuned on, in the order of the table."""
    parts: ClassVar[tuple[SuitePart, ...]] = ()
    """What is scored without finetuning, in the order of the table."""
    columns: ClassVar[tuple[Column, ...]]
    """The metrics of the table."""
    averages: ClassVar[tuple[Average, ...]]
    """The means over columns."""
    recipes: ClassVar[Mapping[str, Mapping[str, Recipe]]]
    """By family and task; a family does not run the tasks that it has no recipe for."""
    published: ClassVar[tuple[Published, ...]]
    """Published results, in per cent."""

    def beside(self, family: str) -> tuple[Published, ...]:
        """The published results to show beside a model of a family: those of its family."""
        return tuple(row for row in self.published if row.family == family)

    def nearest(
        self, family: str, shape: tuple[int, int] | None, count: int
    ) -> tuple[Published, ...]:
        """Those to show beside a model: those of the same size first, then those on dev rows."""
        rows = list(self.beside(family))
        same = shape is not None
        rows.sort(key=lambda row: (not (same and row.shape == shape), row.split != "dev"))
        return tuple(rows[:count])

    def submission(
        self, scores: Mapping[str, float], predictions: Predictions
    ) -> Mapping[str, Any] | None:
        """The document that the suite's leaderboard takes; None: there is none.

        Args:
            scores: By column, in per cent.
            predictions: By task or part: its predictions by file or paradigm.
        """
        return None


Predictions = Mapping[str, Mapping[str, Sequence[str | int]]]
"""Texts that a model prefers, or numbers of labels, in the order of the rows."""


def get_suite(name: str) -> Suite:
    """The suite of that name.

    Raises:
        ConfigError: There is none; the message has the nearest name.
    """
    return registry.member("suites", name, Suite)()


def recipes(folder: str, tasks: Iterable[str], *changes: str) -> dict[str, Recipe]:
    """A recipe for each task.

    Args:
        folder: Under ``configs/finetune``; ``folder/TASK.yaml`` is the recipe.
        tasks: Their names.
        *changes: ``KEY=VALUE`` that differ for the family in all of them.
    """
    return {task: Recipe(f"{folder}/{task}.yaml".lstrip("/"), changes) for task in tasks}
