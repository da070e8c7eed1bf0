"""The labels of rows: one name, several names, or a number."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plmctl.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    from plmctl.corpus.tables import Row

_SHOWN = 20


def text(row: Row, column: str) -> str:
    """What a column says, as text.

    Raises:
        DataError: No such column, or a list in it.
    """
    value = row.cell(column)
    if isinstance(value, list | dict):
        raise DataError(
            f"{row.origin}: column {column!r} holds a {type(value).__name__}, not a text"
        )
    return str(value)


def one(row: Row, column: str) -> str:
    """The one label of a row.

    Raises:
        DataError: No such column, nothing in it, or several labels.
    """
    value = "" if row.values.get(column, "") is None else row.cell(column)
    if isinstance(value, list | dict):
        raise DataError(
            f"{row.origin}: column {column!r} holds a {type(value).__name__}, not one label",
            "rows with several labels: task.problem=multi_label",
        )
    if not str(value).strip():
        raise DataError(
            f"{row.origin}: column {column!r} is empty; expected a label",
            "to leave rows without a label out: task.unlabelled=drop",
        )
    return str(value)


def several(row: Row, column: str, separator: str) -> tuple[str, ...]:
    """The labels of a row, none among them: a list, or names with a separator between them.

    Raises:
        DataError: No such column.
    """
    value = row.cell(column)
    names = value if isinstance(value, list) else str(value).split(separator)
    return tuple(dict.fromkeys(name for name in (str(n).strip() for n in names) if name))


def number(row: Row, column: str) -> float:
    """The number of a row.

    Raises:
        DataError: No such column, or something else in it.
    """
    value = row.cell(column)
    try:
        found = math.nan if isinstance(value, bool | list | dict) else float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise DataError(
            f"{row.origin}: column {column!r}: {value!r} is no number; "
            "regression expects one such as 3.8",
            "labels by name: leave task.problem out",
        )
    return found


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sorted names; numbers in numeric order."""
    found = set(names)
    numeric = all(_is_whole(name) for name in found)
    return tuple(sorted(found, key=int if numeric else str))


def positive(asked: str | Sequence[str] | None, labels: Sequence[str]) -> str | None:
    """The label that F1 is of: the first of those asked for that there is; None if none was.

    Raises:
        ConfigError: None of them is a label.
    """
    if asked is None:
        return None
    wanted = [asked] if isinstance(asked, str) else list(asked)
    for name in wanted:
        if name in labels:
            return name
    known = nearest(wanted[0], labels) if wanted else ""
    raise ConfigError(f"task.positive: no label {', '.join(map(repr, wanted))}{known}")


def number_of(name: str, ids: Mapping[str, int], row: Row, column: str) -> int:
    """A label's id.

    Raises:
        DataError: It is not among the training labels.
    """
    if name not in ids:
        raise DataError(
            f"{row.origin}: column {column!r}: label {name!r} is not among the training labels: "
            f"{listed(ids)}",
            "mend the row, or add training rows of that label",
        )
    return ids[name]


def listed(names: Iterable[str]) -> str:
    """Names for a message, not all of very many."""
    known = list(names)
    more = f", and {len(known) - _SHOWN:,} more" if len(known) > _SHOWN else ""
    return ", ".join(known[:_SHOWN]) + more


def found(config: Any, rows: Sequence[Row]) -> tuple[str, ...]:
    """The label names of training rows, in order; none for regression.

    Args:
        config: Of the task ``classification``.
        rows: Training rows.

    Raises:
        DataError: A row without a label, or too few labels.
    """
    if config.problem == "regression":
        return ()
    if config.problem == "multi_label":
        names = {name for row in rows for name in several(row, config.label, config.separator)}
    else:
        names = {one(row, config.label) for row in rows}
    if len(names) < (1 if config.problem == "multi_label" else 2):
        raise DataError(
            f"the training rows have one label only, {next(iter(names), 'none')!r}",
            "classification needs two labels or more",
        )
    return in_order(names)


def targets(config: Any, rows: Sequence[Row], labels: Sequence[str]) -> NDArray[Any]:
    """[N] label ids, [N, C] labels as 0 and 1, or [N] numbers.

    Args:
        config: Of the task ``classification``.
        rows: N of them.
        labels: By id; C of them.

    Raises:
        DataError: A label that the training rows do not have, or one that is no number.
    """
    ids = {name: place for place, name in enumerate(labels)}
    if config.problem == "regression":
        numbers = [number(row, config.label) for row in rows]
        return np.array(numbers, dtype=np.float32)
    if config.problem == "single_label":
        names = [one(row, config.label) for row in rows]
        found = [
            number_of(name, ids, row, config.label) for name, row in zip(names, rows, strict=True)
        ]
        return np.array(found, dtype=np.int64)
    there = np.zeros((len(rows), len(labels)), dtype=np.float32)
    for place, row in enumerate(rows):
        for name in several(row, config.label, config.separator):
            there[place, number_of(name, ids, row, config.label)] = 1
    return there


def class_weights(
    asked: str | Mapping[str, float], targets: NDArray[np.int64], labels: Sequence[str]
) -> NDArray[np.float32]:
    """What a target of each class counts for.

    Args:
        asked: "balanced": N / (C * targets of the class), whose mean over the N targets is 1; or
            by label, 1 for those that are not named.
        targets: [N] label ids.
        labels: By id.

    Returns:
        [C].

    Raises:
        ConfigError: A label that there is not.
    """
    if isinstance(asked, Mapping):
        return _named(asked, labels)
    counts = np.bincount(targets, minlength=len(labels))
    return (len(targets) / (len(labels) * np.maximum(counts, 1))).astype(np.float32)


def label_weights(
    asked: str | Mapping[str, float], targets: NDArray[np.float32], labels: Sequence[str]
) -> NDArray[np.float32]:
    """What the two targets of each label count for, where a row may have several labels.

    Args:
        asked: "balanced": as ``class_weights``, label by label; or by label, the weight of the
            rows that have it.
        targets: [N, C], 1 where a row has the label.
        labels: By id.

    Returns:
        [C, 2]: the label is absent, it is there.

    Raises:
        ConfigError: A label that there is not.
    """
    if isinstance(asked, Mapping):
        there = _named(asked, labels)
        return np.stack([np.ones_like(there), there], axis=1)
    having = targets.sum(0)
    counts = np.stack([len(targets) - having, having], axis=1)
    weights: NDArray[np.float64] = len(targets) / (2 * np.maximum(counts, 1))
    return weights.astype(np.float32)


def _named(asked: Mapping[str, float], labels: Sequence[str]) -> NDArray[np.float32]:
    for name in asked:
        if name not in labels:
            raise ConfigError(f"task.class_weights: no label {name!r}{nearest(name, labels)}")
    return np.array([asked.get(label, 1.0) for label in labels], dtype=np.float32)


def _is_whole(name: str) -> bool:
    digits = name.removeprefix("-")
    return digits.isascii() and digits.isdigit()
