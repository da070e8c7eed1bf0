"""Templates: text with ``{column}`` where a row's value goes. Nothing in them is run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from plmctl.corpus.tables import Row
from plmctl.errors import DataError, nearest

_FIELD = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")


def checked(template: str) -> str:
    """A template as it is.

    Raises:
        ValueError: A brace that belongs to no field.
    """
    for found in _FIELD.finditer(template):
        if found[0] in ("{", "}"):
            raise ValueError(
                f"a lone {found[0]!r} at character {found.start() + 1}; a field is {{column}}, and "
                f"a brace of the text is doubled: {found[0] * 2}"
            )
    return template


Template = Annotated[str, AfterValidator(checked)]
"""A text with ``{column}`` for the value of a column; ``{{`` and ``}}`` are braces."""


def filled(template: str, values: Mapping[str, Any], origin: str) -> str:
    """The template with the values in their places.

    Args:
        template: See ``Template``.
        values: Text or numbers by column.
        origin: Where they are from, for errors: ``file:line``.

    Raises:
        DataError: There is no such column, nothing in it, or neither text nor a number.
    """

    def value_of(found: re.Match[str]) -> str:
        column = found[1]
        return found[0][0] if column is None else text_in(values, column, origin)

    return _FIELD.sub(value_of, template)


def text_in(values: Mapping[str, Any], column: str, origin: str) -> str:
    """What stands in a column, as text.

    Raises:
        DataError: As ``filled``.
    """
    value = cell(values, column, origin)
    if isinstance(value, (list, dict)):
        raise DataError(
            f"{origin}: column {column!r} holds a {type(value).__name__}, not text",
            "name a column of text or numbers",
        )
    return str(value)


def cell(values: Mapping[str, Any], column: str, origin: str) -> Any:
    """What stands in a column.

    Raises:
        DataError: There is no such column, or nothing in it.
    """
    if column not in values:
        raise DataError(
            f"{origin}: no column {column!r}{nearest(column, values)}",
            "name the columns of the data in the template and its options",
        )
    if values[column] is None:
        raise DataError(f"{origin}: nothing in column {column!r}", "leave the row out, or fill it")
    return values[column]


def rendered(template: str, row: Row) -> str:
    """The template with a row's values."""
    return filled(template, row.values, row.origin)
