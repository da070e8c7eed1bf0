"""Unigram language model: the vocabularies of T5 and ALBERT.

The model draws the pieces of a text one by one. Their probabilities are fitted by expectation
maximisation over all ways to cut the words, starting with all substrings. The pieces whose loss
costs the text least are dropped, a quarter at a time, until the vocabulary has its size.

Source: Kudo 2018; google/sentencepiece, unigram_model_trainer.cc, with its constants. As there,
pieces do not cross the space between words, nor mix letters, digits, marks and Chinese or Japanese
characters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Floats, Ints
from plmctl.characters import HAN, KANA
from plmctl.tokenization.algorithms.base import (
    Algorithm,
    Learned,
    Progress,
    VocabTask,
    check_fits,
    frequent_characters,
)
from plmctl.tokenization.units import SPACE_MARK, category, class_of

# --- Learning the pieces and their probabilities ---


_SEEDS = 1_000_000  # pieces at the start

_ROUNDS = 2  # of expectation maximisation between two prunings

_KEPT = 0.75  # share of the pieces that a pruning keeps

_SPARE = 1.1  # pruning ends with this multiple of the requested number of pieces

_RARE = 0.5  # pieces with a lower expected count are dropped

_MOST = 4_000_000  # maximum number of characters of distinct words, however large the memory

_BYTES_PER_CHARACTER = 350  # memory of learning, per character of distinct words


class Unigram(Algorithm):
    """Pieces with the logarithms of their probabilities, by expectation maximisation."""

    def learn(self, task: VocabTask, progress: Progress) -> Learned:
        """The most probable pieces, and all characters that are needed."""
        special = {*task.first, *task.last}
        alphabet = set(map(chr, frequent_characters(task.words, task.config.limit_alphabet)))
        # Special tokens are in the model's list of pieces too. Text that looks like one is cut into
        # characters only if there are pieces for these.
        needed = sorted(alphabet.union(*special))
        size = task.size - len(special)
        check_fits(len(needed), task.size, len(special))
        pieces = fit_pieces(
            task.words, alphabet, size, max_characters(task.config.max_memory), progress
        )
        lowest = min(score for text, score in pieces.items() if text not in special)
        chosen = {character: pieces.get(character, lowest) for character in needed}
        for text, score in by_score(pieces):
            if len(chosen) == size:
                break
            if text not in special:
                chosen.setdefault(text, score)
        vocab = by_score(chosen)
        # Less probable than the characters of the longest special token, one by one.
        never = (max(map(len, special), default=0) + 1) * vocab[-1][1]
        first, last = ([(token, never) for token in tokens] for tokens in (task.first, task.last))
        return Learned({"vocab": [*first, *vocab, *last]}, len(vocab) + len(special))

    def extra_memory(self, max_memory: int, characters: int | None = None) -> int:
        """The lattice of all ways to cut the words."""
        most = max_characters(max_memory)
        return _BYTES_PER_CHARACTER * (most if characters is None else min(most, characters))


def by_score(pieces: Mapping[str, float]) -> list[tuple[str, float]]:
    """Pieces and their scores, the most probable first; equal ones by code points."""
    return sorted(pieces.items(), key=lambda item: (-item[1], item[0]))


def max_characters(max_memory: int) -> int:
    """Characters of distinct words that a third of the memory has room for, at least 100,000."""
    return max(100_000, min(_MOST, max_memory // 3 // _BYTES_PER_CHARACTER))


def fit_pieces(
    words: Mapping[str, int], alphabet: set[str], size: int, most: int, progress: Progress
) -> dict[str, float]:
    """Pieces and the logarithms of their probabilities, slightly more than ``size``.

    Args:
        most: Maximum number of characters of distinct words; the rarest words are left out.
    """
    lattice = Lattice(_segments(words, alphabet, most), _SEEDS)
    scores = _prune_to_size(lattice, size, progress)
    return {lattice.text(number): score for number, score in enumerate(scores.tolist())}


def _segments(words: Mapping[str, int], alphabet: set[str], most: int) -> Counter[str]:
    """The parts of words that no piece crosses."""
    find = _pattern().findall
    segments: Counter[str] = Counter()
    for word, number in words.items():
        for segment in find(word):
            segments[segment] += number
    unknown = [segment for segment in segments if not alphabet.issuperset(segment)]
    for segment in unknown:
        number = segments.pop(segment)
        known = "".join(c if c in alphabet else "\0" for c in segment)
        for part in filter(None, known.split("\0")):
            segments[part] += number
    left, kept = most, Counter[str]()
    for segment, number in sorted(segments.items(), key=lambda item: (-item[1], item[0])):
        left -= len(segment)
        if left < 0:
            break
        kept[segment] = number
    return kept


@cache
def _pattern() -> re.Pattern[str]:
    """Runs of one kind of character, each with the mark of a word before it, if there is one."""
    wide = HAN + KANA
    is_wide = re.compile(f"[{wide}]").match
    letters = class_of(lambda code: category(code)[0] in "LM" and not is_wide(chr(code)))
    digits = class_of(lambda code: category(code)[0] == "N")
    many = f"{{1,{LONGEST_WORD - 1}}}"
    runs = f"[{wide}]{many}|[{letters}]{many}|[{digits}]{many}"
    return re.compile(
        f"{SPACE_MARK}?(?:{runs}|[^{wide}{letters}{digits}{SPACE_MARK}]{many})|{SPACE_MARK}"
    )


def _prune_to_size(lattice: Lattice, size: int, progress: Progress) -> Floats:
    """The logarithms of the probabilities of the remaining pieces, about ``size``."""
    seen = lattice.pieces.seen * lattice.pieces.length
    scores: Floats = np.log(seen) - np.log(seen.sum())
    wanted, begin = int(_SPARE * size), len(scores)
    while True:
        for _ in range(_ROUNDS):
            scores = _maximised(lattice, lattice.expected(np.exp(scores)))
        progress(begin - len(scores), max(1, begin - wanted))
        if len(scores) <= wanted:
            return scores
        kept = _most_useful(lattice, scores, max(wanted, int(_KEPT * len(scores))))
        if len(kept) == len(scores):
            return scores
        lattice.keep(kept)
        scores = scores[kept]


def _maximised(lattice: Lattice, expected: Floats) -> Floats:
    """Scores from expected counts; drops rare pieces, but no single characters."""
    from scipy.special import digamma

    kept = np.flatnonzero((expected >= _RARE) | (lattice.pieces.length == 1))
    lattice.keep(kept)
    counts = np.maximum(expected[kept], _RARE)
    # A Bayesian step: rare pieces get less than by the plain quotient.
    scores: Floats = digamma(counts) - digamma(counts.sum())
    return scores


def _most_useful(lattice: Lattice, scores: Floats, count: int) -> NDArray[np.int64]:
    """The numbers of the pieces to keep, sorted: those whose loss would cost the text most."""
    seen = lattice.best(scores)
    score, paths = lattice.alternatives(scores)
    total = seen.sum()
    single = lattice.pieces.length == 1
    # Without a piece, its occurrences are cut into its parts, which makes the text longer.
    parts = np.bincount(paths.piece, minlength=len(scores))
    with np.errstate(divide="ignore", invalid="ignore"):
        longer = np.log(total + seen * (parts - 1))
        part = np.log(seen[paths.part] + seen[paths.piece])
        without = np.bincount(paths.piece, part, len(scores)) - parts * longer
        loss = seen * (np.log(seen) - np.log(total) - without)
    # A piece that the best cut of its own text does not use is not needed; a character always is.
    loss[(seen == 0) | (score >= scores)] = -np.inf
    loss[single] = np.inf
    kept = np.flatnonzero(loss > -np.inf)
    order = np.argsort(-loss[kept], kind="stable")
    return np.sort(kept[order[:count]])


# --- All ways to cut all words into pieces, together ---
#
# Words are columns, the longest first, so the words of at least a given length are always the first
# columns, and a step from character ``start`` to character ``start + length`` is one operation on
# whole rows. The steps are in one flat array, with a range for each pair of start and length: the
# piece that each word has there.


LONGEST_PIECE = 16

LONGEST_WORD = 32
"""A word's probability stays within the range of floats: 1e-8 to the power of this."""


