"""What the YAML file of a suite says: tasks, their recipes, and published results.

``commands.evaluate_suite`` runs it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator, ConfigDict, TypeAdapter

from plmctl.errors import ConfigError, nearest


def _group(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _mean(value: Any) -> Any:
    return sum(value) / len(value) if isinstance(value, list) else value


@dataclass(frozen=True)
class SuiteTask:
    """One task.

    Attributes:
        name: Its folder in a data directory, and in the suite's run folder.
        hub: Its place on the Hub; empty: ``source`` says where users get its files.
        rows: The content of its files, in words.
        ending: Of its files, as the message about missing ones has them.
        names: Stems of its two files, besides train and dev, as (train, dev).
        places: Other places of its two files in a data directory, without their endings ``.train``
            and ``.valid``, with {name} for the task; the first is named if they are missing.
        also: Further labelled files to score, by stem, and the data on the Hub for each; "": only
            scored if the file exists.
        asked_for: Run only if the user names it: not a part of the suite's score.
        optional: Run only if the user names it, or its files are in the data directory.
        items: Rows of the official validation set; None: any number.
        hidden: The same; its rows were kept from entrants, and a line says that they are missing.
        folder: Its folder in a data directory, if its name is another; ".": the directory itself.
    """

    name: str
    hub: str = ""
    rows: str = ""
    source: str = ""
    ending: str = ".jsonl"
    items: int | None = None
    names: tuple[tuple[str, str], ...] = ()
    places: tuple[str, ...] = ()
    also: Mapping[str, str] = field(default_factory=dict)
    asked_for: bool = False
    optional: bool = False
    hidden: bool = False
    folder: str | None = None

    @property
    def origin(self) -> str:
        """The place that users get its files from."""
        return f"on the Hub: {self.hub}" if self.hub else f"from {self.source}"

    @property
    def stems(self) -> tuple[tuple[str, str], ...]:
        """Paths that its two files may have in a data directory, without endings."""
        folder = self.folder or self.name
        own = [
            (f"{folder}/{train}", f"{folder}/{dev}")
            for train, dev in (("train", "dev"), *self.names)
        ]
        places = (place.format(name=self.name) for place in self.places)
        return (*((f"{place}.train", f"{place}.valid") for place in places), *own)


@dataclass(frozen=True)
class SuitePart:
    """A part that is scored without finetuning.

    Attributes:
        name: Its folder in the suite's run folder.
        path: The shipped config of its measure, under ``configs/eval``.
        files: Where its files may be in a data directory, as patterns: the first that matches
            anything counts. Empty: those of the config, below its ``evaluation_data``.
        source: Where users get them.
        rows: Their content, in words.
        asked_for: Run only if the user names it.
        scores_parts: Whether it scores parts of texts, which needs ``Family.SCORES_PARTS``.
        changes: ``KEY=VALUE`` that differ from the config.
        items: Items of the official set; None: any number.
        official: Its name on the leaderboard; None: its own.
        at_checkpoints: Score every checkpoint of the model's run, not the model.
        hidden: As of a task.
        older: A pattern that files of an earlier set have, which are refused; empty: none is known.
        instead: What to do with them.
    """

    name: str
    path: str
    source: str
    rows: str
    files: tuple[str, ...] = ()
    asked_for: bool = False
    scores_parts: bool = False
    changes: tuple[str, ...] = ()
    items: int | None = None
    official: str | None = None
    at_checkpoints: bool = False
    hidden: bool = False
    older: str = ""
    instead: str = ""


@dataclass(frozen=True)
class Reported:
    """Tasks that only the organisers' program scores, and whose scores a user may put beside ours.

    Attributes:
        file: Its place in a data directory: JSON, ``{NAME: {METRIC: score from 0 to 1}}``.
        source: How users make it.
    """

    names: tuple[str, ...]
    file: str
    metric: str
    source: str


@dataclass(frozen=True)
class Column:
    """One metric of the table.

    Attributes:
        name: Its short name, as in papers.
        metric: Its name among the task's results.
        scale: Factor to per cent.
        rows: The rows that are scored: those of validation, or a file of ``also``.
        digits: After the point, in the table.
    """

    name: str
    task: str
    metric: str
    what: str
    scale: float = 100.0
    rows: str = "dev"
    digits: int = 1


@dataclass(frozen=True)
class Average:
    """A mean over columns.

    Attributes:
        groups: Names of columns and of averages before it; each group is averaged first. One name
            is a separate group.
        zeros: Whether the leaderboard counts what is missing as 0.
    """

    name: str
    groups: tuple[Annotated[tuple[str, ...], BeforeValidator(_group)], ...]
    what: str
    zeros: bool = False

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
    """How tasks are finetuned.

    Attributes:
        by: A family; or what families without a recipe of their own answer by (``Family.ANSWERS``).
        path: The shipped config, under ``configs/finetune``, with {task} for the task.
        tasks: Their names; empty: all.
        changes: ``KEY=VALUE`` that differ from the config, with {task} for the task.
    """

    by: str
    path: str
    tasks: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()

    def of(self, task: str) -> Recipe:
        """The recipe of one task."""
        changes = tuple(change.replace("{task}", task) for change in self.changes)
        return replace(self, path=self.path.format(task=task), changes=changes)


@dataclass(frozen=True)
class Published:
    """Published results of a model.

    Attributes:
        split: The rows of the results, dev or test; ours are on dev.
        scores: By column, in per cent; of several numbers the mean.
        shape: Layers and hidden size, if these identify the size.
    """

    model: str
    family: str
    split: str
    source: str
    scores: Mapping[str, Annotated[float, BeforeValidator(_mean)]]
    shape: tuple[int, int] | None = None


@dataclass(frozen=True)
class LanguageTable:
    """Published results of one column by language.

    Attributes:
        models: The family of each model, in the order of the scores.
        scores: By the language's code, in per cent; None: not published, or of a run that failed.
    """

    column: str
    source: str
    models: Mapping[str, str]
    scores: Mapping[str, tuple[float | None, ...]]


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A suite of tasks.

    Attributes:
        tasks: What models are finetuned on, in the order of the table.
        parts: What is scored without finetuning, in the order of the table.
        recipes: How tasks are finetuned; a family does not run the tasks that it has none for.
        published: Published results, in per cent.
        compares_all: Whether published results of all families are shown, not only of the model's.
        reported: What another program scores.
        leaderboard: Its name in ``leaderboards``, if one takes its predictions.
        partial: Whether tasks and parts without files are left out, with a line for each.
        languages: By its code, the data of a language that published results are on.
        tables: Published results by language, on test rows; see ``in_language``.
        notes: Lines below the table.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    title: str
    tasks: tuple[SuiteTask, ...] = ()
    parts: tuple[SuitePart, ...] = ()
    columns: tuple[Column, ...]
    averages: tuple[Average, ...] = ()
    recipes: tuple[Recipe, ...] = ()
    published: tuple[Published, ...] = ()
    compares_all: bool = False
    reported: Reported | None = None
    leaderboard: str | None = None
    partial: bool = False
    languages: Mapping[str, str] = field(default_factory=dict)
    tables: tuple[LanguageTable, ...] = ()
    notes: tuple[str, ...] = ()

    def in_language(self, code: str) -> Suite:
        """The suite beside the published results of one language."""
        of_model: dict[str, list[tuple[LanguageTable, float]]] = {}
        families: dict[str, str] = {}
        columns = {column.name for column in self.columns}
        for table in (table for table in self.tables if table.column in columns):
            scores = table.scores.get(code, (None,) * len(table.models))
            for (model, family), score in zip(table.models.items(), scores, strict=True):
                if score is not None:
                    of_model.setdefault(model, []).append((table, score))
                    families[model] = family
        rows = [
            Published(
                model,
                families[model],
                "test",
                "; ".join(dict.fromkeys(table.source for table, _ in of)),
                {table.column: score for table, score in of},
            )
            for model, of in of_model.items()
        ]
        return replace(self, published=(*self.published, *rows))

    def means(self, values: Mapping[str, float]) -> dict[str, float]:
        """The averages that the values determine, or that are among them."""
        known = dict(values)
        for average in self.averages:
            mean = average.of(known)
            if mean is not None:
                known[average.name] = mean
        return {one.name: known[one.name] for one in self.averages if one.name in known}

    def recipes_of(self, family: str, answers: Sequence[str]) -> dict[str, Recipe]:
        """The recipe of each task: those of the family, or else of how it answers.

        Args:
            answers: ``Family.ANSWERS``.
        """
        own = [one for one in self.recipes if one.by == family]
        own = own or [one for one in self.recipes if one.by in answers]
        names = [task.name for task in self.tasks]
        return {task: recipe.of(task) for recipe in own for task in recipe.tasks or names}

    def nearest(
        self, family: str, shape: tuple[int, int] | None, count: int
    ) -> tuple[Published, ...]:
        """The results to show beside a model: the same size first, then those on dev rows."""
        rows = list(self.beside(family))
        same = shape is not None
        rows.sort(key=lambda row: (not (same and row.shape == shape), row.split != "dev"))
        return tuple(rows[:count])

    def beside(self, family: str) -> tuple[Published, ...]:
        """The published results to show beside a model of a family, its own first."""
        if not self.compares_all:
            return tuple(row for row in self.published if row.family == family)
        return tuple(sorted(self.published, key=lambda row: row.family != family))


@cache
def suite_names() -> tuple[str, ...]:
    """The names of all suites, sorted."""
    entries = (entry.name for entry in files("plmctl.suites").iterdir())
    return tuple(sorted(one.removesuffix(".yaml") for one in entries if one.endswith(".yaml")))


@cache
def get_suite(name: str) -> Suite:
    """The suite of that name.

    Raises:
        ConfigError: There is none; the message has the nearest name.
    """
    if name not in suite_names():
        raise ConfigError(f"unknown suite {name!r}{nearest(name, suite_names())}")
    return TypeAdapter(Suite).validate_python({"name": name, **_document(name)})


def _document(name: str) -> dict[str, Any]:
    """The file of a suite. With ``extends`` it has what another has, and its own instead.

    A part or a task takes from the one of its name what it does not say itself; columns of what the
    suite does not have are left out.
    """
    text = files("plmctl.suites").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    own: dict[str, Any] = yaml.safe_load(text)
    if "extends" not in own:
        return own
    base = _document(own.pop("extends"))
    for key in ("parts", "tasks"):
        theirs = {one["name"]: one for one in base[key]}
        own[key] = [{**theirs.get(one["name"], {}), **one} for one in own.get(key, base[key])]
    names = {one["name"] for key in ("parts", "tasks") for one in own[key]}
    whole = {**base, **own}
    return {**whole, "columns": [one for one in whole["columns"] if one["task"] in names]}
