"""The texts of a multiple-choice item, and which of its options is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plmctl.errors import DataError
from plmctl.tasks import _labels

if TYPE_CHECKING:
    from plmctl.corpus.tables import Row

Item = tuple[str, str, tuple[str, ...]]
"""Passage, question and options; a part that a row does not have is empty."""


def item_of(config: Any, row: Row) -> Item:
    """The texts of a row.

    Raises:
        DataError: A missing column, or fewer than two options.
    """
    if isinstance(config.options, str):
        found = row.cell(config.options)
        if not isinstance(found, list | tuple):
            raise DataError(
                f"{row.origin}: column {config.options!r} holds a {type(found).__name__}; "
                "expected a list of options",
                "options in columns of their own: task.options=[A, B]",
            )
        options = tuple(str(option) for option in found)
    else:
        options = tuple(_labels.text(row, column) for column in config.options)
    if len(options) < 2:
        raise DataError(f"{row.origin}: {len(options)} options; expected two or more")
    passage = _labels.text(row, config.passage) if config.passage is not None else ""
    question = _labels.text(row, config.question) if config.question is not None else ""
    return passage, question, options


def sides_of(item: Item, option: str, *, gpt1: bool) -> tuple[str, str]:
    """The two texts of an option's sequence.

    Without a passage, or without a question, the one that there is stands against the option.
    """
    passage, question, _ = item
    if gpt1:
        return f"{passage} {question}".strip(), option
    if "_" in question:
        question, option = "", question.replace("_", option, 1)
    if not passage:
        return question, option
    return passage, f"{question} {option}".strip()


def target_of(config: Any, row: Row) -> int:
    """The number of the right option, from 0.

    Raises:
        DataError: Neither a number nor a letter of one of the options.
    """
    count = len(item_of(config, row)[2])
    said = _labels.one(row, config.label).strip()
    letter = len(said) == 1 and "A" <= said.upper() <= "Z"
    whole = said.removesuffix(".0")  # as tables with gaps have their numbers
    found = -1
    if letter:
        found = ord(said.upper()) - ord("A")
    elif whole.isascii() and whole.isdigit():
        found = int(whole) - config.count_from
    if not 0 <= found < count:
        numbers = f"{config.count_from} to {count - 1 + config.count_from}"
        raise DataError(
            f"{row.origin}: column {config.label!r}: {said!r} is none of the {count} options; "
            f"expected {numbers}, or A to {chr(ord('A') + count - 1)}",
            "numbers that begin at 1: task.count_from=1",
        )
    return found