@dataclass(frozen=True)
class PieceTable:
    """Substrings of words.

    Attributes:
        word: A word that contains the piece.
        start: Where the piece begins in the word.
        length: Its number of characters.
        seen: How often it occurs in all words.
    """

    word: Ints
    start: Ints
    length: Ints
    seen: Floats

    def __len__(self) -> int:
        return len(self.word)

    def take(self, kept: Ints) -> PieceTable:
        """Some of the pieces, by number."""
        return PieceTable(self.word[kept], self.start[kept], self.length[kept], self.seen[kept])


class Lattice:
    """The words and the pieces in them.

    Attributes:
        words: The text of each word, the longest first.

    Args:
        counts: How often each word occurs; words have 1 to ``LONGEST_WORD`` characters.
    """

    def __init__(self, counts: Mapping[str, int], most: int) -> None:
        self.words = sorted(counts, key=lambda word: (-len(word), word))
        self._counts = np.array([counts[word] for word in self.words], dtype=np.float64)
        self._lengths = np.array([len(word) for word in self.words], dtype=np.int64)
        self._longest = len(self.words[0])
        # Number of words with at least this number of characters.
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
        """Drop all other pieces; the remaining ones get new numbers, in order."""
        number = np.full(len(self.pieces) + 1, len(kept), dtype=np.int32)
        number[kept] = np.arange(len(kept), dtype=np.int32)
        self._piece = number[self._piece]
        self.pieces = self.pieces.take(kept)

    def expected(self, probability: Floats) -> Floats:
        """How often each piece is expected over all ways to cut each word (forward-backward).

        Args:
            probability: The probability of each piece, [pieces]; above 0 for single characters.
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
        return _sum_by_number(self._piece, step, len(self.pieces) + 1)[:-1]

    def best(self, logarithm: Floats) -> Floats:
        """How often each piece is in the most probable ways to cut the words (Viterbi).

        Args:
            logarithm: The logarithm of the probability of each piece, [pieces].
        """
        step = np.append(logarithm, -np.inf)[self._piece]
        score = [np.full(reach, -np.inf) for reach in self._reach]
        back = np.zeros((self._longest + 1, len(self.words)), dtype=np.int64)
        score[0][:] = 0
        for start, length, part in self._steps():
            end = start + length
            candidates = score[start][: self._reach[end]] + step[part]
            better = candidates > score[end]
            score[end][better] = candidates[better]
            back[end, : len(better)][better] = length
        seen = np.zeros(len(self.pieces) + 1)
        word, end_of = np.arange(len(self.words)), self._lengths.copy()
        while len(word):
            length_of = back[end_of, word]
            end_of = end_of - length_of
            piece = self._piece[self._begin[end_of, length_of] + word]
            seen += _sum_by_number(piece, self._counts[word], len(seen))
            word, end_of = word[end_of > 0], end_of[end_of > 0]
        return seen[:-1]

    def alternatives(self, logarithm: Floats) -> tuple[Floats, Paths]:
        """The most probable way to cut each piece into smaller ones.

        Args:
            logarithm: The logarithm of the probability of each piece, [pieces].

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
                candidates = score[start, :count] + padded[self._piece[at]]
                if start == 0:
                    candidates[pieces.length[:count] == end] = -np.inf  # the piece itself
                better = candidates > score[end, :count]
                score[end, :count][better] = candidates[better]
                back[end, :count][better] = end - start
        total = np.empty(len(order))
        total[order] = score[pieces.length, np.arange(len(order))]
        return total, self._paths(order, pieces, back)

    def _paths(self, order: Ints, pieces: PieceTable, back: Ints) -> Paths:
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

    def _all_pieces(self) -> tuple[PieceTable, NDArray[np.int32]]:
        """All substrings that are seen twice, and all characters; and the piece of each step."""
        code = np.frombuffer("".join(self.words).encode("utf-32-le"), dtype="<u4")
        distinct, character = np.unique(code, return_inverse=True)
        begin = np.cumsum(self._lengths) - self._lengths
        rows = [character[begin[: self._reach[n + 1]] + n] for n in range(self._longest)]
        kinds: list[PieceTable] = []
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
            frequent, number = self._frequent(key, word, start, length)
            kinds.append(frequent)
            steps.append(np.where(number < 0, -1, number + known).astype(np.int32))
            before = np.split(number, np.cumsum(reach[:-1]))
            known, placed = known + len(frequent), placed + len(key)
        pieces = PieceTable(
            *(np.concatenate(parts) for parts in zip(*map(_columns, kinds), strict=True))
        )
        step = np.concatenate(steps)
        step[step < 0] = known
        return pieces, step

    def _frequent(self, key: Ints, word: Ints, start: Ints, length: int) -> tuple[PieceTable, Ints]:
        """The substrings of one length, and the number of each key's, -1 if it is too rare."""
        distinct, first, number = np.unique(key, return_index=True, return_inverse=True)
        seen = _sum_by_number(number, self._counts[word], len(distinct))
        frequent = (distinct >= 0) & ((seen >= 2) | (length == 1))
        new = np.where(frequent, np.cumsum(frequent) - 1, -1)
        at = first[frequent]
        return PieceTable(word[at], start[at], np.full(len(at), length), seen[frequent]), new[
            number
        ]


@dataclass(frozen=True)
class Paths:
    """Pieces and the smaller pieces that they may be cut into, in pairs."""

    piece: Ints
    part: Ints


def _sum_by_number(number: NDArray[np.integer[Any]], weights: Floats, size: int) -> Floats:
    """The sum of the weights of each number below ``size``."""
    return np.asarray(np.bincount(number, weights, size), dtype=np.float64)


def _columns(pieces: PieceTable) -> tuple[Ints, Ints, Ints, Floats]:
    return pieces.word, pieces.start, pieces.length, pieces.seen
