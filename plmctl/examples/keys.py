"""Counter-based randomness: every draw, and every shuffled order, is a pure function of its key.

A key is a ``uint64``. ``fold(key, a, b)`` gives the key of counter ``(a, b)`` under ``key``, so a
draw is identified by its purpose (seed, stream, epoch, sample, position) and needs no history: it
is the same number whatever was drawn before, on any worker, after any resume.

The mixing function is SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): ``fold(key, 0)``,
``fold(key, 1)``, ... is exactly its output sequence for the seed ``key``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

# --- Keys and draws ---


Keys = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)

_MIX_2 = np.uint64(0x94D049BB133111EB)

_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)

_ONE = np.uint64(1)


def stream(name: str) -> int:
    """The 64-bit number of a named stream of draws ("order", "mask" ...)."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def fold(key: ArrayLike, *counters: ArrayLike) -> Keys:
    """The key of ``counters`` under ``key``; everything broadcasts.

    Args:
        key: Any integers, read modulo 2**64.

    Returns:
        uint64 keys of the broadcast shape.
    """
    mixed = _words(key)
    with np.errstate(over="ignore"):  # arithmetic is modulo 2**64 by intent
        for counter in counters:
            mixed = mixed + _GOLDEN * (_words(counter) + _ONE)
            # In place from here on: with large arrays, three times as fast as new ones.
            mixed ^= mixed >> _SHIFT_1
            mixed *= _MIX_1
            mixed ^= mixed >> _SHIFT_2
            mixed *= _MIX_2
            mixed ^= mixed >> _SHIFT_3
    return mixed


def uniform(keys: ArrayLike) -> NDArray[np.float64]:
    """Numbers in [0, 1) from the upper 53 bits of ``keys``, same shape."""
    return np.asarray((_words(keys) >> np.uint64(11)) * 2.0**-53, dtype=np.float64)


def below(keys: ArrayLike, bound: ArrayLike) -> NDArray[np.int64]:
    """Integers in [0, bound), ``bound`` < 2**53; everything broadcasts.

    Scaling 53 bits leaves a bias under ``bound / 2**53``, far below what any statistic can see.
    """
    return np.asarray(uniform(keys) * np.asarray(bound), dtype=np.int64)


def _words(values: ArrayLike) -> Keys:
    array = np.asarray(values)
    if array.dtype == object or array.dtype.kind not in "ui":  # a Python integer over 2**63
        return np.asarray(int(values) % 2**64, dtype=np.uint64)  # type: ignore[arg-type]  # 0-d only
    return array.astype(np.uint64)


# --- Shuffled order without a list: position -> sample, in O(1) memory and time per sample ---
#
# A Feistel network over the smallest even number of bits that holds ``n`` is a bijection; walking
# on until the value falls below ``n`` (cycle walking, Black and Rogaway, CT-RSA 2002) makes it a
# permutation of ``range(n)``. Fewer than four walks are needed on average.


_ROUNDS = 6

_PART = 1 << 18  # samples per part


def permute(index: ArrayLike, n: ArrayLike, key: ArrayLike) -> NDArray[np.int64]:
    """The sample at each position of a permutation of ``range(n)``.

    Args:
        index: Positions, 0 <= index < n.
        n: Number of samples, one number or one per position.
        key: Which permutation, one key or one per position.

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
    for first in range(0, n, _PART):
        positions = np.arange(first, min(first + _PART, n))
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
