"""Prompts: from rows of data to the text that a model reads, without finetuning.

A template has ``{column}`` in place of a value of the row. A question is a prompt with options, one
of which is right. A few-shot prompt has as many examples before the item as fit.
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
    from plmctl.evaluation.model import LoadedModel
    from plmctl.models.completions import CompletionScore


# --- Templates: they only insert values, and run no code ---


_TEMPLATE_FIELD = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")


def checked_template(template: str) -> str:
    """A template as it is.

    Raises:
        ValueError: A brace belongs to no field.
    """
    for match in _TEMPLATE_FIELD.finditer(template):
        if match[0] in ("{", "}"):
            raise ValueError(
                f"a lone {match[0]!r} at character {match.start() + 1}; write a field as "
                f"{{column}}, and a brace of the text as {match[0] * 2}"
            )
    return template


Template = Annotated[str, AfterValidator(checked_template)]
"""A text with ``{column}`` for the value of a column; ``{{`` and ``}}`` are braces."""


def fill_template(template: str, values: Mapping[str, Any], origin: str) -> str:
    """The template with the values filled in.

    Args:
        template: See ``Template``.
        origin: Their ``file:line``, for errors.

    Raises:
        DataError: A column does not exist, is empty, or holds neither text nor a number.
    """

    def value_of(match: re.Match[str]) -> str:
        column = match[1]
        return match[0][0] if column is None else column_text(values, column, origin)

    return _TEMPLATE_FIELD.sub(value_of, template)


def column_text(values: Mapping[str, Any], column: str, origin: str) -> str:
    """The value of a column, as text.

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
    """The value of a column.

    Raises:
        DataError: The column does not exist or is empty.
    """
    if column not in values:
        raise DataError(
            f"{origin}: no column {column!r}{nearest(column, values)}",
            "name the columns of the data in the template and its options",
        )
    if values[column] is None:
        raise DataError(f"{origin}: column {column!r} is empty", "remove the row, or fill it in")
    return values[column]


def render_row(template: str, row: Row) -> str:
    """The template with a row's values."""
    return fill_template(template, row.values, row.origin)


# --- Rows: tables, or the lines of a text file ---


def prompt_rows(names: Sequence[str]) -> list[Row]:
    """The rows of files; each line of a txt file is a row with the column `text`, if not empty.

    Raises:
        DataError: There are no rows, or one is malformed.
    """
    by_line = TextConfig(train=tuple(names), documents="line")
    result = []
    for source in resolve(tuple(names)):
        if source.kind in ("text", "sample"):
            lines = documents(source, by_line)
            result += [Row({"text": line.text.rstrip("\r\n")}, line.origin) for line in lines]
        else:
            result += [Row(values, origin) for values, origin in rows(source)]
    if not result:
        raise DataError(f"no rows in {', '.join(names)}", "check the paths")
    return result


# --- Few-shot prompts: examples before an item ---


_T5_SPECIAL_TOKENS = 2  # T5's end token and sentinel


class ShotsConfig(Model):
    """Examples before each item."""

    count: int = Field(default=0, ge=0)
    """Number of examples at most (0: zero-shot); if fewer fit, fewer are used and reported."""
    train: tuple[str, ...] = ()
    """Rows from which they are drawn, as `data`; each item has a separate draw."""
    separator: str = "\n\n"
    """Text between examples."""
    task: str = ""
    """Text before all examples: the instruction, in words."""


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

    Raises:
        ConfigError: Examples are requested, but the pool is empty.
    """

    def __init__(
        self, config: ShotsConfig, pool: Sequence[Shot], model: LoadedModel, seed: int
    ) -> None:
        if config.count and not pool:
            raise ConfigError(
                f"shots.count is {config.count}, but there are no rows to draw them from",
                "set shots.train to files of rows",
            )
        self._config, self._pool, self._model, self._seed = config, pool, model, seed
        self._sizes: dict[int, int] = {}

    def __call__(self, prompt: str, room: int) -> Prompt:
        """The prompt after as many examples as fit.

        Args:
            room: Tokens to leave free after it.
        """
        drawn = [
            number
            for number in draw_shots(self._seed, prompt, len(self._pool), self._config.count + 1)
            if self._pool[number].prompt != prompt  # the item itself may be in the pool
        ][: self._config.count]
        limit = self._model.window - room - _T5_SPECIAL_TOKENS
        left = limit - self._model.count(self._joined([], prompt))
        kept = 0
        while kept < len(drawn) and (left := left - self._size(drawn[kept])) >= 0:
            kept += 1
        # The whole has nearly as many tokens as its parts; this corrects the small difference.
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

    The text identifies the item, so that neither its place nor the other items matter.

    Args:
        item: The prompt of the item.
        count: Number of draws; all examples if there are fewer.
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
    """A prompt, the options as they follow it, and the number of the right one."""

    prompt: str
    options: tuple[str, ...]
    answer: int
    origin: str


@dataclass(frozen=True)
class QuestionColumns:
    """The columns of a row that make up its question.

    Attributes:
        options: The column that holds a list of options, or a column for each.
        choices: Instead of options in the data: the words for each label.
        first: The number of the first option, if the answer is a number.
        between: Text between the prompt and an option that does not begin with a space.
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
            the answer is not among them.
    """
    names, labels = _options(columns, row)
    written = [columns.choices.get(name, name) for name in names]
    if len(names) < 2:
        raise DataError(f"{row.origin}: {len(names)} options", "two or more are required")
    if not all(option.strip() for option in written):
        raise DataError(f"{row.origin}: an option is empty", "remove the row, or fill it in")
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
    """The options, and their labels in the row if there are any: in ARC letters or numbers."""
    if columns.choices:
        return list(columns.choices), []
    if not isinstance(columns.options, str):
        return [column_text(row.values, name, row.origin) for name in columns.options], []
    value = column_value(row.values, columns.options, row.origin)
    labels: list[Any] = []
    if isinstance(value, Mapping) and isinstance(value.get("text"), Sequence):
        labels, value = list(value.get("label") or []), value["text"]
    if isinstance(value, (str, Mapping)) or not isinstance(value, Sequence):
        raise DataError(
            f"{row.origin}: column {columns.options!r} holds a {type(value).__name__}, not a list",
            "name a column of a list of options, or one column for each option",
        )
    return [str(option) for option in value], labels if len(labels) == len(value) else []


def _answer_number(value: Any, names: Sequence[str], columns: QuestionColumns, origin: str) -> int:
    """The option with this text, number or letter."""
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

    sum: log p(option | prompt). token: divided by the option's tokens. byte: divided by the UTF-8
    bytes of its text, without the space before it. unconditional: minus log p(option | a neutral
    prompt).

    Args:
        unconditional: The score of each after the neutral prompt, if requested.
    """
    log_probs = np.array([score.log_prob for score in conditional])
    tokens = np.array([score.tokens for score in conditional])
    sizes = np.array([len(option.strip().encode("utf-8", "surrogatepass")) for option in options])
    scores = {"sum": log_probs, "token": log_probs / tokens, "byte": log_probs / sizes}
    if unconditional is not None:
        scores["unconditional"] = log_probs - [score.log_prob for score in unconditional]
    return {name: int(score.argmax()) for name, score in scores.items()}
