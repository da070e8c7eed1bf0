"""Rows that are to be scored have what they are scored against."""

from typing import TypeVar

from plmctl.errors import DataError

T = TypeVar("T")


def known(found: T | None, what: str = "labels") -> T:
    """What the answers are scored against.

    Raises:
        DataError: The rows are to be answered, and have none.
    """
    if found is None:
        raise DataError(f"these rows have no {what} to score the answers against")
    return found
