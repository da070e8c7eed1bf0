"""Laying token spans out as padded rows with special tokens, as index arrays.

A layout says where in the token store each cell of a batch comes from: a token position, or one of
the negative codes below. Filling it in is one gather.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Ints

PAD, CLS, SEP = -1, -2, -3


@dataclass(frozen=True)
class Layout:
    """A batch before its tokens are read.

    Shapes: source and segments [B, L], lengths [B].
    """

    source: Ints
    """A token position of the store, or PAD, CLS, SEP."""
    segments: Ints
    """0 for [CLS] A [SEP], 1 for B [SEP], 0 for padding."""
    lengths: Ints
    """Cells that are no padding."""


def layout(starts: list[Ints], ends: list[Ints], multiple: int = 8) -> Layout:
    """Rows ``[CLS] span [SEP]`` with one span, ``[CLS] A [SEP] B [SEP]`` with two.

    Args:
        starts: One array [B] of token positions for each span.
        ends: Their exclusive ends.
        multiple: The width is the longest row rounded up to this, which suits vector units.

    Returns:
        The layout, padded on the right.
    """
    sizes = [end - start for start, end in zip(starts, ends, strict=True)]
    lengths = np.sum(sizes, axis=0) + 1 + len(sizes)
    width = -(-int(lengths.max()) // multiple) * multiple
    column = np.arange(width)[None, :]
    source = np.full((len(lengths), width), PAD, dtype=np.int64)
    segments = np.zeros_like(source)
    source[:, 0] = CLS
    at = np.ones((len(lengths), 1), dtype=np.int64)
    for which, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        past = at + size[:, None]
        inside = (column >= at) & (column < past)
        source = np.where(inside, start[:, None] + column - at, source)
        source = np.where(column == past, SEP, source)
        segments = np.where((column >= at) & (column <= past), which, segments)
        at = past + 1
    return Layout(source, segments, lengths)


def fill(source: Ints, tokens: NDArray[np.int32], specials: dict[int, int]) -> Ints:
    """Ids of a layout.

    Args:
        source: [B, L] of a layout.
        tokens: [B, L] ids at ``maximum(source, 0)``.
        specials: The id for each negative code.

    Returns:
        [B, L] ids.
    """
    ids = tokens.astype(np.int64)
    for code, special in specials.items():
        ids[source == code] = special
    return ids
