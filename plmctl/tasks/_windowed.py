"""Rows of questions as windows: which pieces, and where the answer is in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Ints
from plmctl.errors import ConfigError, DataError
from plmctl.shaping.windows import Windows, owners, windows
from plmctl.tasks._passages import Pieces, Template, answers_in, pieces_of, place_of, template_of
from plmctl.tasks._spans import Window

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from plmctl.corpus.tables import Row
    from plmctl.tasks import Use


IGNORE = -100  # of modeling.batch, which imports torch


@dataclass(frozen=True)
class Windowed:
    """Questions, contexts and windows.

    Attributes:
        ids: [R] ids of the rows.
        questions: [R] pieces of each question.
        contexts: [R] of its context; rows share them.
        references: [R] texts of the right answers; None for rows that are to be answered.
        row: [W] the row of each window.
        start: [W] its first piece in the context.
        size: [W] its pieces.
        labels: [W, 2] cells of the answer's first and last piece, (0, 0) for a window without it,
            IGNORE where nobody knows; None for rows that are to be answered.
        template: Special tokens.
        segmented: Whether the model tells question and context apart by segments.
        pad_id: Of padding.
        cut: Rows whose question lost its end.
        dropped: Rows that cannot be learnt from, and why.
    """

    ids: tuple[str, ...]
    questions: tuple[NDArray[np.int32], ...]
    contexts: tuple[Pieces, ...]
    references: tuple[tuple[str, ...], ...] | None
    row: Ints
    start: Ints
    size: Ints
    labels: Ints | None
    template: Template
    segmented: bool
    pad_id: int
    cut: int
    dropped: tuple[str, ...]

    def offset(self, number: int | np.int64) -> int:
        """The cell of a window's first context piece."""
        return self.template.offset(len(self.questions[self.row[number]]))

    def input_ids(self, number: int | np.int64) -> list[int]:
        """The ids of a window, special tokens included."""
        row, start = self.row[number], self.start[number]
        context = self.contexts[row].ids[start : start + self.size[number]]
        around = self.template
        question = self.questions[row]
        return [*around.before, *question, *around.between, *context, *around.after]

    def segments(self, number: int | np.int64) -> list[int]:
        """The segments of a window."""
        question = len(self.questions[self.row[number]])
        return self.template.segments(question, int(self.size[number]))

    def of_row(self, row: int) -> list[tuple[int, Window]]:
        """The windows of a row, with their numbers."""
        which = np.arange(*np.searchsorted(self.row, [row, row + 1]))
        here = Windows(self.start[which], self.size[which])
        owner = owners(here, len(self.contexts[row].ids))
        found = []
        for place, number in enumerate(which):
            start, size = int(self.start[number]), int(self.size[number])
            own = owner[start : start + size] == place
            found.append((int(number), Window(self.offset(number), start, size, own)))
        return found


def windowed(
    config: Any,
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    use: Use,
) -> Windowed:
    """The rows in windows of ``max_length`` tokens.

    Training leaves out rows whose answer is not where it is said to be. Windows without the answer
    stay, and point at cell 0.

    Raises:
        DataError: A missing column, or no row to learn from.
        ConfigError: No room for a context beside a question.
    """
    template = template_of(tokenizer)
    contexts = _shared([_text(row, config.context) for row in rows], tokenizer)
    whole = pieces_of([_text(row, config.question) for row in rows], tokenizer)
    questions = [question.ids[: config.max_query_length] for question in whole]
    answers = [answers_in(row, config.answers) for row in rows] if use != "predict" else None
    places = _places(config, answers, contexts, tokenizer) if answers is not None else None
    kept, dropped = list(range(len(rows))), list[str]()
    if use == "train" and places is not None:
        kept, dropped = _learnable(config, rows, places)
    asked = [questions[n] for n in kept]
    cuts = _cut(
        [len(contexts[n].ids) for n in kept],
        [len(question) for question in asked],
        max_length - len(template),
        config.doc_stride,
    )
    known = [places[n] for n in kept] if places is not None else None
    return Windowed(
        tuple(_id(config, rows[n], n) for n in kept),
        tuple(asked),
        tuple(contexts[n] for n in kept),
        None if answers is None else tuple(tuple(text for text, _ in answers[n]) for n in kept),
        *cuts,
        None if known is None else _labels(known, cuts, [template.offset(len(q)) for q in asked]),
        template,
        _has_segments(tokenizer),
        int(tokenizer.pad_token_id or 0),
        sum(len(question.ids) > config.max_query_length for question in whole),
        tuple(dropped),
    )


