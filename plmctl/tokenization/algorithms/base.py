"""What the algorithms share: their task and result, words as symbols, and merging of pairs.

An algorithm is a file of this folder: from counted words to a vocabulary. BPE, byte-level BPE and
WordPiece learn by merging pairs (``learn_merged_vocabulary``) and differ in their symbols.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from plmctl import registry
from plmctl.config.tokenizer import TokenizerConfig
from plmctl.errors import ConfigError

# --- What an algorithm is ---


Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class VocabTask:
    """What is to be learnt.

    Attributes:
        words: How often each word of the pre-tokenizer was seen.
        size: Ids, special tokens included.
        first: Special tokens that have the first ids.
        last: Special tokens that have the last ids.
        config: The rest.
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
        size: Ids.
    """

    model: dict[str, Any]
    size: int


class Algorithm(Protocol):
    """What a file of this folder defines; the module itself is the object."""

    def learn(self, task: VocabTask, progress: Progress) -> Learned:
        """Learn a vocabulary; ``progress`` is told of what is done and of all."""


def get_algorithm(name: str) -> Algorithm:
    """The algorithm of that name.

    Raises:
        ConfigError: There is none; the message has the nearest.
    """
    return cast(Algorithm, registry.load("tokenization.algorithms", name))


# --- Words as rows of characters: the alphabet, and the symbols that merging starts with ---


COVERAGE = 0.99995
"""Share of the text whose characters are kept: ALBERT's."""

CONTINUES = "##"

ENDS = "</w>"

Mark = Literal["continues", "ends", None]
"""WordPiece marks what does not begin a word, classic BPE what ends one."""

_MARKED = 1 << 21  # above all code points


def words_as_symbols(
    counts: Mapping[str, int], mark: Mark, alphabet: NDArray[np.uint32] | None
) -> Words:
    """Words cut into characters.

    A word is cut in two where it has a character that is not in the alphabet.

    Args:
        counts: How often each word was seen.
        mark: Which characters are other symbols than elsewhere.
        alphabet: Code points to keep, sorted; None keeps all.

    Returns:
        The words; their tokens are the alphabet, then the marked characters, both sorted: those
        that occur of what does not begin a word, all of what ends one.
    """
    code, lengths = _code_points(counts)
    weights = np.repeat(np.array(list(counts.values()), dtype=np.float64), lengths)
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
    marked = alphabet + _MARKED if mark == "ends" else np.unique(symbol)
    kinds = np.union1d(alphabet, marked).astype(np.int64)
    return Words(
        [_symbol_text(int(kind), mark) for kind in kinds],
        np.searchsorted(kinds, symbol).astype(np.int32),
        starts[known],
        weights[known],
    )


def frequent_characters(counts: Mapping[str, int], limit: int | None) -> NDArray[np.uint32]:
    """Code points of the most frequent characters, sorted.

    Args:
        counts: How often each word was seen.
        limit: How many; None: as many as cover the text.
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
        ConfigError: With what is needed.
    """
    if needed + special > size:
        raise ConfigError(
            f"vocab_size: {size:,} is too small: {special:,} special tokens and {needed:,} single "
            f"characters need {special + needed:,} ids",
            "raise vocab_size, or lower limit_alphabet to leave rare characters out",
        )


def _symbol_text(kind: int, mark: Mark) -> str:
    character = chr(kind % _MARKED)
    if kind < _MARKED:
        return character
    return CONTINUES + character if mark == "continues" else character + ENDS


