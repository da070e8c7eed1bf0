"""Prompts: from rows of data to the text that a model is given, without any finetuning.

A template has ``{column}`` where a row's value goes. A question is a prompt with options, one of
which is right. A few-shot prompt has as many examples before the item as fit.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import AfterValidator, Field

from plmctl.config.base import Model
from plmctl.config.sections import TextConfig
from plmctl.corpus.labelled import Row
from plmctl.corpus.reading import documents
from plmctl.corpus.source import resolve
from plmctl.corpus.tabular import rows
from plmctl.errors import ConfigError, DataError, nearest
from plmctl.evaluation.completions import join_pair
from plmctl.examples.keys import below, fold, stream

if TYPE_CHECKING:
    from plmctl.evaluation.completions import CompletionScore
    from plmctl.evaluation.model import LoadedModel


# --- Templates: nothing in them is run ---


_TEMPLATE_FIELD = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")


def checked_template(template: str) -> str:
    """A template as it is.

    Raises:
        ValueError: A brace that belongs to no field.
    """
    for found in _TEMPLATE_FIELD.finditer(template):
        if found[0] in ("{", "}"):
            raise ValueError(
                f"a lone {found[0]!r} at character {found.start() + 1}; a field is {{column}}, and "
                f"a brace of the text is doubled: {found[0] * 2}"
            )
    return template


Template = Annotated[str, AfterValidator(checked_template)]
"""A text with ``{column}`` for the value of a column; ``{{`` and ``}}`` are braces."""


def fill_template(template: str, values: Mapping[str, Any], origin: str) -> str:
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
        return found[0][0] if column is None else column_text(values, column, origin)

    return _TEMPLATE_FIELD.sub(value_of, template)


def column_text(values: Mapping[str, Any], column: str, origin: str) -> str:
    """What stands in a column, as text.

    Raises:
        DataError: As ``fill_template``.
    """
    value = column_value(values, column, origin)
    if isinstance(value, (list, dict)):
        raise DataError(
            f"{origin}: column {column!r} holds a {type(value).__name__}, not text",
            "name a column of text or numbers",
        )
    return str(value)


def column_value(values: Mapping[str, Any], column: str, origin: str) -> Any:
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


def render_row(template: str, row: Row) -> str:
    """The template with a row's values."""
    return fill_template(template, row.values, row.origin)


# --- Rows: tables, or the lines of a text file ---


def prompt_rows(names: Sequence[str]) -> list[Row]:
    """Rows, each line of a txt file being one with the column `text`; empty lines are left out.

    Raises:
        DataError: Nothing is there, or a malformed row.
    """
    by_line = TextConfig(train=tuple(names), documents="line")
    found = []
    for source in resolve(tuple(names)):
        if source.kind in ("text", "sample"):
            lines = documents(source, by_line)
            found += [Row({"text": line.text.rstrip("\r\n")}, line.origin) for line in lines]
        else:
            found += [Row(values, origin) for values, origin in rows(source)]
    if not found:
        raise DataError(f"no rows in {', '.join(names)}", "are the paths right?")
    return found


# --- Few-shot prompts: examples before an item ---


_T5_SPECIAL_TOKENS = 2  # T5's end token and sentinel


class ShotsConfig(Model):
    """Examples before each item."""

    count: int = Field(default=0, ge=0)
    """How many at most (0: zero-shot); fewer where no more fit, which is reported."""
    train: tuple[str, ...] = ()
    """Rows that they are drawn from, as `data`: a draw of its own for each item."""
    separator: str = "\n\n"
    """What stands between examples."""
    task: str = ""
    """What stands before them all: what is asked for, in words."""


@dataclass(frozen=True)
class Shot:
    """A prompt and its right completion."""

    prompt: str
    completion: str

    def __str__(self) -> str:
        return "".join(join_pair(self.prompt, self.completion))


@dataclass(frozen=True)
class Prompt:
    """A prompt with its examples, and how many there are."""

    text: str
    shots: int


