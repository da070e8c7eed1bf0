"""Spans of whole words to predict, and the tokens at their boundaries (SpanBERT).

Source: facebookresearch/SpanBERT, fairseq's ``PairWithSpanMaskingScheme`` and ``span_masking``
(Joshi et al., 2020, arXiv:1907.10529).
"""

from dataclasses import dataclass

import numpy as np

from plmctl.arrays import Bools, Floats, Ints
from plmctl.examples.keys import Keys, below, fold, stream, uniform


def span_shares(p: float, longest: int) -> Floats:
    """Probability of spans of 1 to ``longest`` words: geometric, scaled to sum to one. [longest].

    Args:
        p: The probability of ending after each word.
    """
    weights = p * (1 - p) ** np.arange(longest)
    shares: Floats = weights / weights.sum()
    return shares


def budget(lengths: Ints, rate: float) -> Ints:
    """How many tokens are predicted: ceil(rate * length), special tokens not counted. [B] -> [B].

    Args:
        lengths: [B] tokens that may be predicted.
        rate: Their share. A product like 0.15 * 20 that is a whole number but for rounding counts
            as that number.
    """
    return np.asarray(np.ceil(rate * lengths - 1e-9), dtype=np.int64)


def choose_spans(candidates: Bools, starts: Bools, counts: Ints, keys: Keys, p: Floats) -> Bools:
    """Choose spans of whole words until exactly ``counts`` tokens of each row are covered.

    Again and again: a length in words, and an anchor among the tokens that are not chosen yet; the
    span begins with the anchor's word and continues to the right. Spans may overlap. The last one
    is cut where the count is reached. All rows take their k-th span together.

    Args:
        candidates: [B, L] tokens that may be chosen, one run in each row.
        starts: [B, L] whether a word starts here; the first candidate always starts one.
        counts: [B] how many, at most the candidates of the row.
        keys: [B] one key per row.
        p: [N] probability of each number of words.

    Returns:
        [B, L] chosen positions.
    """
    width = candidates.shape[1]
    first, sizes = candidates.argmax(axis=1), candidates.sum(axis=1)
    words = _WordTable.of(candidates, starts, first)
    chosen = np.zeros(candidates.size, dtype=bool)
    left = np.minimum(counts, sizes)
    draw = 0
    while len(rows := np.flatnonzero(left > 0)):
        draws = fold(keys[rows], stream("span"), draw)
        draw += 1
        anchor = rows * width + first[rows] + below(fold(draws, 0), sizes[rows])
        free = ~chosen[anchor]
        rows, anchor, draws = rows[free], anchor[free], draws[free]
        number = 1 + np.searchsorted(np.cumsum(p)[:-1], uniform(fold(draws, 1)), side="right")
        begin, end = words.span(rows, anchor, number)
        positions, owner = _ranges(begin, end)
        new = ~chosen[positions]
        # Of the new positions; within their row, after subtracting those before.
        rank = np.cumsum(new)
        before = np.concatenate([[0], rank[np.cumsum(end - begin) - 1]])[:-1]
        taken = new & (rank - before[owner] <= left[rows[owner]])
        chosen[positions[taken]] = True
        left[rows] -= np.bincount(owner[taken], minlength=len(rows))
    return chosen.reshape(candidates.shape)


@dataclass(frozen=True)
class _WordTable:
    """Positions in the flattened batch at which a word begins."""

    begins: Ints
    """[words] position where each word begins."""
    number: Ints
    """[B * L] the word of each position."""
    last: Ints
    """[B] one past the last word of each row."""
    ends: Ints
    """[B] one past the last candidate of each row."""

    @classmethod
    def of(cls, candidates: Bools, starts: Bools, first: Ints) -> "_WordTable":
        begins = candidates & starts
        begins[np.arange(len(begins)), first] = candidates.any(axis=1)
        flat = begins.reshape(-1)
        rows = np.arange(len(begins)) * begins.shape[1]
        return cls(
            np.flatnonzero(flat),
            np.cumsum(flat) - 1,
            np.cumsum(begins.sum(axis=1)),
            rows + first + candidates.sum(axis=1),
        )

    def span(self, rows: Ints, anchor: Ints, number: Ints) -> tuple[Ints, Ints]:
        """Positions [begin, end) of ``number`` words from the anchor's on, within the row."""
        word = self.number[anchor]
        past = word + number
        end = self.begins[np.minimum(past, len(self.begins) - 1)]
        return self.begins[word], np.where(past < self.last[rows], end, self.ends[rows])