def _code_points(counts: Mapping[str, int]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The characters of all words in a row, and the length of each word."""
    code = np.frombuffer("".join(counts).encode("utf-32-le"), dtype="<u4")
    return code, np.fromiter(map(len, counts), np.int64, len(counts))


# --- Byte-pair encoding's learning: join the most frequent pair of neighbours, again and again ---
#
# Sennrich, Haddow and Birch 2016. Each distinct word counts as often as it was seen. The symbols of
# all words lie in one array, as a list linked both ways, and each symbol knows the places where it
# may stand, so that a merge costs what it changes. Ties go to the pair of the smaller ids, as in
# the tokenizers library, whose merges these are; the result depends on nothing but the counts.


def learn_merged_vocabulary(
    task: VocabTask, words: Words, join: Callable[[str, str], str], progress: Progress
) -> Learned:
    """The vocabulary and merges of words that are cut into symbols.

    Args:
        task: What is to be learnt.
        words: Its words.
        join: The text of two tokens as one.
        progress: Told of the tokens that there are and of all.

    Raises:
        ConfigError: The vocabulary is too small for the symbols.
    """
    size = task.size - len(task.first) - len(task.last)
    check_fits(len(words.tokens), task.size, len(task.first) + len(task.last))
    merges = learn_merges(
        words, size, min_frequency=task.config.min_frequency, join=join, progress=progress
    )
    tokens = [*task.first, *merges.tokens, *task.last]
    vocab = {token: number for number, token in enumerate(tokens)}
    pairs = [(merges.tokens[left], merges.tokens[right]) for left, right in merges.pairs]
    return Learned({"vocab": vocab, "merges": pairs}, len(vocab))


Ints = NDArray[np.int32]

Pair = tuple[int, int]

_SHIFT = 32  # a pair of symbols as one number: the left one above this bit

_FEW = 200  # pairs that are quicker summed one by one


@dataclass(frozen=True)
class Words:
    """Distinct words as symbols.

    Attributes:
        tokens: The text of each symbol.
        symbols: The symbols of all words in a row, [N].
        starts: Whether a word starts there, [N].
        weights: How often the word was seen, [N].
    """

    tokens: list[str]
    symbols: Ints
    starts: NDArray[np.bool_]
    weights: NDArray[np.float64]


@dataclass(frozen=True)
class Merges:
    """What was learnt.

    Attributes:
        tokens: The text of each symbol, the new ones last in the order of the merges.
        pairs: The merges in order.
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
        words: What was seen.
        size: Tokens in the end, those of ``words`` included.
        min_frequency: Rarer pairs are not merged.
        join: The text of two tokens as one.
        progress: Told of the tokens that there are and of ``size``.
    """
    chains = _Chains(words)
    pairs = _Pairs(chains)
    numbers = {token: number for number, token in enumerate(words.tokens)}
    tokens, merges = list(words.tokens), dict[Pair, None]()
    while len(tokens) < size and (pair := pairs.most_frequent(min_frequency)):
        text = join(tokens[pair[0]], tokens[pair[1]])
        # Two roads may lead to one text: "a" + "bc" and "ab" + "c".
        new = numbers.setdefault(text, len(tokens))
        if new == len(tokens):
            tokens.append(text)
            progress(len(tokens), size)
        pairs.change(*chains.merge(pair, new))
        merges.setdefault(pair)
    return Merges(tokens, list(merges))


class _Pairs:
    """How often each pair of neighbours is seen."""

    def __init__(self, chains: _Chains) -> None:
        keys, counts = _sum_by_key(*chains.all_pairs())
        self._counts: dict[int, float] = dict(zip(keys, counts, strict=True))
        # Entries may be out of date: the count is looked up when one comes to the top.
        self._heap = [(-count, key) for key, count in self._counts.items()]
        heapq.heapify(self._heap)

    def most_frequent(self, at_least: int) -> Pair | None:
        """The pair to merge, or None if all are rarer than ``at_least``."""
        while self._heap:
            entry, key = heapq.heappop(self._heap)
            count = self._counts[key]
            if -entry != count:
                if count >= at_least:
                    heapq.heappush(self._heap, (-count, key))
            elif count < at_least:
                return None
            else:
                return key >> _SHIFT, key & ((1 << _SHIFT) - 1)
        return None

    def change(
        self,
        gone: tuple[NDArray[np.int64], NDArray[np.float64]],
        new: tuple[NDArray[np.int64], NDArray[np.float64]],
    ) -> None:
        """Take pairs away and add others, given as keys and weights."""
        counts = self._counts
        for key, weight in zip(*_sum_by_key(*gone), strict=True):
            counts[key] -= weight
        for key, weight in zip(*_sum_by_key(*new), strict=True):
            counts[key] = count = counts.get(key, 0) + weight
            heapq.heappush(self._heap, (-count, key))


class _Chains:
    """The symbols of all words, each linked with its neighbours in its word."""

    def __init__(self, words: Words) -> None:
        size = len(words.symbols)
        self._end = size  # the neighbour where there is none
        self._symbol = np.append(words.symbols, -1).astype(np.int32)
        self._weight = np.append(words.weights, 0)
        place = np.arange(size + 1, dtype=np.int32)
        first = np.append(words.starts, True)
        self._left = np.where(first, size, place - 1).astype(np.int32)
        self._right = np.append(np.where(first[1:], size, place[1:]), size).astype(np.int32)
        order = np.argsort(words.symbols, kind="stable").astype(np.int32)
        ends = np.cumsum(np.bincount(words.symbols, minlength=len(words.tokens)))
        self._places: list[Ints] = np.split(order, ends[:-1])

    def all_pairs(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The key of the pair at each place that has a right neighbour, and its weight."""
        return self._pairs_at(np.arange(self._end, dtype=np.int32))

    def merge(
        self, pair: Pair, new: int
    ) -> tuple[
        tuple[NDArray[np.int64], NDArray[np.float64]], tuple[NDArray[np.int64], NDArray[np.float64]]
    ]:
        """Replace a pair by one symbol wherever it is, from left to right.

        Returns:
            The pairs that are gone by it and those that are new, as keys and weights.
        """
        place = self._occurrences(*pair)
        second = self._right[place]
        left, right = self._left[place], self._right[second]
        # A place may be named twice: in "abab" the first "b" is right of one pair, left of another.
        gone = self._pairs_at(_distinct(np.concatenate((left, place, second))))
        self._symbol[place], self._symbol[second] = new, -1
        self._right[place] = right
        self._left[right] = place
        self._left[self._end] = self._end
        touched = _distinct(np.concatenate((left, place)))
        added = self._pairs_at(touched[self._symbol[touched] >= 0])
        if new == len(self._places):
            self._places.append(place)
        else:
            self._places[new] = np.union1d(self._places[new], place)
        return gone, added

    def _occurrences(self, left: int, right: int) -> Ints:
        """Where the pair stands, sorted, without overlap."""
        symbol, places = self._symbol, self._places
        rarer = left if len(places[left]) <= len(places[right]) else right
        # What has been merged away since is forgotten here.
        found = places[rarer] = places[rarer][symbol[places[rarer]] == rarer]
        if rarer == left:
            found = found[symbol[self._right[found]] == right]
        else:
            found = self._left[found]
            found = found[symbol[found] == left]
        return self._every_other(found) if left == right else found

    def _every_other(self, places: Ints) -> Ints:
        """Of a symbol's pairs with itself those that are merged: in "aaaa" the first and third."""
        number = np.arange(len(places))
        follows = np.append(False, self._right[places[:-1]] == places[1:])[: len(places)]
        run = np.maximum.accumulate(np.where(follows, 0, number))
        merged: Ints = places[(number - run) % 2 == 0]
        return merged

    def _pairs_at(self, places: Ints) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        places = places[self._right[places] != self._end]
        left = self._symbol[places].astype(np.int64)
        return (left << _SHIFT) | self._symbol[self._right[places]], self._weight[places]


def _distinct(places: Ints) -> Ints:
    """As ``np.unique``, which costs several times as much where there are few: most merges."""
    found: Ints = np.sort(places)
    first: Ints = found[np.append(True, found[1:] != found[:-1])[: len(found)]]
    return first


def _sum_by_key(
    keys: NDArray[np.int64], weights: NDArray[np.float64]
) -> tuple[list[int], list[float]]:
    """Distinct keys and the sum of the weights of each."""
    if len(keys) > _FEW:
        distinct, number = np.unique(keys, return_inverse=True)
        return distinct.tolist(), np.bincount(number, weights, len(distinct)).tolist()
    sums: dict[int, float] = {}
    for key, weight in zip(keys.tolist(), weights.tolist(), strict=True):
        sums[key] = sums.get(key, 0.0) + weight
    return list(sums), list(sums.values())