class FewShot:
    """Puts examples before prompts.

    Args:
        config: How many, and what stands between.
        pool: What they are drawn from.
        model: Decides what fits.
        seed: Decides the draws.

    Raises:
        ConfigError: Examples asked for, and nowhere to draw them from.
    """

    def __init__(
        self, config: ShotsConfig, pool: Sequence[Shot], model: LoadedModel, seed: int
    ) -> None:
        if config.count and not pool:
            raise ConfigError(
                f"shots: {config.count} examples asked for, and no rows to draw them from",
                "name them: shots.train",
            )
        self._config, self._pool, self._model, self._seed = config, pool, model, seed
        self._sizes: dict[int, int] = {}

    def __call__(self, prompt: str, room: int) -> Prompt:
        """The prompt after as many examples as fit.

        Args:
            prompt: The item's own.
            room: Tokens to leave for what comes after it.
        """
        drawn = [
            number
            for number in draw_shots(self._seed, prompt, len(self._pool), self._config.count + 1)
            if self._pool[number].prompt != prompt  # the item itself, where it is of the rows too
        ][: self._config.count]
        limit = self._model.window - room - _T5_SPECIAL_TOKENS
        left = limit - self._model.count(self._joined([], prompt))
        kept = 0
        while kept < len(drawn) and (left := left - self._size(drawn[kept])) >= 0:
            kept += 1
        # Tokens of the parts are nearly those of the whole: what is left to see is small.
        while kept and self._model.count(self._joined(drawn[:kept], prompt)) > limit:
            kept -= 1
        return Prompt(self._joined(drawn[:kept], prompt), kept)

    def _joined(self, numbers: Sequence[int], prompt: str) -> str:
        parts = [str(self._pool[number]) for number in numbers]
        before = [self._config.task] if self._config.task else []
        return self._config.separator.join([*before, *parts, prompt])

    def _size(self, number: int) -> int:
        if number not in self._sizes:
            self._sizes[number] = self._model.count(
                str(self._pool[number]) + self._config.separator
            )
        return self._sizes[number]


def draw_shots(seed: int, item: str, population: int, count: int) -> list[int]:
    """Distinct numbers below ``population``, a function of the seed and the item alone.

    The item is its text, so that neither its place nor the other items matter.

    Args:
        seed: Any.
        item: Its prompt.
        population: How many there are to draw from.
        count: How many; all where there are no more.
    """
    key = fold(seed, stream("shots"), stream(item))
    order = list(range(population)) if population <= 4 * count else None
    chosen: dict[int, None] = {}
    tries = 0
    while len(chosen) < min(count, population):
        if order is None:  # few of many: draw until they are distinct
            chosen[int(below(fold(key, tries), population))] = None
        else:  # Fisher and Yates
            at = tries + int(below(fold(key, tries), population - tries))
            order[tries], order[at] = order[at], order[tries]
            chosen[order[tries]] = None
        tries += 1
    return list(chosen)


# --- Questions with options, and the option that a model prefers ---


@dataclass(frozen=True)
class Question:
    """A prompt, the options as they are written after it, and the number of the right one."""

    prompt: str
    options: tuple[str, ...]
    answer: int
    origin: str


@dataclass(frozen=True)
class QuestionColumns:
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


def question_of(columns: QuestionColumns, row: Row) -> Question:
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
    prompt = render_row(columns.template, row)
    spaced = tuple(
        option if option[0].isspace() else columns.between + option for option in written
    )
    value = column_value(row.values, columns.answer, row.origin)
    answer = (
        labels.index(value)
        if value in labels
        else _answer_number(value, names, columns, row.origin)
    )
    return Question(prompt, spaced, answer, row.origin)


def _options(columns: QuestionColumns, row: Row) -> tuple[list[str], list[Any]]:
    """The options, and what the row calls them if it does: in ARC letters or numbers from 1."""
    if columns.choices:
        return list(columns.choices), []
    if not isinstance(columns.options, str):
        return [column_text(row.values, name, row.origin) for name in columns.options], []
    found = column_value(row.values, columns.options, row.origin)
    labels: list[Any] = []
    if isinstance(found, Mapping) and isinstance(found.get("text"), Sequence):
        labels, found = list(found.get("label") or []), found["text"]
    if isinstance(found, (str, Mapping)) or not isinstance(found, Sequence):
        raise DataError(
            f"{row.origin}: column {columns.options!r} holds a {type(found).__name__}, not a list",
            "name a column of a list of options, or one column for each option",
        )
    return [str(option) for option in found], labels if len(labels) == len(found) else []


def _answer_number(value: Any, names: Sequence[str], columns: QuestionColumns, origin: str) -> int:
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


def preferred_options(
    options: Sequence[str],
    conditional: Sequence[CompletionScore],
    unconditional: Sequence[CompletionScore] | None,
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
