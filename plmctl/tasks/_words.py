"""Words as pieces, and sentences of words cut to what a network takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

Ids = tuple[int, ...]
Units = tuple[Any, ...]
"""What a network reads of a word: ids of its pieces, or the word itself (ELMo)."""


class Pieces:
    """Words to pieces, each word by itself; text that looks like a special token is only text.

    Byte-level tokenizers (GPT-2, RoBERTa) take each word with the space before it, the first of a
    sentence too, as transformers' ``add_prefix_space`` does. A word without any piece (a control
    character, say) is the unknown token, so that it can be labelled.

    Args:
        tokenizer: A fast one.

    Attributes:
        before: Special tokens that begin a sequence.
        after: Special tokens that end it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        whole: Any = tokenizer
        backend = whole.backend_tokenizer
        self._backend: Tokenizer = type(backend).from_str(backend.to_str())
        self._backend.encode_special_tokens = True
        self._backend.no_padding()
        self._backend.no_truncation()
        unknown = tokenizer.unk_token_id
        self._unknown = int((tokenizer.eos_token_id if unknown is None else unknown) or 0)
        self._space = " " if "ByteLevel" in str(self._backend.pre_tokenizer) else ""
        self._known: dict[str, Ids] = {}
        probe = self._backend.encode("a")
        text = np.flatnonzero(np.array(probe.special_tokens_mask) == 0)
        self.before: Ids = tuple(probe.ids[: text[0]])
        self.after: Ids = tuple(probe.ids[text[-1] + 1 :])

    def learn(self, words: Sequence[str]) -> None:
        """Cut the words that are not known yet, all at once."""
        new = [word for word in dict.fromkeys(words) if word not in self._known]
        made = self._backend.encode_batch(
            [self._space + word.strip() for word in new], add_special_tokens=False
        )
        for word, encoding in zip(new, made, strict=True):
            self._known[word] = tuple(encoding.ids) if word.strip() else ()

    def __call__(self, word: str) -> Ids:
        """The pieces of a word that was learnt, at least one."""
        return self._known[word] or (self._unknown,)


@dataclass(frozen=True)
class Window:
    """A part of a sentence.

    Attributes:
        start: The first word that is read.
        stop: The word after the last that is read.
        first: The first word that is labelled here.
        last: The word after the last that is labelled here.
    """

    start: int
    stop: int
    first: int
    last: int


def windows(sizes: Sequence[int], room: int) -> Iterator[Window]:
    """Windows of whole words over a sentence, each word labelled in one of them.

    They overlap by about half. A word in two is labelled where it has more words around it: the
    overlap is shared at its middle.

    Args:
        sizes: Pieces of each word, none above ``room``.
        room: Pieces that a window has place for.
    """
    ends = np.cumsum([0, *sizes])
    start = first = 0
    while first < len(sizes):
        stop = int(np.searchsorted(ends, ends[start] + room, side="right")) - 1
        if stop >= len(sizes):
            yield Window(start, len(sizes), first, len(sizes))
            return
        # Half of this window again, but no more than leaves place for the next word.
        shared = min(room // 2, room - sizes[stop])
        after = int(np.searchsorted(ends, ends[stop] - shared, side="left"))
        after = max(after, start + 1)
        last = (after + stop + 1) // 2
        if last > first:
            yield Window(start, stop, first, last)
        start, first = after, last


@dataclass(frozen=True)
class Example:
    """A sentence, or a window of a long one.

    Attributes:
        row: Number of its sentence.
        read: Units of its words, and special tokens around them.
        first: The first word that is labelled here; those after it follow.
        places: Where in ``read`` the labels stand.
    """

    row: int
    read: Units
    first: int
    places: Ids


def sentence_examples(
    row: int, words: Sequence[Units], around: tuple[Ids, Ids], room: int, *, last: bool = False
) -> Iterator[Example]:
    """A sentence as examples: itself, or its windows.

    Args:
        row: Its number.
        words: The units of each word, at least one and at most ``room``.
        around: Special tokens before and after.
        room: Units that there is place for between them.
        last: A word is labelled at its last unit; else at its first.
    """
    before, after = around
    for window in windows([len(units) for units in words], room):
        inside = words[window.start : window.stop]
        ends = len(before) + np.cumsum([0, *map(len, inside)])
        places = ends[1:] - 1 if last else ends[:-1]
        labelled = places[window.first - window.start : window.last - window.start]
        flat = tuple(unit for units in inside for unit in units)
        yield Example(row, before + flat + after, window.first, tuple(labelled.tolist()))
