"""All the ways to cut all words into pieces, at once.

Words lie in columns, the longest first, so that the words that reach a given length are always the
first so many columns, and a step from character ``start`` to character ``start + length`` is one
operation on whole rows for all of them. The steps are kept in one flat array, a stretch for each
pair of start and length, which holds the piece that each word has there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Floats, Ints

LONGEST_PIECE = 16
LONGEST_WORD = 32
"""A word's probability stays within the range of floats: 1e-8 to the power of this."""


@dataclass(frozen=True)
class Pieces:
    """Substrings of words.

    Attributes:
        word: A word that has the piece.
        start: Where it begins there.
        length: Its characters.
        seen: How often, over all words.
    """

    word: Ints
    start: Ints
    length: Ints
    seen: Floats

    def __len__(self) -> int:
        return len(self.word)

    def take(self, kept: Ints) -> "Pieces":
        """Some of them, by number."""
        return Pieces(self.word[kept], self.start[kept], self.length[kept], self.seen[kept])


class Lattice:
    """The words and the pieces in them.

    Attributes:
        words: Text of each, the longest first.
        pieces: Those that are considered.

    Args:
        counts: How often each word was seen; at most ``LONGEST_WORD`` characters, none empty.
        most: Begin with at most this many pieces.
    """

    def __init__(self, counts: Mapping[str, int], most: int) -> None:
        self.words = sorted(counts, key=lambda word: (-len(word), word))
        self._counts = np.array([counts[word] for word in self.words], dtype=np.float64)
        self._lengths = np.array([len(word) for word in self.words], dtype=np.int64)
        self._longest = len(self.words[0])
        # Words of at least so many characters.
        self._reach = [int((self._lengths >= size).sum()) for size in range(self._longest + 1)]
        self._begin = np.zeros((self._longest + 1, LONGEST_PIECE + 1), dtype=np.int64)
        self.pieces, self._piece = self._all_pieces()
        if len(self.pieces) > most:
            # The single characters, which come first, and those that cover most of the text.
            singles = int((self.pieces.length == 1).sum())
            order = np.argsort(-(self.pieces.seen * self.pieces.length)[singles:], kind="stable")
            kept = np.append(np.arange(singles), singles + order[: max(0, most - singles)])
            self.keep(np.sort(kept))

    def text(self, piece: int) -> str:
        """The characters of a piece."""
        start, length = int(self.pieces.start[piece]), int(self.pieces.length[piece])
        return self.words[int(self.pieces.word[piece])][start : start + length]

    def keep(self, kept: Ints) -> None:
        """Forget all other pieces; those kept are numbered anew, in order."""
        number = np.full(len(self.pieces) + 1, len(kept), dtype=np.int32)
        number[kept] = np.arange(len(kept), dtype=np.int32)
        self._piece = number[self._piece]
        self.pieces = self.pieces.take(kept)

    def expected(self, probability: Floats) -> Floats:
        """How often each piece is expected over all ways to cut each word (forward-backward).

        Args:
            probability: Of each piece, [pieces]; every single character has some.
        """
        step = np.append(probability, 0.0)[self._piece]
        forward = [np.zeros(reach) for reach in self._reach]
        backward = [(self._lengths[:reach] == n) * 1.0 for n, reach in enumerate(self._reach)]
        forward[0][:] = 1
        for start, length, part in self._steps():
            end = start + length
            forward[end] += forward[start][: self._reach[end]] * step[part]
        for start, length, part in reversed(self._steps()):
            end = start + length
            backward[start][: self._reach[end]] += backward[end] * step[part]
        scale = self._counts / backward[0]
        for start, length, part in self._steps():
            reach = self._reach[start + length]
            step[part] *= forward[start][:reach] * backward[start + length] * scale[:reach]
        return _sums(self._piece, step, len(self.pieces) + 1)[:-1]

    def best(self, logarithm: Floats) -> Floats:
        """How often each piece is in the most probable ways to cut the words (Viterbi).

        Args:
            logarithm: Of the probability of each piece, [pieces].
        """
        step = np.append(logarithm, -np.inf)[self._piece]
        score = [np.full(reach, -np.inf) for reach in self._reach]
        back = np.zeros((self._longest + 1, len(self.words)), dtype=np.int64)
        score[0][:] = 0
        for start, length, part in self._steps():
            end = start + length
            found = score[start][: self._reach[end]] + step[part]
            better = found > score[end]
            score[end][better] = found[better]
            back[end, : len(better)][better] = length
        seen = np.zeros(len(self.pieces) + 1)
        word, end_of = np.arange(len(self.words)), self._lengths.copy()
        while len(word):
            length_of = back[end_of, word]
            end_of = end_of - length_of
            piece = self._piece[self._begin[end_of, length_of] + word]
            seen += _sums(piece, self._counts[word], len(seen))
            word, end_of = word[end_of > 0], end_of[end_of > 0]
        return seen[:-1]

    def alternatives(self, logarithm: Floats) -> tuple[Floats, "Paths"]:
        """The most probable way to cut each piece into smaller ones.

        Args:
            logarithm: Of the probability of each piece, [pieces].

        Returns:
            Its logarithm, -inf for single characters, and the pieces on it.
        """
        order = np.argsort(-self.pieces.length, kind="stable")
        pieces = self.pieces.take(order)
        score = np.full((LONGEST_PIECE + 1, len(order)), -np.inf)
        back = np.zeros(score.shape, dtype=np.int64)
        score[0] = 0
        padded = np.append(logarithm, -np.inf)
        for end in range(1, LONGEST_PIECE + 1):
            count = int((pieces.length >= end).sum())
            word, first = pieces.word[:count], pieces.start[:count]
            for start in range(end):
                at = self._begin[first + start, end - start] + word
                found = score[start, :count] + padded[self._piece[at]]
                if start == 0:
                    found[pieces.length[:count] == end] = -np.inf  # the piece itself
                better = found > score[end, :count]
                score[end, :count][better] = found[better]
                back[end, :count][better] = end - start
        total = np.empty(len(order))
        total[order] = score[pieces.length, np.arange(len(order))]
        return total, self._paths(order, pieces, back)

    def _paths(self, order: Ints, pieces: Pieces, back: Ints) -> "Paths":
        row = np.flatnonzero(pieces.length > 1)
        end = pieces.length[row]
        owners, parts = [], []
        while len(row):
            length = back[end, row]
            end = end - length
            at = self._begin[pieces.start[row] + end, length] + pieces.word[row]
            owners.append(order[row])
            parts.append(self._piece[at].astype(np.int64))
            row, end = row[end > 0], end[end > 0]
        return Paths(np.concatenate([*owners, order[:0]]), np.concatenate([*parts, order[:0]]))

    def _steps(self) -> list[tuple[int, int, slice]]:
        """Start, length and place of each stretch, by start."""
        steps = []
        for start in range(self._longest):
            for length in range(1, min(LONGEST_PIECE, self._longest - start) + 1):
                begin = int(self._begin[start, length])
                steps.append((start, length, slice(begin, begin + self._reach[start + length])))
        return steps

    def _all_pieces(self) -> tuple[Pieces, NDArray[np.int32]]:
        """All substrings that are seen twice, and all characters; and the piece of each step."""
        code = np.frombuffer("".join(self.words).encode("utf-32-le"), dtype="<u4")
        distinct, character = np.unique(code, return_inverse=True)
        begin = np.cumsum(self._lengths) - self._lengths
        rows = [character[begin[: self._reach[n + 1]] + n] for n in range(self._longest)]
        kinds: list[Pieces] = []
        steps: list[NDArray[np.int32]] = []
        before = [np.zeros(len(row), dtype=np.int64) for row in rows]
        known = placed = 0
        for length in range(1, min(LONGEST_PIECE, self._longest) + 1):
            starts = range(self._longest - length + 1)
            reach = [self._reach[start + length] for start in starts]
            self._begin[: len(reach), length] = placed + np.cumsum([0, *reach[:-1]])
            word = np.concatenate([np.arange(count) for count in reach])
            start = np.repeat(np.arange(len(reach)), reach)
            key = np.concatenate(
                [
                    np.where(
                        before[n][:count] < 0,
                        -1,
                        before[n][:count] * len(distinct) + rows[n + length - 1][:count],
                    )
                    for n, count in enumerate(reach)
                ]
            )
            found, number = self._frequent(key, word, start, length)
            kinds.append(found)
            steps.append(np.where(number < 0, -1, number + known).astype(np.int32))
            before = np.split(number, np.cumsum(reach[:-1]))
            known, placed = known + len(found), placed + len(key)
        pieces = Pieces(
            *(np.concatenate(parts) for parts in zip(*map(_columns, kinds), strict=True))
        )
        step = np.concatenate(steps)
        step[step < 0] = known
        return pieces, step

    def _frequent(self, key: Ints, word: Ints, start: Ints, length: int) -> tuple[Pieces, Ints]:
        """The substrings of one length, and the number of each key's, -1 if it is too rare."""
        distinct, first, number = np.unique(key, return_index=True, return_inverse=True)
        seen = _sums(number, self._counts[word], len(distinct))
        frequent = (distinct >= 0) & ((seen >= 2) | (length == 1))
        new = np.where(frequent, np.cumsum(frequent) - 1, -1)
        at = first[frequent]
        return Pieces(word[at], start[at], np.full(len(at), length), seen[frequent]), new[number]


@dataclass(frozen=True)
class Paths:
    """Pieces and the smaller pieces that they may be cut into, in pairs.

    Attributes:
        piece: The piece that is cut.
        part: A part of it.
    """

    piece: Ints
    part: Ints


def _sums(number: NDArray[np.integer[Any]], weights: Floats, size: int) -> Floats:
    """The sum of the weights of each number below ``size``."""
    return np.asarray(np.bincount(number, weights, size), dtype=np.float64)


def _columns(pieces: Pieces) -> tuple[Ints, Ints, Ints, Floats]:
    return pieces.word, pieces.start, pieces.length, pieces.seen
