"""A row's text: a column, or a template with columns in braces."""

from __future__ import annotations

from collections.abc import Callable
from string import Formatter
from typing import TYPE_CHECKING, Any

from plmctl.errors import DataError

if TYPE_CHECKING:
    from plmctl.corpus.tables import Row


def columns_of(source: str) -> tuple[str, ...]:
    """The columns of a template, or the one that is named.

    Raises:
        ValueError: Braces that do not match, or with nothing in them.
    """
    if "{" not in source and "}" not in source:
        return (source,)
    names = tuple(name for _, name, _, _ in Formatter().parse(source) if name is not None)
    if not names or not all(names):
        raise ValueError("expected a column, or a template as in `question: {question}`")
    return names


def filled(source: str, row: Row, change: Callable[[str], str]) -> str:
    """The text of a row, with ``change`` made to what stands in its columns.

    Raises:
        DataError: No such column.
    """
    if "{" not in source:
        return change(str(cell(row, source)))
    return "".join(
        before if name is None else before + change(str(cell(row, name)))
        for before, name, _, _ in Formatter().parse(source)
    )


def cell(row: Row, column: str) -> Any:
    """What a row has in a column; `translation.en` also looks into a column that holds fields.

    Raises:
        DataError: No such column, or nothing in it.
    """
    head, dot, rest = column.partition(".")
    inner = row.values.get(head)
    if column in row.values or not dot or not isinstance(inner, dict):
        return row.cell(column)
    if inner.get(rest) is None:
        raise DataError(f"{row.origin}: no {rest!r} in column {head!r}: it has {', '.join(inner)}")
    return inner[rest]


def texts_of(value: Any, origin: str) -> tuple[str, ...]:
    """A target and the other right answers: a text, a list of them, or SQuAD's or TriviaQA's form.

    Raises:
        DataError: None, or something else.
    """
    if isinstance(value, dict):  # {"text": [...]}, or {"value": ..., "aliases": [...]}
        first = [value["value"]] if "value" in value else []
        value = [*first, *(value.get("text") or value.get("aliases") or [])]
    if isinstance(value, str | int | float):
        return (str(value),)
    found = tuple(value) if isinstance(value, list | tuple) else ()
    if not found or not all(isinstance(text, str) for text in found):
        raise DataError(f"{origin}: the target is no text, and no list of texts: {value!r:.80}")
    return tuple(dict.fromkeys(found))
