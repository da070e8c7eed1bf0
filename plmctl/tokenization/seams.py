"""Cutting words of scripts without spaces where no token can cross, for byte-level BPE.

Every merge gives a token of the vocabulary. So if no token contains the boundary between two
characters, no merge joins what is left and right of it: both sides have the same ids separately as
together. For GPT-2's expression a Chinese sentence is one word, which hardly ever repeats; its
parts between such seams are a few characters each, and do repeat.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Bools, Ints
from plmctl.characters import chinese
from plmctl.tokenization.units import unspaced

if TYPE_CHECKING:
    from tokenizers import Tokenizer


_CODES = 0x10000  # of at most three bytes
_LARGEST = 1 << 26  # pairs of sorts of characters, a byte each
_LENGTHS = (1, 2, 3)
_NONE = 0xFF  # a byte that no text has


class _Parts(NamedTuple):
    """The bytes that tokens have of characters of three bytes at a boundary.

    Attributes:
        length: The number of bytes, [N].
        bits: The bits of the code point in these bytes, [N].
    """

    length: Ints
    bits: Ints

    def codes(self, length: int, *, last: bool) -> Ints:
        """The characters that end or begin with each part of this length, [parts, characters]."""
        bits, unsaid = self.bits[self.length == length, None], 64 ** (3 - length)
        rest = np.arange(0, _CODES, 64**length) if last else np.arange(unsaid)
        codes: Ints = rest + bits * (1 if last else unsaid)
        return codes


class Seams:
    """Where texts can be cut.

    Args:
        vocab: All tokens, as byte-level BPE writes them.
    """

    def __init__(self, vocab: Iterable[str]) -> None:
        left, right = _crossed(vocab)
        # The table has a row for each sort: characters that all tokens treat alike.
        self._row, rows = _sorts(left, last=True)
        self._column, columns = _sorts(right, last=False)
        self._fits = rows * columns <= _LARGEST
        self._joined = np.ones((rows, columns) if self._fits else (1, 1), dtype=bool)
        if self._fits:
            self._joined[1:, 1:] = False
            self._join(left, right)

    def between(self, code: NDArray[np.uint32]) -> tuple[Bools, Bools]:
        """Where no token can cross, and where of these places no word starts.

        The latter are between letters, or digits, that are not Chinese.

        Args:
            code: [N] characters.

        Returns:
            [N - 1] Both, between each character and the next.
        """
        low = np.minimum(code, _CODES - 1)  # which is not assigned
        if not self._fits:
            none = np.zeros(max(0, len(code) - 1), dtype=np.bool_)
            return none, none
        cut: Bools = ~self._joined[self._row[low[:-1]], self._column[low[1:]]]
        sort, han = _sort_of_all()[low], chinese(code)
        return cut, cut & (sort[:-1] == sort[1:]) & ~han[:-1] & ~han[1:]

    def _join(self, left: _Parts, right: _Parts) -> None:
        whole = (left.length == 3) & (right.length == 3)
        self._joined[self._row[left.bits[whole]], self._column[right.bits[whole]]] = True
        others = (part[~whole].tolist() for part in (*left, *right))
        for length, bits, after, started in set(zip(*others, strict=True)):
            ending = _Parts(np.array([length]), np.array([bits])).codes(length, last=True)
            beginning = _Parts(np.array([after]), np.array([started])).codes(after, last=False)
            at = np.unique(self._row[ending]), np.unique(self._column[beginning])
            self._joined[np.ix_(*at)] = True


def merges_alone(tokenizer: Tokenizer) -> bool:
    """Whether the merges decide alone what becomes of a word's bytes, each of which is a token.

    Args:
        tokenizer: A tokenizer of kind "bytes".
    """
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    model = tokenizer.model
    if not isinstance(model, BPE) or model.dropout or model.ignore_merges:
        return False
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        return False
    vocab = tokenizer.get_vocab(with_added_tokens=False)
    # A byte without a token would be dropped, and the bytes around it would be neighbours. The last
    # byte is in no UTF-8, so in no token with others.
    last = chr(0xFF)
    return vocab.keys() >= set(ByteLevel.alphabet()) and not any(
        last in token and token != last for token in vocab
    )


def seams_of(tokenizer: Tokenizer) -> Seams | None:
    """The seams of a tokenizer of kind "bytes"; None if its merges cannot be predicted."""
    if not merges_alone(tokenizer):
        return None
    return Seams(tokenizer.get_vocab(with_added_tokens=False))


def _crossed(vocab: Iterable[str]) -> tuple[_Parts, _Parts]:
    """The characters of three bytes left and right of boundaries inside tokens."""
    gap = chr(_NONE) * 3
    text = gap + gap.join(vocab) + gap
    byte = np.frombuffer(text.translate(byte_table()).encode("latin-1", "replace"), dtype=np.uint8)
    first, later, none = byte >> 4 == 0xE, byte >> 6 == 0b10, byte == _NONE
    at = np.flatnonzero(first[1:] & later[:-1]) + 1
    # A token that begins within a character has one or two of its bytes before the boundary.
    one, two = none[at - 2], later[at - 2] & none[at - 3]
    at = at[one | two | (later[at - 2] & first[at - 3])]
    before = np.select([none[at - 2], none[at - 3]], [1, 2], 3)
    after = 1 + later[at + 1] + (later[at + 1] & later[at + 2])
    bits = np.where(first, byte & 0x0F, byte & 0x3F).astype(np.int64)
    left = (bits[at - 3] * (before == 3) << 6 | bits[at - 2] * (before > 1)) << 6 | bits[at - 1]
    right = (bits[at] << 6 | bits[at + 1]) << 6 | bits[at + 2]
    return _Parts(before, left), _Parts(after, right >> 6 * (3 - after))


def byte_table() -> dict[int, int]:
    """The byte for which each character of a token stands (GPT-2's table)."""
    alike = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in alike]
    return {byte: byte for byte in alike} | {0x100 + n: byte for n, byte in enumerate(others)}


def _sorts(parts: _Parts, *, last: bool) -> tuple[Ints, int]:
    """The sort of each character by its parts, and the number of sorts.

    Characters of sort 0 are never cut from their neighbours.
    """
    key = np.zeros(_CODES, dtype=np.int64)
    parts = _Parts(*np.unique(np.stack(parts), axis=1))
    for length in _LENGTHS:
        codes = parts.codes(length, last=last)
        number = np.zeros(_CODES, dtype=np.int64)
        number[codes] = np.arange(1, len(codes) + 1)[:, None]
        key = key * (len(codes) + 1) + number
    sorts, sort = np.unique(np.where(_sort_of_all() > 0, key, -1), return_inverse=True)
    return sort, len(sorts)


@cache
def _sort_of_all() -> NDArray[np.uint8]:
    """1 where a character is a letter of ``unspaced``, 2 where a number, or 0."""
    sorts = np.zeros(_CODES, dtype=np.uint8)
    for number, inside in enumerate((unspaced("L"), unspaced("N")), start=1):
        for run in re.finditer(f"[{inside}]+", "".join(map(chr, range(_CODES)))):
            sorts[run.start() : run.end()] = number
    return sorts
