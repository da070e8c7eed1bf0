"""The special tokens that a tokenizer puts around a text or a pair, and how to set others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plmctl.errors import DataError
from plmctl.tokenization.units import plain_copy

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Special tokens around the texts of one sequence, and segments.

    Attributes:
        second: Segment of the second text and of what follows it.
    """

    before: Ids
    between: Ids
    after: Ids
    second: int = 0

    @property
    def special(self) -> int:
        """Special tokens of a sequence."""
        return len(self.before) + len(self.between) + len(self.after)

    def offset(self, first: int) -> int:
        """The position of the second text, after a first of so many tokens."""
        return len(self.before) + first + len(self.between)

    def join(self, texts: Sequence[Sequence[int] | NDArray[np.integer[Any]]]) -> tuple[Ids, Ids]:
        """The sequence of one text or of a pair, and its segments."""
        first = (*self.before, *texts[0], *self.between)
        second = (*(texts[1] if len(texts) == 2 else ()), *self.after)
        if len(texts) == 1:
            return first + second, (0,) * (len(first) + len(second))
        return first + second, (0,) * len(first) + (self.second,) * len(second)


def layout_of(tokenizer: PreTrainedTokenizerBase, *, pair: bool) -> Layout:
    """The template of a tokenizer, found by encoding a text."""
    encoded: Any = tokenizer("a", "a") if pair else tokenizer("a")
    encoding = encoded.encodings[0]
    texts: list[int | None] = encoding.sequence_ids
    ids: list[int] = encoding.ids
    first = texts.index(0)
    end = len(texts) - texts[::-1].index(1 if pair else 0)
    if not pair:
        return Layout(tuple(ids[:first]), (), tuple(ids[end:]))
    inner = zip(ids[first:end], texts[first:end], strict=True)
    between = tuple(id_ for id_, text in inner if text is None)
    return Layout(tuple(ids[:first]), between, tuple(ids[end:]), encoding.type_ids[texts.index(1)])


def with_layout(
    tokenizer: PreTrainedTokenizerBase, single: str, pair: str, ids: Mapping[str, int]
) -> PreTrainedTokenizerBase:
    """The tokenizer, changed: other special tokens around a text and a pair.

    Args:
        single: As in ``[CLS] $A [SEP]``.
        pair: As in ``[CLS] $A:0 [SEP] $B:1 [SEP]``.
    """
    from tokenizers.processors import TemplateProcessing

    whole: Any = tokenizer
    whole.backend_tokenizer.post_processor = TemplateProcessing(
        single=single, pair=pair, special_tokens=list(ids.items())
    )
    return tokenizer


def require_tokens(tokenizer: PreTrainedTokenizerBase, *names: str) -> None:
    """Refuse a tokenizer without a special token of its network's family.

    Raises:
        DataError: It has none.
    """
    for name in names:
        if getattr(tokenizer, name) is None:
            raise DataError(
                f"{tokenizer.name_or_path}: the tokenizer has no {name}, which the network of its "
                "config.json needs",
                "one of the two is of another model: copy the folder again",
            )


def encode_texts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Ids of texts without special tokens; text that looks like one is only text."""
    if not texts:
        return []
    if tokenizer.is_fast:
        encodings = plain_copy(tokenizer).encode_batch(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]
    encoded = tokenizer(
        list(texts),
        add_special_tokens=False,
        split_special_tokens=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    ids: list[list[int]] = encoded["input_ids"]
    return ids
