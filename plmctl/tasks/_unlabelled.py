"""Rows that nobody has told the label of: SNLI's -1, OCNLI's "-", and empty ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal

from plmctl.errors import DataError

if TYPE_CHECKING:
    from plmctl.corpus.tables import Row

Unlabelled = Literal["refuse", "drop", "keep"]

_MARKS = ("-", "-1")
_MISSING = object()


def is_labelled(row: Row, column: str, problem: str = "single_label") -> bool:
    """Whether a row says what its label is; where the column is not there, that is told later.

    Of several labels, none is an answer too; a number may be -1.
    """
    value = row.values.get(column, _MISSING)
    if value is None or problem == "multi_label":
        return value is not None
    said = str(value).strip()
    return said not in ("", "-") and (said != "-1" or problem == "regression")


def refuse_marks(rows: Sequence[Row], column: str, found: Collection[str]) -> None:
    """Refuse labels that stand for none in published data, before they are learnt as a class.

    -1 does so beside two or more classes, none of them below 0: of -1 and 1, or -2 to 2, it is one.

    Args:
        rows: Training rows.
        column: Of the label.
        found: All labels that they have.

    Raises:
        DataError: There is one: the first row with it, and how many.
    """
    others = set(found) - set(_MARKS)
    ambiguous = len(others) > 1 and not any(label.startswith("-") for label in others)
    for mark in _MARKS if ambiguous else _MARKS[:1]:
        if mark in found:
            having = [row for row in rows if str(row.values.get(column)) == mark]
            raise DataError(
                f"{having[0].origin}: column {column!r}: {mark!r}, which {len(having):,} training "
                "rows have, stands for no label in SNLI, OCNLI and test sets",
                "leave such rows out with `task.unlabelled=drop`; "
                "if it is a class, `task.unlabelled=keep`",
            )
