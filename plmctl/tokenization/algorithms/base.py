"""The base classes of the algorithms, words as symbols, and merging of pairs.

An algorithm is a file of this folder with one class: from counted words to a vocabulary. BPE,
byte-level BPE and WordPiece learn by merging pairs (``MergeAlgorithm``) and differ in their
symbols.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plmctl import registry
from plmctl.arrays import Bools, Ints
from plmctl.config.tokenizer import TokenizerConfig
from plmctl.errors import ConfigError

# --- What an algorithm is ---


Progress = Callable[[int, int], None]
"""``progress(done, total)``."""


@dataclass(frozen=True)
class VocabTask:
    """What to learn.

    Attributes:
        words: How often each word of the pre-tokenizer occurs.
        size: Number of ids, special tokens included.
        first: Special tokens with the first ids.
        last: Special tokens with the last ids.
    """

    words: Mapping[str, int]
    size: int
    first: list[str]
    last: list[str]
    config: TokenizerConfig


@dataclass(frozen=True)
class Learned:
    """A vocabulary.

    Attributes:
        model: ``vocab``, and ``merges`` for BPE, as the family's class takes them.
    """

    model: dict[str, Any]
    size: int


class Algorithm(ABC):
    """How a vocabulary is learned."""

    @abstractmethod
    def learn(self, task: VocabTask, progress: Progress) -> Learned:
        """Learn a vocabulary.

        Raises:
            ConfigError: The vocabulary is too small for the characters of the text.
        """

    def extra_memory(self, max_memory: int, characters: int | None = None) -> int:
        """Bytes that learning takes at most, besides the table of counts.

        Args:
            max_memory: The limit of the config, in bytes.
            characters: Characters of the text; None: any number.
        """
        return 0


class MergeAlgorithm(Algorithm):
    """Learning by merges: join the most frequent pair of neighbours, again and again.

    Sennrich, Haddow and Birch 2016. Each distinct word counts as often as it occurs.

    Attributes:
        mark: Which characters of a word are separate symbols, see ``Mark``.
    """

    mark: Mark = None

    def alphabet(self, task: VocabTask) -> NDArray[np.uint32]:
        """The code points to learn with, sorted; all others stay unknown."""
        return frequent_characters(task.words, task.config.limit_alphabet)

    def join(self, left: str, right: str) -> str:
        """The text of two symbols as one."""
        return left + right

    def learn(self, task: VocabTask, progress: Progress) -> Learned:
        """The symbols, then the merges by frequency."""
        words = words_as_symbols(task.words, self.mark, self.alphabet(task))
        num_special = len(task.first) + len(task.last)
        check_fits(len(words.tokens), task.size, num_special)
        merges = learn_merges(
            words,
            task.size - num_special,
            min_frequency=task.config.min_frequency,
            join=self.join,
            progress=progress,
        )
        tokens = [*task.first, *merges.tokens, *task.last]
        vocab = {token: id_ for id_, token in enumerate(tokens)}
        pairs = [(merges.tokens[left], merges.tokens[right]) for left, right in merges.pairs]
        return Learned({"vocab": vocab, "merges": pairs}, len(vocab))


def get_algorithm(name: str) -> type[Algorithm]:
    """The algorithm of that name.

    Raises:
        ConfigError: No such algorithm; the message has the nearest name.
    """
    return registry.member("tokenization.algorithms", name, Algorithm)


# --- Words as rows of characters: the alphabet, and the symbols that merging starts with ---


COVERAGE = 0.99995
"""Share of the text whose characters are kept: ALBERT's."""

CONTINUES = "##"

ENDS = "</w>"

Mark = Literal["continues", "ends", None]
"""WordPiece marks every character but the first of a word, classic BPE the last one."""

_MARKED = 1 << 21  # above all code points


def words_as_symbols(
    counts: Mapping[str, int], mark: Mark, alphabet: NDArray[np.uint32] | None
) -> Words:
    """Words cut into characters.

    A character that is not in the alphabet cuts its word in two.

    Args:
        alphabet: Code points to keep, sorted; None keeps all.

    Returns:
        The words; their tokens are the alphabet, then the marked characters, both sorted. With
        "continues", only marked characters that occur; with "ends", the whole alphabet.
    """
    code, lengths = _code_points(counts)
    weights = np.repeat(np.array(list(counts.values()), dtype=np.int64), lengths)
    ends = np.cumsum(lengths)
    starts = np.zeros(len(code), dtype=bool)
    starts[ends - lengths] = True
    symbol = code.astype(np.int64)
    if mark == "continues":
        symbol[~starts] += _MARKED
    elif mark == "ends":
        symbol[ends - 1] += _MARKED
    if alphabet is None:
        alphabet = np.unique(code)
    known = np.isin(code, alphabet)
    starts |= np.append(True, ~known[:-1])[: len(known)]
    symbol = symbol[known]
    # As in GPT-1's vocabulary, any character may end a word.
    others = alphabet + _MARKED if mark == "ends" else np.unique(symbol)
    kinds = np.union1d(alphabet, others).astype(np.int64)
    return Words(
        [
            marked(chr(kind - _MARKED), mark) if kind >= _MARKED else chr(kind)
            for kind in kinds.tolist()
        ],
        np.searchsorted(kinds, symbol).astype(np.int32),
        starts[known],
        weights[known],
    )


