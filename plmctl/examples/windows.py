"""Long contexts as overlapping windows, and the place of an answer in its context.

Source: google-research/bert, run_squad.py.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Ints
from plmctl.characters import ALL_HAN

# Each of these characters is a word: Chinese characters, and the marks and full-width forms of
# Chinese text.
_ALONE = f"\u3000-\u303f\uff00-\uffef{ALL_HAN}"
_SPACE = " \t\r\n\u202f"
_WORD = re.compile(f"[{_ALONE}]|[^{_SPACE}{_ALONE}]+")


@dataclass(frozen=True)
class PieceWindows:
    """Overlapping stretches of a context.

    Attributes:
        starts: [W] first pieces.
        sizes: [W] numbers of pieces.
    """

    starts: Ints
    sizes: Ints


def windows(length: int, room: int, stride: int) -> PieceWindows:
    """Windows from the start, ``stride`` pieces apart, until one reaches the end.

    ``stride`` is the step, as in BERT's code; what transformers calls stride is the overlap.

    Args:
        length: Pieces of the context; a context of none has one window of none.
        room: Pieces that a window has at most.
        stride: Pieces from a window to the next; at most ``room``, so that windows have no gaps.
    """
    step = min(room, stride)
    count = 1 + max(0, -(-(length - room) // step))
    starts = np.arange(count) * step
    return PieceWindows(starts, np.minimum(room, length - starts))


def owners(spans: PieceWindows, length: int) -> Ints:
    """[length] the window in which the smaller of a piece's two contexts is largest.

    A hundredth of the window's size is added; of equal windows the first is used.
    """
    at = np.arange(length)
    left = at - spans.starts[:, None]
    right = spans.sizes[:, None] - 1 - left
    score = np.minimum(left, right) + 0.01 * spans.sizes[:, None]
    best: Ints = np.where((left >= 0) & (right >= 0), score, -np.inf).argmax(0)
    return best


def words(text: str) -> Ints:
    """[W, 2] where the words of a text begin and end: between spaces, and Chinese characters."""
    spans = [match.span() for match in _WORD.finditer(text)]
    return np.array(spans, dtype=np.int64).reshape(-1, 2)


def covering(text: str, spans: Ints, answer: str, start: int) -> tuple[int, int] | None:
    """The characters of the words that contain an answer, if it is at its start position.

    BERT's code accepts an answer anywhere in those words. An answer that is a character off is
    refused here: its row may have other errors.

    Args:
        spans: Its ``words``.
        answer: The text in the data, which may have other spaces.
        start: The first character in the data.

    Returns:
        First character and end; None if the answer is not there.
    """
    there = text[start : start + len(answer)] if start >= 0 else ""
    if there.split() != answer.split() or not answer.strip():
        return None
    ends = [start, start + len(answer) - 1]
    # A space belongs to the word before it.
    first, last = np.maximum(np.searchsorted(spans[:, 0], ends, side="right") - 1, 0)
    return int(spans[first, 0]), int(spans[last, 1])


def pieces_over(offsets: NDArray[np.int32], begin: int, end: int) -> tuple[int, int] | None:
    """First and last piece that has a character of [begin, end); None if there is none.

    Args:
        offsets: [N, 2] characters of each piece, in order.
    """
    first = int(np.searchsorted(offsets[:, 1], begin, side="right"))
    last = int(np.searchsorted(offsets[:, 0], end, side="left")) - 1
    return (first, last) if first <= last else None


def tightened(
    ids: NDArray[np.int32], span: tuple[int, int], answer: Sequence[int]
) -> tuple[int, int]:
    """The first part of a span that has the answer's pieces; the span if there is none.

    Words are often more than the answer: "(1895-1943)." for "1895".

    Args:
        ids: [N] pieces of the context.
        span: First and last piece of the words that the answer lies on.
        answer: Pieces of the answer alone.
    """
    first, last = span
    size, wanted = len(answer), list(answer)
    for start in range(first, last - size + 2):
        if size and ids[start : start + size].tolist() == wanted:
            return start, start + size - 1
    return span
