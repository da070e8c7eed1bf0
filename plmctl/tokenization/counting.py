"""Counting the units of a corpus in bounded memory.

The table of counts is exact until it is full. Then it is thinned by threshold sampling (Duffield,
Lund and Thorup 2005): with a threshold t, a unit that was seen c < t times stays with probability
c / t and counts as t, so that the expected count of every unit, and so of everything in it, is
kept; frequent units stay exact. Only text that hardly repeats gets there: gigabytes of English, and
tens of megabytes where no spaces are written.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plmctl.tokenization.units import Kind, pattern

LONGEST = 64
"""Characters of a unit; longer ones are cut: noise of machines, and text without spaces."""

_LOOK = 1_000_000  # characters read, at least, between two looks at the size of the table


@dataclass(frozen=True)
class Counts:
    """How often each unit was seen.

    Attributes:
        units: Distinct, sorted.
        numbers: Of each.
        characters: Of the text that was read.
        threshold: 1 if the counts are exact.
    """

    units: list[str]
    numbers: NDArray[np.int64]
    characters: int
    threshold: int


def count(texts: Iterable[str], kind: Kind, *, budget: int, seed: int) -> Counts:
    """Count the units of ``texts``.

    Args:
        texts: Read once, in order; the result depends on the order only if the table overflows.
        kind: Whose units.
        budget: Symbols that the distinct units may have together: bytes if ``kind`` is "bytes",
            else characters.
        seed: Of the draws when the table overflows.
    """
    find = pattern(kind, LONGEST).findall
    measure = _bytes if kind == "bytes" else len
    table: Counter[str] = Counter()
    draws = random.Random(seed)
    characters, next_look, threshold = 0, _LOOK, 1
    for text in texts:
        table.update(find(text))
        characters += len(text)
        if characters >= next_look:
            size = sum(map(measure, table))
            if size > budget:
                threshold, table = _thin(table, measure, budget // 2, threshold, draws)
                size = budget // 2
            # The table can hardly overflow before: most of a text is in it already.
            next_look = characters + max(_LOOK, (budget - size) // 4)
    if sum(map(measure, table)) > budget:
        threshold, table = _thin(table, measure, budget, threshold, draws)
    units = sorted(table)
    numbers = np.array([table[unit] for unit in units], dtype=np.int64)
    return Counts(units, numbers, characters, threshold)


def _thin(
    table: Counter[str],
    measure: Callable[[str], int],
    target: int,
    threshold: int,
    draws: random.Random,
) -> tuple[int, Counter[str]]:
    """A table of about ``target`` symbols, and the threshold that it took."""
    counts = np.fromiter(table.values(), np.float64, len(table))
    lengths = np.fromiter(map(measure, table), np.float64, len(table))
    while float((lengths * np.minimum(1.0, counts / threshold)).sum()) > target:
        threshold += 1 + threshold // 8
    thinned: Counter[str] = Counter()
    for unit, number in table.items():
        if number >= threshold or draws.randrange(threshold) < number:
            thinned[unit] = max(number, threshold)
    return threshold, thinned


def _bytes(text: str) -> int:
    return len(text.encode())
