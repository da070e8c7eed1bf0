"""Questions and contexts as pieces that know their characters, and how a model's input joins them.

Every distinct context is cut into pieces once, however many questions ask about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Ints
from plmctl.errors import ConfigError, DataError
from plmctl.shaping.windows import covering, pieces_over, tightened, words

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from plmctl.corpus.tables import Row


_AT_ONCE = 1_000  # texts: offsets are Python tuples until they are arrays


@dataclass(frozen=True)
class Pieces:
    """A text in pieces.

    Attributes:
        text: The text.
        ids: [N].
        offsets: [N, 2] first character and end of each piece, without the space around it.
    """

    text: str
    ids: NDArray[np.int32]
    offsets: NDArray[np.int32]

    @cached_property
    def words(self) -> Ints:
        """[W, 2] see ``shaping.windows.words``."""
        return words(self.text)

    def slice(self, first: int, last: int) -> str:
        """The text from one piece to another, as it was written."""
        return self.text[self.offsets[first, 0] : self.offsets[last, 1]]


@dataclass(frozen=True)
class Template:
    """Special tokens around a question and a context, as ``[CLS] question [SEP] context [SEP]``.

    Attributes:
        before: Ids before the question.
        between: Between the two.
        after: After the context.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]

    def __len__(self) -> int:
        """Special tokens."""
        return len(self.before) + len(self.between) + len(self.after)

    def offset(self, question: int) -> int:
        """Where the context begins after a question of so many pieces."""
        return len(self.before) + question + len(self.between)

    def segments(self, question: int, context: int) -> list[int]:
        """BERT's: 0 up to the [SEP] after the question, 1 from there."""
        return [0] * self.offset(question) + [1] * (context + len(self.after))


def template_of(tokenizer: PreTrainedTokenizerBase) -> Template:
    """A tokenizer's own for a pair; GPT-2's, which has none, gets its end-of-text for all three.

    Raises:
        ConfigError: A tokenizer that does not tell where its pieces are from.
    """
    if not tokenizer.is_fast:
        raise ConfigError(
            f"{type(tokenizer).__name__}: does not tell the characters of its pieces",
            "question answering needs a tokenizer with a tokenizer.json",
        )
    encoded: Any = tokenizer("a", "b")
    ids, sides = encoded["input_ids"], encoded.sequence_ids(0)
    first, last = sides.index(0), sides.index(1)
    between = [id for id, side in zip(ids[first:last], sides[first:last], strict=True) if side != 0]
    after = [id for id, side in zip(ids[last:], sides[last:], strict=True) if side != 1]
    if not between:
        end = tokenizer.eos_token_id
        if not isinstance(end, int):
            raise ConfigError("the tokenizer has no token to set between question and context")
        return Template((end,), (end,), (end,))
    return Template(tuple(ids[:first]), tuple(between), tuple(after))


def pieces_of(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[Pieces]:
    """The texts in pieces, without special tokens."""
    found: list[Pieces] = []
    for start in range(0, len(texts), _AT_ONCE):
        batch = list(texts[start : start + _AT_ONCE])
        encoded: Any = tokenizer(
            batch,
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            verbose=False,
        )
        for text, ids, offsets in zip(
            batch, encoded["input_ids"], encoded["offset_mapping"], strict=True
        ):
            spans = [_bare(text, *span) for span in offsets]
            found.append(
                Pieces(
                    text,
                    np.array(ids, dtype=np.int32),
                    np.array(spans, dtype=np.int32).reshape(-1, 2),
                )
            )
    return found


def _bare(text: str, start: int, end: int) -> tuple[int, int]:
    """Without the space around it; a piece of nothing else lies at its end."""
    inside = text[start:end]
    bare = inside.strip()
    if len(bare) == len(inside):
        return start, end
    start = end - len(inside.lstrip())
    return start, start + len(bare)


def answers_in(row: Row, column: str) -> list[tuple[str, int | None]]:
    """The right answers to a question, each with the character that it starts at, if it is told.

    Raises:
        DataError: No such column, or one of another form.
    """
    cell = row.cell(column)
    texts: Any
    starts: Any
    if isinstance(cell, dict):
        texts, starts = cell.get("text"), cell.get("answer_start")
    elif isinstance(cell, list) and all(isinstance(answer, dict) for answer in cell):
        texts = [answer.get("text") for answer in cell]
        starts = [answer.get("answer_start") for answer in cell]
    else:
        texts = starts = None
    starts = [None] * len(texts) if isinstance(texts, list) and starts is None else starts
    right = isinstance(texts, list) and isinstance(starts, list) and len(texts) == len(starts)
    if not right or not all(isinstance(text, str) for text in texts):
        raise DataError(
            f"{row.origin}: column {column!r} has no answers in SQuAD's form",
            'expected {"text": ["Paris"], "answer_start": [17]}, with empty lists for no answer',
        )
    return [
        (text, int(start) if isinstance(start, int | float) else None)
        for text, start in zip(texts, starts, strict=True)
    ]


def place_of(
    context: Pieces, answer: str, start: int | None, alone: Sequence[int] | None
) -> tuple[int, int] | str:
    """The first and the last piece of an answer, or why it has none.

    Args:
        context: Where it is.
        answer: Its text.
        start: The character that it starts at.
        alone: The answer's own pieces where a piece is a part of one word (WordPiece); None where
            pieces are to be found by their characters.
    """
    if start is None:
        return f"answer {answer!r} has no answer_start"
    covered = covering(context.text, context.words, answer, start)
    if covered is None:
        there = context.text[max(0, start) : max(0, start) + len(answer)]
        found = context.text.find(answer)
        where = f"it is at {found}" if found >= 0 else "it is nowhere in the context"
        return f"answer {_short(answer)} is not at {start}, where {_short(there)} is; {where}"
    if alone is None:
        covered = (start, start + len(answer))
    span = pieces_over(context.offsets, *covered)
    if span is None:
        return f"answer {answer!r} has no tokens in this vocabulary"
    return span if alone is None else tightened(context.ids, span, alone)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
