"""Types of NumPy arrays, padding, and batches: of rows of unequal length, and of texts."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

IGNORE = -100
"""The target at positions without one; the index that PyTorch's losses ignore by default."""


def lengths_of(rows: Sequence[Sequence[int] | Ints]) -> Ints:
    """[N] the length of each row."""
    return np.fromiter(map(len, rows), np.int64, len(rows))


def spread(size: int, limit: int | None) -> Ints:
    """The numbers below ``size``, or ``limit`` of them, evenly spread.

    The first examples of a text are of its first documents, and of several files of the first one.
    """
    count = size if limit is None else min(size, limit)
    return np.arange(count) * size // max(count, 1)


def exact_shares(weights: Sequence[float], total: int) -> Ints:
    """Whole numbers in proportion to ``weights`` that sum to ``total`` (largest remainders).

    Args:
        weights: Positive, of any sum.

    Returns:
        [S], each within one of its exact share.
    """
    exact = np.asarray(weights, dtype=np.float64) / sum(weights) * total
    counts: Ints = np.floor(exact).astype(np.int64)
    left = total - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:left]] += 1
    return counts


def padded(
    rows: Sequence[Sequence[int] | Ints], fill: int, *, left: bool = False
) -> tuple[Ints, Bools]:
    """Rows as one array, padded to the length of the longest.

    Args:
        rows: [B] sequences of ids.
        left: Pad before the rows instead of after them.

    Returns:
        ids: [B, L].
        real: [B, L], False at padding.
    """
    lengths = lengths_of(rows)
    longest = int(lengths.max(initial=0))
    column = np.arange(longest)
    real = column >= longest - lengths[:, None] if left else column < lengths[:, None]
    ids = np.full(real.shape, fill, dtype=np.int64)
    if rows:
        ids[real] = np.concatenate(rows)
    return ids, real


def batches(
    lengths: Ints,
    *,
    max_tokens: int | None = None,
    window: int | None = None,
    most: int | None = None,
    same_length: bool = False,
) -> Iterator[Ints]:
    """The row numbers of batches of similar length, which need little padding.

    The longest rows come first, so that too little memory fails immediately.

    Args:
        lengths: [N] tokens of each row.
        max_tokens: Maximum number of tokens of a batch, padding included; a longer row is a batch
            by itself.
        window: Number of tokens of a row that are computed together, if that is not the whole row.
        most: Maximum number of rows.
        same_length: Only rows of equal length in a batch, so that there is no padding at all.
    """
    order = np.argsort(lengths, kind="stable")[::-1].copy()  # no negative strides, for torch
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        rows = min(most or len(order), len(order) - start)
        if max_tokens is not None:
            width = max(1, longest)
            rows = max(1, min(rows, max_tokens // min(width, window or width)))
        if same_length:
            rows = min(rows, int(np.count_nonzero(lengths[order[start:]] == longest)))
        yield order[start : start + rows]
        start += rows


def text_batches(texts: Iterable[str], characters: int) -> Iterator[list[str]]:
    """Batches of consecutive texts that reach this number of characters, but for the last one."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def mixed_bits(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Bits that depend on all bits: two steps of SplitMix64's function."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed
