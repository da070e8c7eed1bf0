"""Rows as questions with options, and which option a model takes."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from plmctl.corpus.tables import Row
from plmctl.errors import DataError
from plmctl.evaluation.prompting.templates import cell, rendered, text_in

if TYPE_CHECKING:
    from plmctl.evaluation.prompting.continuations import Continuation


@dataclass(frozen=True)
class Question:
    """A prompt, the options as they are written after it, and the number of the right one."""

    prompt: str
    options: tuple[str, ...]
    answer: int
    origin: str


@dataclass(frozen=True)
class Columns:
    """Where a row has its question.

    Attributes:
        template: Of the prompt.
        options: The column that holds a list of options, or a column for each.
        choices: Instead of options in the data: how each label is written.
        answer: The column of the right one.
        first: The number of the first option, where the answer is a number.
        between: What stands between the prompt and an option that does not begin with a space.
    """

    template: str
    options: str | tuple[str, ...]
    choices: Mapping[str, str]
    answer: str
    first: int
    between: str


def question_of(columns: Columns, row: Row) -> Question:
    """The question of a row.

    Raises:
        DataError: A column is missing, there are fewer than two options, an option is empty, or
            the answer is none of them.
    """
    names, labels = _options(columns, row)
    written = [columns.choices.get(name, name) for name in names]
    if len(names) < 2:
        raise DataError(f"{row.origin}: {len(names)} options", "a choice needs two or more")
    if not all(option.strip() for option in written):
        raise DataError(f"{row.origin}: an empty option", "leave the row out, or fill it")
    prompt = rendered(columns.template, row)
    spaced = tuple(
        option if option[0].isspace() else columns.between + option for option in written
    )
    value = cell(row.values, columns.answer, row.origin)
    answer = labels.index(value) if value in labels else _answer(value, names, columns, row.origin)
    return Question(prompt, spaced, answer, row.origin)


def _options(columns: Columns, row: Row) -> tuple[list[str], list[Any]]:
    """The options, and what the row calls them if it does: in ARC letters or numbers from 1."""
    if columns.choices:
        return list(columns.choices), []
    if not isinstance(columns.options, str):
        return [text_in(row.values, name, row.origin) for name in columns.options], []
    found = cell(row.values, columns.options, row.origin)
    labels: list[Any] = []
    if isinstance(found, Mapping) and isinstance(found.get("text"), Sequence):
        labels, found = list(found.get("label") or []), found["text"]
    if isinstance(found, (str, Mapping)) or not isinstance(found, Sequence):
        raise DataError(
            f"{row.origin}: column {columns.options!r} holds a {type(found).__name__}, not a list",
            "name a column of a list of options, or one column for each option",
        )
    return [str(option) for option in found], labels if len(labels) == len(found) else []


def _answer(value: Any, names: Sequence[str], columns: Columns, origin: str) -> int:
    """The option that is named by its text, its number or its letter."""
    text = str(value).lower() if isinstance(value, bool) else str(value).strip()
    if columns.choices or not isinstance(value, int):
        same = [number for number, name in enumerate(names) if name.strip() == text]
        if same:
            return same[0]
    number = -1
    if text.lstrip("-").isdigit():
        number = int(text) - columns.first
    elif len(text) == 1 and text.upper() in string.ascii_uppercase:
        number = string.ascii_uppercase.index(text.upper())
    if columns.choices or not 0 <= number < len(names):
        raise DataError(
            f"{origin}: the answer {text!r} is none of {', '.join(map(repr, names))}",
            "an answer is an option's text, its number (see `first`) or its letter",
        )
    return number


def preferred(
    options: Sequence[str],
    conditional: Sequence[Continuation],
    unconditional: Sequence[Continuation] | None,
) -> dict[str, int]:
    """The option with the largest score by each normalisation; the first of equal ones.

    sum: log p(option | prompt). token: it over the option's tokens. byte: over the bytes of its
    text in UTF-8, without the space before it. unconditional: less log p(option | a prompt that
    says nothing).

    Args:
        options: As written.
        conditional: Of each after the prompt.
        unconditional: Of each after the prompt that says nothing, if asked for.
    """
    log_probs = np.array([found.log_prob for found in conditional])
    tokens = np.array([found.tokens for found in conditional])
    sizes = np.array([len(option.strip().encode("utf-8", "surrogatepass")) for option in options])
    scores = {"sum": log_probs, "token": log_probs / tokens, "byte": log_probs / sizes}
    if unconditional is not None:
        scores["unconditional"] = log_probs - [found.log_prob for found in unconditional]
    return {name: int(score.argmax()) for name, score in scores.items()}