def frequent_characters(counts: Mapping[str, int], limit: int | None) -> NDArray[np.uint32]:
    """Code points of the most frequent characters, sorted.

    Args:
        limit: How many; None: as many as cover the text (``COVERAGE``).
    """
    code, lengths = _code_points(counts)
    weights = np.repeat(np.array(list(counts.values()), dtype=np.float64), lengths)
    distinct, number = np.unique(code, return_inverse=True)
    seen = np.bincount(number, weights)
    order = np.argsort(-seen, kind="stable")
    if limit is None:
        # Until the rest is less than the share that may be unknown.
        rest = seen.sum() - np.cumsum(seen[order])
        limit = int(np.count_nonzero(rest > (1 - COVERAGE) * seen.sum())) + 1
    return np.asarray(np.sort(distinct[order[:limit]]))


def check_fits(needed: int, size: int, special: int) -> None:
    """Refuse a vocabulary that is too small for its single characters and special tokens.

    Raises:
        ConfigError: The message has the number of ids that are needed.
    """
    if needed + special > size:
        raise ConfigError(
            f"vocab_size: {size:,} is too small: {special:,} special tokens and {needed:,} single "
            f"characters need {special + needed:,} ids",
            "increase vocab_size, or set limit_alphabet to leave rare characters out",
        )


def marked(character: str, mark: Mark) -> str:
    """The symbol of a character with its mark."""
    return CONTINUES + character if mark == "continues" else character + ENDS


def _code_points(counts: Mapping[str, int]) -> tuple[NDArray[np.uint32], Ints]:
    """The characters of all words, one word after the other, and the length of each word."""
    code = np.frombuffer("".join(counts).encode("utf-32-le"), dtype="<u4")
    return code, np.fromiter(map(len, counts), np.int64, len(counts))


# --- Merging ---
#
# The symbols of all words lie in one array, as a list linked both ways, and each symbol knows the
# places where it may be, so that a merge costs what it changes. Equal pairs: the one with the
# smaller ids is first, as in the tokenizers library, which learns the same merges. The result
# depends on nothing but the counts. Half of the merges change at most seven places: NumPy finds
# them, and a plain loop changes them, which is faster than ten calls of NumPy.


Symbols = NDArray[np.int32]
"""Symbols, or their places: half of the memory of ``Ints``."""

Pair = tuple[int, int]

_SHIFT = 32  # the key of a pair of symbols: the left one above this bit, the right one below

_KEY = 64  # the bits of a key


@dataclass(frozen=True)
class Words:
    """Distinct words as symbols.

    Attributes:
        symbols: The symbols of all words, one word after the other, [N].
        starts: Whether a word starts there, [N].
        weights: How often the word occurs, [N].
    """

    tokens: list[str]
    symbols: Symbols
    starts: Bools
    weights: Ints


@dataclass(frozen=True)
class Merges:
    """Learned merges.

    Attributes:
        tokens: The text of each symbol; the new ones come last, in the order of the merges.
    """

    tokens: list[str]
    pairs: list[Pair]


def learn_merges(
    words: Words,
    size: int,
    *,
    min_frequency: int,
    join: Callable[[str, str], str],
    progress: Callable[[int, int], None],
) -> Merges:
    """Merge until there are ``size`` tokens, or no pair is frequent enough.

    Args:
        size: Number of tokens in the end, those of ``words`` included.
        min_frequency: Rarer pairs are not merged.
        join: The text of two tokens as one.
        progress: Called with the number of tokens so far, and ``size``.
    """
    chains = _Chains(words)
    pairs = _Pairs(chains, min_frequency)
    numbers = {token: number for number, token in enumerate(words.tokens)}
    tokens, merges = list(words.tokens), dict[Pair, None]()
    while len(tokens) < size and (pair := pairs.most_frequent()):
        text = join(tokens[pair[0]], tokens[pair[1]])
        # Two pairs may have the same text: "a" + "bc" and "ab" + "c".
        new = numbers.setdefault(text, len(tokens))
        if new == len(tokens):
            tokens.append(text)
            progress(len(tokens), size)
        pairs.change(chains.merge(pair, new))
        merges.setdefault(pair)
    return Merges(tokens, list(merges))


