"""Unigram language model: the vocabularies of T5 and ALBERT.

A text's pieces are taken to be drawn one by one; their probabilities are fitted by expectation
maximisation over all ways to cut the words, beginning with all substrings, and the pieces whose
loss costs the text least are dropped, a quarter at a time, until the vocabulary has its size.

Source: Kudo 2018; google/sentencepiece, unigram_model_trainer.cc, with its constants. As there,
pieces do not cross the space between words, nor mix letters, digits, marks and Chinese or Japanese
characters.
"""

import re
from collections import Counter
from collections.abc import Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Floats
from plmctl.tokenization.algorithms import Learned, Progress, Task
from plmctl.tokenization.lattice import LONGEST_WORD, Lattice
from plmctl.tokenization.symbols import check_fits, frequent_characters
from plmctl.tokenization.units import class_of

_SEEDS = 1_000_000  # pieces to begin with
_ROUNDS = 2  # of expectation maximisation between two prunings
_KEPT = 0.75  # share of the pieces that a pruning leaves
_SPARE = 1.1  # pruning ends with so many times the pieces that are wanted
_RARE = 0.5  # pieces that are expected less often than this are dropped
_MOST = 4_000_000  # characters of distinct words, however much memory there is

BYTES = 350
"""Memory that learning takes for a character of distinct words."""

_SPACE = "\u2581"  # the mark before a word


def learn(task: Task, progress: Progress) -> Learned:
    """Pieces with the logarithms of their probabilities.

    Raises:
        ConfigError: The vocabulary is too small for the characters.
    """
    special = {*task.first, *task.last}
    alphabet = set(map(chr, frequent_characters(task.words, task.config.limit_alphabet)))
    # Special tokens are in the model's list of pieces too. Text that looks like one is cut into
    # characters only if there are pieces for these.
    needed = sorted(alphabet.union(*special))
    size = task.size - len(special)
    check_fits(len(needed), task.size, len(special))
    pieces = fitted(task.words, alphabet, size, room(task.config.max_memory), progress)
    known = {text: score for text, score in pieces.items() if text not in special}
    vocab = _vocabulary(known, needed, size)
    lowest = min(score for _, score in vocab)
    # Less probable than the characters of the longest, one by one.
    never = (max(map(len, special), default=0) + 1) * lowest
    first, last = ([(token, never) for token in tokens] for tokens in (task.first, task.last))
    return Learned({"vocab": [*first, *vocab, *last]}, len(vocab) + len(special))


def room(max_memory: int) -> int:
    """Characters of distinct words to learn from, in a third of the memory; not below 100,000."""
    return max(100_000, min(_MOST, max_memory // 3 // BYTES))


def fitted(
    words: Mapping[str, int], alphabet: set[str], size: int, most: int, progress: Progress
) -> dict[str, float]:
    """Pieces and the logarithms of their probabilities, a few more than ``size``.

    Args:
        words: How often each was seen.
        alphabet: Characters that pieces may have.
        size: Pieces that are wanted.
        most: Characters of distinct words; the rarest are left out.
        progress: Told of what is done and of all.
    """
    lattice = Lattice(_segments(words, alphabet, most), _SEEDS)
    scores = _fit(lattice, size, progress)
    return {lattice.text(number): score for number, score in enumerate(scores.tolist())}


def _segments(words: Mapping[str, int], alphabet: set[str], most: int) -> Counter[str]:
    """The parts of words that pieces may not go beyond."""
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
    """Runs of one kind of character, each with the mark before a word if it stands there."""
    wide = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    letters = class_of(lambda code: _is(code, "LM") and not re.match(f"[{wide}]", chr(code)))
    digits = class_of(lambda code: _is(code, "N"))
    many = f"{{1,{LONGEST_WORD - 1}}}"
    runs = f"[{wide}]{many}|[{letters}]{many}|[{digits}]{many}"
    return re.compile(f"{_SPACE}?(?:{runs}|[^{wide}{letters}{digits}{_SPACE}]{many})|{_SPACE}")


def _is(code: int, kinds: str) -> bool:
    import unicodedata

    return unicodedata.category(chr(code))[0] in kinds


def _fit(lattice: Lattice, size: int, progress: Progress) -> Floats:
    """The logarithms of the probabilities of the pieces that are left, about ``size``."""
    seen = lattice.pieces.seen * lattice.pieces.length
    scores: Floats = np.log(seen) - np.log(seen.sum())
    wanted, begin = int(_SPARE * size), len(scores)
    while True:
        for _ in range(_ROUNDS):
            scores = _maximised(lattice, lattice.expected(np.exp(scores)))
        progress(begin - len(scores), max(1, begin - wanted))
        if len(scores) <= wanted:
            return scores
        kept = _worth(lattice, scores, max(wanted, int(_KEPT * len(scores))))
        if len(kept) == len(scores):
            return scores
        lattice.keep(kept)
        scores = scores[kept]


def _maximised(lattice: Lattice, expected: Floats) -> Floats:
    """Scores from expected counts; drops the rare pieces, but no character."""
    from scipy.special import digamma

    kept = np.flatnonzero((expected >= _RARE) | (lattice.pieces.length == 1))
    lattice.keep(kept)
    counts = np.maximum(expected[kept], _RARE)
    # A Bayesian step, in which rare pieces lose more than by the plain quotient.
    scores: Floats = digamma(counts) - digamma(counts.sum())
    return scores


def _worth(lattice: Lattice, scores: Floats, count: int) -> NDArray[np.int64]:
    """The numbers of the pieces to keep, sorted: those whose loss would cost the text most."""
    seen = lattice.best(scores)
    score, paths = lattice.alternatives(scores)
    total = seen.sum()
    single = lattice.pieces.length == 1
    # Without a piece its occurrences are its parts', which makes the text longer.
    parts = np.bincount(paths.piece, minlength=len(scores))
    with np.errstate(divide="ignore", invalid="ignore"):
        longer = np.log(total + seen * (parts - 1))
        part = np.log(seen[paths.part] + seen[paths.piece])
        without = np.bincount(paths.piece, part, len(scores)) - parts * longer
        loss = seen * (np.log(seen) - np.log(total) - without)
    # A piece that the best way to cut it does not use is not needed; a character always is.
    loss[(seen == 0) | (score >= scores)] = -np.inf
    loss[single] = np.inf
    kept = np.flatnonzero(loss > -np.inf)
    order = np.argsort(-loss[kept], kind="stable")
    return np.sort(kept[order[:count]])


def _vocabulary(
    pieces: Mapping[str, float], needed: list[str], size: int
) -> list[tuple[str, float]]:
    """The best pieces and all characters that are needed, the most probable first."""
    lowest = min(pieces.values())
    chosen = {character: pieces.get(character, lowest) for character in needed}
    ranked = sorted(pieces.items(), key=lambda item: (-item[1], item[0]))
    for text, score in ranked:
        if len(chosen) == size:
            break
        chosen.setdefault(text, score)
    return sorted(chosen.items(), key=lambda item: (-item[1], item[0]))