Place = tuple[int, int] | str | None
"""An answer's first and last piece; why it has none; None for a question without an answer."""


def _learnable(
    config: Any, rows: Sequence[Row], places: Sequence[Place]
) -> tuple[list[int], list[str]]:
    """The rows that can be learnt from, and what is wrong with each of the others.

    Raises:
        DataError: There is none.
    """
    kept = [n for n, place in enumerate(places) if not isinstance(place, str)]
    dropped = [
        f"{_name(config, row)}: {place}"
        for row, place in zip(rows, places, strict=True)
        if isinstance(place, str)
    ]
    if not kept:
        raise DataError(f"none of {len(rows)} rows can be learnt from: {dropped[0]}")
    return kept, dropped


def _places(
    config: Any,
    answers: Sequence[list[tuple[str, int | None]]],
    contexts: Sequence[Pieces],
    tokenizer: PreTrainedTokenizerBase,
) -> list[Place]:
    alone: list[list[int] | None] = [None] * len(answers)
    if _is_wordpiece(tokenizer):
        firsts = [found[0][0] if found else "" for found in answers]
        alone = [pieces.ids.tolist() for pieces in pieces_of(firsts, tokenizer)]
    places: list[Place] = []
    for found, context, own in zip(answers, contexts, alone, strict=True):
        if found:
            places.append(place_of(context, *found[0], own))
        else:
            places.append(None if config.version2 else "no answer, and not `task.version2: true`")
    return places


def _labels(places: Sequence[Place], cuts: tuple[Ints, Ints, Ints], offsets: Sequence[int]) -> Ints:
    labels = np.zeros((len(cuts[0]), 2), dtype=np.int64)
    for number, (row, start, size) in enumerate(zip(*cuts, strict=True)):
        place = places[row]
        if isinstance(place, str):
            labels[number] = IGNORE
        elif place is not None and start <= place[0] and place[1] < start + size:
            labels[number] = np.array(place) - start + offsets[row]
    return labels


def _cut(
    contexts: Sequence[int], questions: Sequence[int], room: int, stride: int
) -> tuple[Ints, Ints, Ints]:
    """Row, start and size of every window."""
    rows, starts, sizes = [], [], []
    for row, (context, question) in enumerate(zip(contexts, questions, strict=True)):
        if room - question < 1:
            raise ConfigError(
                f"train.max_length: no room for a context beside a question of {question} tokens",
                "raise it (384 is usual), or lower task.max_query_length",
            )
        found = windows(context, room - question, stride)
        rows.append(np.full(len(found.starts), row))
        starts.append(found.starts)
        sizes.append(found.sizes)
    return np.concatenate(rows), np.concatenate(starts), np.concatenate(sizes)


def _shared(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[Pieces]:
    """A text's pieces, the same object for equal texts."""
    distinct = list(dict.fromkeys(texts))
    pieces = dict(zip(distinct, pieces_of(distinct, tokenizer), strict=True))
    return [pieces[text] for text in texts]


def _has_segments(tokenizer: PreTrainedTokenizerBase) -> bool:
    """ALBERT has them, though transformers' class for its tokenizer leaves them out."""
    named = "token_type_ids" in tokenizer.model_input_names
    return named or type(tokenizer).__name__.startswith("Albert")


def _is_wordpiece(tokenizer: Any) -> bool:
    return type(tokenizer.backend_tokenizer.model).__name__ == "WordPiece"


def _text(row: Row, column: str) -> str:
    return str(row.cell(column))


def _id(config: Any, row: Row, number: int) -> str:
    found = row.values.get(config.id)
    return str(number + 1) if found is None else str(found)


def _name(config: Any, row: Row) -> str:
    """Origin and id; that of a nested file ends with the id."""
    found = row.values.get(config.id)
    known = found is None or row.origin.endswith(f"/{found}")
    return row.origin if known else f"{row.origin}: {found}"
