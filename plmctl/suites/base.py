"""What a suite is: its tasks, the recipe of each for every family, and what papers report.

A suite is a declaration without code; ``plmctl.runs.suite`` runs it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from plmctl import registry


@dataclass(frozen=True)
class Suite:
    """A suite; see the attributes of its parts.

    Attributes:
        title: In words, with its paper.
        tasks: In the order of the table.
        columns: As above.
        averages: As above.
        recipes: By family and task; a task that a family lacks is left out for it.
        published: As above.
    """

    title: str
    tasks: tuple[SuiteTask, ...]
    columns: tuple[Column, ...]
    averages: tuple[Average, ...]
    recipes: Mapping[str, Mapping[str, Recipe]]
    published: tuple[Published, ...]

    def nearest(
        self, family: str, shape: tuple[int, int] | None, count: int
    ) -> tuple[Published, ...]:
        """The rows to set beside a model: of its family, its size first, then those of dev rows."""
        rows = [row for row in self.published if row.family == family]
        same = shape is not None
        rows.sort(key=lambda row: (not (same and row.shape == shape), row.split != "dev"))
        return tuple(rows[:count])


@dataclass(frozen=True)
class SuiteTask:
    """One task.

    Attributes:
        name: Its folder in a data directory, and in the suite's run folder.
        hub: What to download, as the Hub calls it.
        rows: What its files hold, in words.
        names: Stems of its two files, besides train and dev, as (train, dev).
        also: Further labelled files to score, by stem, and what the Hub has for each.
        asked_for: Run only where it is named: not a part of the suite's score.
    """

    name: str
    hub: str
    rows: str
    names: tuple[tuple[str, str], ...] = ()
    also: Mapping[str, str] = field(default_factory=dict)
    asked_for: bool = False

    @property
    def stems(self) -> tuple[tuple[str, str], ...]:
        """Names that its two files may have, without their ends."""
        return (("train", "dev"), *self.names)


@dataclass(frozen=True)
class Column:
    """One figure of the table.

    Attributes:
        name: Short, as papers head it.
        task: Whose it is.
        figure: Its name among the task's results.
        what: Which figure it is, in words.
        scale: To per cent.
        rows: Of which rows: those of validation, or a file of ``also``.
    """

    name: str
    task: str
    figure: str
    what: str
    scale: float = 100.0
    rows: str = "dev"


@dataclass(frozen=True)
class Average:
    """A mean over columns.

    Attributes:
        name: As the table has it.
        groups: Names of columns: those of a group are averaged first.
        what: Whose definition it is.
    """

    name: str
    groups: tuple[tuple[str, ...], ...]
    what: str

    def of(self, values: Mapping[str, float]) -> float | None:
        """The mean; None where a column has no value."""
        if not all(name in values for group in self.groups for name in group):
            return None
        means = [sum(values[name] for name in group) / len(group) for group in self.groups]
        return sum(means) / len(means)

    def error(self, errors: Mapping[str, float]) -> float | None:
        """Its standard error from those of the columns.

        Groups are of different rows, so that their errors are independent; the figures of one
        group are of the same rows, and are taken to err together, which is the worst case.
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
        path: Of the shipped config, under ``configs/finetune``.
        changes: ``KEY=VALUE`` that this family has otherwise.
    """

    path: str
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Published:
    """What was published of a model.

    Attributes:
        model: Its name.
        family: Of plmctl's.
        split: Which rows the figures are of, dev or test; ours are of dev.
        source: Where they stand.
        figures: By column, in per cent.
        shape: Layers and hidden size, where that tells the size.
    """

    model: str
    family: str
    split: str
    source: str
    figures: Mapping[str, float]
    shape: tuple[int, int] | None = None


def get_suite(name: str) -> Suite:
    """The suite of that name.

    Raises:
        ConfigError: There is none; the message has the nearest.
    """
    return cast(Suite, registry.load("suites", name).SUITE)


def recipes(folder: str, tasks: Iterable[str], *changes: str) -> dict[str, Recipe]:
    """A recipe for each task.

    Args:
        folder: Under ``configs/finetune``; ``folder/TASK.yaml`` is the recipe.
        tasks: Their names.
        *changes: What the family changes in all of them.
    """
    return {task: Recipe(f"{folder}/{task}.yaml".lstrip("/"), changes) for task in tasks}
