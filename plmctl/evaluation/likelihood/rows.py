"""Rows of ids of unequal length, in batches of about equal work: pure NumPy functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Window(NamedTuple):
    """A stretch of predictions that are made together.

    Attributes:
        begin: The first input.
        first: The first prediction that is scored; those before it were scored already.
        end: After the last input and the last prediction.
    """

    begin: int
    first: int
    end: int


def windows(count: int, size: int, stride: int) -> Iterator[Window]:
    """Sliding windows over ``count`` predictions, each of which is scored exactly once.

    Prediction i is that of token i + 1 from the tokens up to i. So a window has ``size`` inputs
    and a scored token always has one token of context at least, also where the stride is the size.

    Args:
        count: Tokens less one, or as many as there are with a begin token before them.
        size: Inputs of a window.
        stride: How far a window begins after the one before; 1 gives every token all the context
            that fits, ``size`` makes the windows disjoint.
    """
    scored = 0
    for begin in range(0, count, stride):
        end = min(begin + size, count)
        yield Window(begin, scored, end)
        scored = end
        if end == count:
            return


def pieces(count: int, size: int) -> list[tuple[int, int]]:
    """[start, end) of consecutive pieces of at most ``size`` tokens, as equal as can be.

    Equal ones, so that no piece at the end of a text is left with hardly any context.
    """
    number = -(-count // size)
    cuts = [count * part // number for part in range(number + 1)] if number else [0]
    return list(zip(cuts, cuts[1:], strict=False))


def batches(
    lengths: Ints, cells: int, *, window: int | None = None, most: int | None = None
) -> Iterator[Ints]:
    """The numbers of the rows in batches by length, so that there is little padding.

    Args:
        lengths: [N] tokens of each row.
        cells: Rows times the longest of them, at most; a longer row is a batch of its own.
        window: Tokens of a row that are computed at once, where that is not the row.
        most: Rows, at most.
    """
    order = np.argsort(lengths, kind="stable")[::-1]
    start = 0
    while start < len(order):
        longest = max(1, int(lengths[order[start]]))
        rows = max(1, min(cells // min(longest, window or longest), most or len(order)))
        yield order[start : start + rows]
        start += rows


def padded(rows: Sequence[Ints], fill: int) -> Ints:
    """Rows side by side, [B, longest], ``fill`` after the end of the shorter ones."""
    table = np.full((len(rows), max(map(len, rows), default=0)), fill, dtype=np.int64)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    return table


def sizes(rows: Sequence[Ints]) -> Ints:
    """Length of each row."""
    return np.fromiter(map(len, rows), np.int64, len(rows))
