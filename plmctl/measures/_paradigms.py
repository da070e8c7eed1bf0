"""Items of a measure that belong to paradigms and to groups, and the accuracy on each of them.

A paradigm is what papers report one accuracy for (BLiMP has 67, a file each). A group is a larger
kind, such as one of BLiMP's 12 phenomena. ``minimal_pairs`` and ``ranked_completions`` share this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from plmctl.config.base import MeasureConfig, Text
from plmctl.corpus.labelled import Row
from plmctl.errors import DataError
from plmctl.evaluation.prompting import Template, column_text, fill_template
from plmctl.metrics.statistics import mean_and_error


class ParadigmConfig(MeasureConfig):
    """A measure whose items belong to paradigms."""

    data: tuple[Text, ...] = Field(min_length=1)
    """Items: jsonl, csv, tsv or parquet, as the data are published."""
    paradigm: Template = "{file}"
    """The paradigm of an item: {file} is the name of its file (of a file `data.tsv`, its folder),
    and {column} the value of a column, as in `"{UID}"`."""
    groups: tuple[Text, ...] = ()
    """Columns of larger groups, such as BLiMP's `linguistics_term`: each of their values gets an
    accuracy over all its items."""
    rename: dict[str, str] = {}
    """Other names for paradigms and groups, as in `s-selection: argument_structure`: two of the
    same new name are one."""


@dataclass
class Paradigms:
    """The paradigm and the groups of each of N items.

    Attributes:
        names: [N] paradigms.
        groups: By column, [N] values.
    """

    names: list[str]
    groups: dict[str, list[str]]

    @classmethod
    def of(cls, config: ParadigmConfig) -> Paradigms:
        """No item yet."""
        return cls([], {column: [] for column in config.groups})

    def add(self, row: Row, file: str, config: ParadigmConfig) -> None:
        """Add an item.

        Raises:
            DataError: A column is missing.
        """
        name = fill_template(config.paradigm, {**row.values, "file": file}, row.origin)
        self.names.append(config.rename.get(name, name))
        for column, values in self.groups.items():
            value = column_text(row.values, column, row.origin)
            values.append(config.rename.get(value, value))

    def masks(self) -> dict[str, NDArray[np.bool_]]:
        """For each paradigm, in the order of the data: [N] whether an item belongs to it."""
        return _masks(self.names)

    def results(self, name: str, hits: NDArray[np.bool_]) -> dict[str, Any]:
        """``name`` over all items, its unweighted mean over paradigms, and the groups' means.

        Args:
            name: Of the accuracy, such as ``accuracy``.
            hits: [N] whether each item is right.

        Returns:
            ``name`` and ``name_se``; ``name/macro``: the unweighted mean of the paradigms'; and for
            each column of groups ``name/COLUMN``: the unweighted mean of its groups'. Each with its
            standard error.
        """
        results: dict[str, Any] = {}
        results[name], results[error_name(name)] = mean_and_error(hits.astype(float).tolist())
        several = {"macro": self.names, **self.groups}
        for kind, values in several.items():
            key = f"{name}/{kind}"
            rows = [
                mean_and_error(hits[mask].astype(float).tolist())
                for mask in _masks(values).values()
            ]
            results[key] = sum(mean for mean, _ in rows) / len(rows)
            errors = [error for _, error in rows if error is not None]
            results[error_name(key)] = (
                math.sqrt(sum(error**2 for error in errors)) / len(rows)
                if len(errors) == len(rows)
                else None
            )
        return results

    def group_rows(self, hits: NDArray[np.bool_]) -> list[dict[str, Any]]:
        """A row per group: its column, its name, its accuracy over all its items, their number."""
        rows = []
        for column, values in self.groups.items():
            for group, mask in _masks(values).items():
                accuracy, error = mean_and_error(hits[mask].astype(float).tolist())
                rows.append(
                    {
                        "group": group,
                        "column": column,
                        "accuracy": accuracy,
                        "accuracy_se": error,
                        "items": int(mask.sum()),
                    }
                )
        return rows

    def chosen(self, texts: Sequence[str]) -> Mapping[str, list[str]]:
        """[N] texts by paradigm, each in the order of the data."""
        by_paradigm: dict[str, list[str]] = {}
        for name, text in zip(self.names, texts, strict=True):
            by_paradigm.setdefault(name, []).append(text)
        return by_paradigm


def error_name(name: str) -> str:
    """The key of the standard error of an accuracy: ``accuracy_se/token`` of ``accuracy/token``."""
    return name.replace("accuracy", "accuracy_se", 1)


def file_names(paths: Sequence[str]) -> list[str]:
    """A name for each file: without folder and ending; a path where two have the same name."""
    names: list[str] = []
    for path in paths:
        stem = Path(path).name.split(".")[0]
        name = Path(path).parent.name if stem == "data" else stem
        names.append(path if name in names else name)
    return names


def refuse_no_items(name: str, count: int) -> None:
    """Refuse a file without items.

    Raises:
        DataError: It has none.
    """
    if not count:
        raise DataError(f"{name} contains no pairs", "write one JSON object per line")


def _masks(values: Sequence[str]) -> dict[str, NDArray[np.bool_]]:
    names, index = list(dict.fromkeys(values)), np.array(values)
    return {name: index == name for name in names}