class _Pairs:
    """How often each pair of neighbours occurs.

    Args:
        at_least: Rarer pairs are never the most frequent one.
    """

    def __init__(self, chains: _Chains, at_least: int) -> None:
        keys, weights = chains.pairs()
        keys, number = np.unique(keys, return_inverse=True)
        counts = np.bincount(number, weights, len(keys)).astype(np.int64).tolist()
        self._counts: dict[int, int] = dict(zip(keys.tolist(), counts, strict=True))
        self._at_least = at_least
        # The count with its sign changed and the key in one number, which is compared faster than a
        # tuple. Entries may be out of date: the count is checked when an entry comes to the top.
        self._heap = [
            -count << _KEY | key for key, count in self._counts.items() if count >= at_least
        ]
        heapq.heapify(self._heap)

    def most_frequent(self) -> Pair | None:
        """The pair to merge next; None if all are too rare."""
        while self._heap:
            entry = heapq.heappop(self._heap)
            key = entry & ((1 << _KEY) - 1)
            count = self._counts[key]
            if entry == -count << _KEY | key:
                return key >> _SHIFT, key & ((1 << _SHIFT) - 1)
            if count >= self._at_least:
                heapq.heappush(self._heap, -count << _KEY | key)
        return None

    def change(self, changes: Mapping[int, int]) -> None:
        """Add to the counts of pairs, given as keys."""
        counts, heap, push, at_least = self._counts, self._heap, heapq.heappush, self._at_least
        for key, change in changes.items():
            if change < 0:
                counts[key] += change
            elif change > 0:
                counts[key] = count = counts.get(key, 0) + change
                if count >= at_least:
                    push(heap, -count << _KEY | key)


class _Chains:
    """The symbols of all words, each linked with its neighbours in its word."""

    def __init__(self, words: Words) -> None:
        size = len(words.symbols)
        self._end = size  # stands for "no neighbour"
        self._symbol = np.append(words.symbols, -1).astype(np.int32)
        self._weight = np.append(words.weights, 0)
        place = np.arange(size + 1, dtype=np.int32)
        first = np.append(words.starts, True)
        self._left = np.where(first, size, place - 1).astype(np.int32)
        self._right = np.append(np.where(first[1:], size, place[1:]), size).astype(np.int32)
        order = np.argsort(words.symbols, kind="stable").astype(np.int32)
        ends = np.cumsum(np.bincount(words.symbols, minlength=len(words.tokens)))
        self._places: list[Symbols] = np.split(order, ends[:-1])
        # Views give plain numbers, faster than arrays do.
        arrays = self._symbol, self._left, self._right, self._weight
        self._views = [array.data for array in arrays]

    def pairs(self) -> tuple[Ints, Ints]:
        """The key of the pair at each place that has a right neighbour, and its weight."""
        places = np.flatnonzero(self._right != self._end)
        left = self._symbol[places].astype(np.int64)
        return (left << _SHIFT) | self._symbol[self._right[places]], self._weight[places]

    def merge(self, pair: Pair, new: int) -> dict[int, int]:
        """Replace a pair by one symbol wherever it occurs, from left to right.

        Returns:
            What this adds to the counts of pairs, by key.
        """
        symbol, lefts, rights, weights = self._views
        end, total = self._end, 0
        before, after = dict[int, int](), dict[int, int]()
        places = self._occurrences(*pair)
        for place in places.tolist():
            second, left, weight = rights[place], lefts[place], weights[place]
            right = rights[second]
            total += weight
            if left != end:
                beside = symbol[left]
                before[beside] = before.get(beside, 0) + weight
            if right != end:
                beside = symbol[right]
                after[beside] = after.get(beside, 0) + weight
                lefts[right] = place
            symbol[place] = new
            symbol[second] = -1
            rights[place] = right
        if new == len(self._places):
            self._places.append(places)
        else:
            self._places[new] = np.union1d(self._places[new], places)
        return _changes(pair, new, total, before, after)

    def _occurrences(self, left: int, right: int) -> Symbols:
        """The positions of the pair, sorted, without overlap."""
        symbol, places = self._symbol, self._places
        rarer = left if len(places[left]) <= len(places[right]) else right
        # Places that another merge has changed since are removed here.
        at: Symbols = places[rarer][symbol.take(places[rarer]) == rarer]
        places[rarer] = at
        if rarer == left:
            at = at[symbol.take(self._right.take(at)) == right]
        else:
            at = self._left.take(at)
            at = at[symbol.take(at) == left]
        if left != right:
            return at
        # Pairs of a symbol with itself overlap: in "aaaa" the first and the third are merged.
        number = np.arange(len(at))
        follows = np.append(False, self._right[at[:-1]] == at[1:])[: len(at)]
        run = np.maximum.accumulate(np.where(follows, 0, number))
        merged: Symbols = at[(number - run) % 2 == 0]
        return merged


def _changes(
    pair: Pair, new: int, total: int, before: dict[int, int], after: dict[int, int]
) -> dict[int, int]:
    """What was beside an occurrence of the pair is beside the new symbol.

    Args:
        before: How often each symbol was on its left, by the symbols at that time: "abab" has the
            new symbol before the second occurrence.
        after: The same on its right.
    """
    first, last = pair
    changes = {first << _SHIFT | last: -total}
    for symbol, number in before.items():
        lost, won = symbol << _SHIFT | first, symbol << _SHIFT | new
        changes[lost] = changes.get(lost, 0) - number
        changes[won] = changes.get(won, 0) + number
    for symbol, number in after.items():
        lost, won = last << _SHIFT | symbol, new << _SHIFT | symbol
        changes[lost] = changes.get(lost, 0) - number
        changes[won] = changes.get(won, 0) + number
    return changes