def _ranges(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """All integers of the ranges [begin, end), one after the other, and the range of each."""
    sizes = end - begin
    owner = np.repeat(np.arange(len(sizes)), sizes)
    offset = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return begin[owner] + offset, owner


@dataclass(frozen=True)
class Spans:
    """The runs of chosen positions in a batch: overlapping and adjacent spans are one.

    Attributes:
        positions: [K] chosen positions of the flattened batch, ascending.
        number: [K] the run of each.
        first: [runs] first position of each run.
        last: [runs] last position of each run.
    """

    positions: Ints
    number: Ints
    first: Ints
    last: Ints
    width: int

    @classmethod
    def of(cls, chosen: Bools) -> "Spans":
        """The runs in [B, L] chosen positions."""
        width = chosen.shape[1]
        positions = np.flatnonzero(chosen)
        begins = np.diff(positions, prepend=-2) != 1
        begins |= positions % width == 0
        edges = np.flatnonzero(begins)
        last = positions[np.append(edges[1:], len(positions)) - 1] if len(edges) else positions
        return cls(positions, np.cumsum(begins) - 1, positions[edges], last, width)


def replace_spans(
    ids: Ints, spans: Spans, keys: Keys, shares: tuple[float, float], fillers: tuple[int, Ints]
) -> Ints:
    """The input ids: each run as a whole is masked, replaced by random tokens, or kept.

    Args:
        ids: [B, L] original ids.
        keys: [B] one key per row.
        shares: The shares of runs that are masked, and of runs that are replaced by random tokens.
        fillers: The mask's id, and [K] a random token for each chosen position.

    Returns:
        [B, L] a new array.
    """
    row, column = np.divmod(spans.first, spans.width)
    kind = uniform(fold(keys[row], stream("replace"), column))[spans.number]
    mask, random = shares
    filled = ids.reshape(-1).copy()
    filled[spans.positions] = np.select(
        [kind < mask, kind < mask + random],
        [np.int64(fillers[0]), fillers[1]],
        filled[spans.positions],
    )
    return filled.reshape(ids.shape)


@dataclass(frozen=True)
class Boundaries:
    """The targets of the span-boundary objective; all fields are [T]."""

    target: Ints
    """The position whose token is predicted."""
    left: Ints
    """The position before its run."""
    right: Ints
    """The position after its run."""
    place: Ints
    """Its place in the run, from 0."""


def boundaries(spans: Spans, candidates: Bools, longest: int) -> Boundaries:
    """The targets of the span-boundary objective.

    Runs that have no token of the text on one side (the row begins or ends with them) have none.

    Args:
        candidates: [B, L] tokens of the text: no special tokens, no padding.
        longest: Tokens of a run that are predicted, from its start.
    """
    text = np.pad(candidates.reshape(-1), 1)  # nothing outside the batch is text
    inside = text[spans.first] & text[spans.last + 2]  # shifted by one
    inside &= (spans.first % spans.width > 0) & (spans.last % spans.width < spans.width - 1)
    place = spans.positions - spans.first[spans.number]
    predicted = inside[spans.number] & (place < longest)
    number = spans.number[predicted]
    return Boundaries(
        spans.positions[predicted],
        spans.first[number] - 1,
        spans.last[number] + 1,
        place[predicted],
    )
