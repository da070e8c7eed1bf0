"""Shuffled order without a list: position -> sample, in O(1) memory and time a sample.

A Feistel network over the smallest even number of bits that holds ``n`` is a bijection; walking on
until the value falls below ``n`` (cycle walking, Black and Rogaway, CT-RSA 2002) makes it a
permutation of ``range(n)``. Fewer than four walks are needed on average.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plmctl.shaping.keys import fold

_ROUNDS = 6
_TOGETHER = 1 << 18  # samples of a part


def permute(index: ArrayLike, n: ArrayLike, key: ArrayLike) -> NDArray[np.int64]:
    """The sample at each position of a permutation of ``range(n)``.

    Args:
        index: Positions, 0 <= index < n.
        n: Number of samples, one number or one a position.
        key: Which permutation, one key or one a position.

    Returns:
        int64 of the broadcast shape.
    """
    value, size, which = (np.atleast_1d(a) for a in np.broadcast_arrays(index, n, key))
    half = np.maximum(1, (np.ceil(np.log2(np.maximum(size, 2))).astype(np.int64) + 1) // 2)
    result = value.astype(np.uint64)
    walking = np.ones(result.shape, dtype=bool)
    while walking.any():
        result[walking] = _feistel(result[walking], half[walking], which[walking])
        walking = result >= size.astype(np.uint64)
    return result.astype(np.int64).reshape(np.broadcast(index, n, key).shape)


def permuted(n: int, key: ArrayLike | None) -> Iterator[NDArray[np.int64]]:
    """A whole permutation of ``range(n)``, in parts; without a key, the numbers as they are."""
    for first in range(0, n, _TOGETHER):
        positions = np.arange(first, min(first + _TOGETHER, n))
        yield positions if key is None else permute(positions, n, key)


def _feistel(
    value: NDArray[np.uint64], half: NDArray[np.int64], key: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    bits = half.astype(np.uint64)
    mask = (np.uint64(1) << bits) - np.uint64(1)
    left, right = value >> bits, value & mask
    for round_ in range(_ROUNDS):
        left, right = right, left ^ (fold(key, round_, right) & mask)
    return (left << bits) | right
