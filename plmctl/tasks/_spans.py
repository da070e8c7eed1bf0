"""From logits of starts and ends to answers: candidates of each window, then the best of a row.

Source: google-research/bert, run_squad.py; google-research/albert, squad_utils.py for beams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Ints

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Window:
    """A window as its logits see it.

    Attributes:
        offset: Cell of its first context piece.
        start: That piece's number in the context.
        size: Context pieces.
        own: [size] whether the piece has its most context here: an answer may start there.
    """

    offset: int
    start: int
    size: int
    own: NDArray[np.bool_]

    @property
    def cells(self) -> int:
        """Cells up to the end of the context, the question's among them."""
        return self.offset + self.size


@dataclass(frozen=True)
class Candidate:
    """An answer: its first and last piece in the context, and the score."""

    first: int
    last: int
    score: float


@dataclass(frozen=True)
class Found:
    """A text that may be the answer.

    Attributes:
        text: "" for no answer.
        start: Character of the context; None for no answer.
        score: A sum of logits.
    """

    text: str
    start: int | None
    score: float


def from_logits(
    starts: Floats, ends: Floats, window: Window, top: int, longest: int
) -> list[Candidate]:
    """The pairs of the ``top`` starts and the ``top`` ends of a window that can be an answer.

    Args:
        starts: [L] logits; those after the window's cells are padding, which is not looked at.
        ends: [L].
        window: Where the context is.
        top: Starts, and ends.
        longest: Pieces of the longest answer.
    """
    # The last separator takes part, as in the published code: it may be among the best.
    starts, ends = starts[: window.cells + 1], ends[: window.cells + 1]
    first, last = (np.argsort(-logits, kind="stable")[:top] for logits in (starts, ends))
    pairs_first, pairs_last = np.repeat(first, len(last)), np.tile(last, len(first))
    scores = starts[pairs_first].astype(np.float64) + ends[pairs_last]
    return _allowed(pairs_first, pairs_last, scores, window, longest)


def from_beams(
    first: Ints, last: Ints, scores: Floats, window: Window, longest: int
) -> list[Candidate]:
    """The pairs of a beam that can be an answer.

    Args:
        first: [K] cells of the starts.
        last: [K, K] of the ends of each.
        scores: [K, K] sums of log-probabilities.
        window: Where the context is.
        longest: Pieces of the longest answer.
    """
    repeated = np.repeat(first, last.shape[1])
    return _allowed(repeated, last.ravel(), scores.ravel().astype(np.float64), window, longest)


def _allowed(
    first: Ints, last: Ints, scores: Floats, window: Window, longest: int
) -> list[Candidate]:
    inside = (first >= window.offset) & (last < window.cells)
    right = inside & (last >= first) & (last - first < longest)
    shift = window.start - window.offset
    return [
        Candidate(int(a) + shift, int(b) + shift, float(score))
        for a, b, score in zip(first[right], last[right], scores[right], strict=True)
        if window.own[a - window.offset]
    ]


def n_best(
    candidates: Sequence[Candidate],
    text_of: Callable[[int, int], tuple[str, int]],
    silence: float | None,
    keep: int,
) -> list[Found]:
    """The best texts, each once, the best first.

    Args:
        candidates: Of all windows of a row, in their order, which decides between equal scores.
        text_of: The text from a first to a last piece, and the character that it starts at.
        silence: The score of no answer, which is then among the best in any case; None where it is
            none of the choices.
        keep: Texts.
    """
    found: dict[str, Found] = {}
    for candidate in sorted(candidates, key=lambda one: -one.score):
        if len(found) == keep:
            break
        text, start = text_of(candidate.first, candidate.last)
        if text and text not in found:
            found[text] = Found(text, start, candidate.score)
    ranked = list(found.values())
    if silence is not None:
        better = [one for one in ranked if one.score >= silence]
        ranked = [*better, Found("", None, silence), *ranked[len(better) :]]
        ranked = ranked[:keep] if len(better) < keep else [*ranked[:keep], ranked[keep]]
    return ranked


def probabilities(found: Sequence[Found]) -> list[float]:
    """The softmax of the scores of texts."""
    scores = np.array([one.score for one in found])
    raised = np.exp(scores - scores.max(initial=-np.inf)) if len(scores) else scores
    return [float(value) for value in raised / raised.sum()] if len(scores) else []
