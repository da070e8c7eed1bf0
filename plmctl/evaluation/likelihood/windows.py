"""Where long texts are cut: windows that overlap, and pieces of about one length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


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
