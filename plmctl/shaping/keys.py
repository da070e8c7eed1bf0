"""Counter-based randomness: every draw is a pure function of its key.

A key is a ``uint64``. ``fold(key, a, b)`` gives the key of counter ``(a, b)`` under ``key``, so a
draw names what it is for (seed, stream, epoch, sample, position) and needs no history: the same
number comes out whatever was drawn before, on any worker, after any resume.

The mixing function is SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): ``fold(key, 0)``,
``fold(key, 1)``, ... is exactly its output sequence for the seed ``key``.
"""

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

Keys = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_ONE = np.uint64(1)


def stream(name: str) -> int:
    """A 64-bit number for the name of a stream of draws ("order", "mask" ...)."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def fold(key: ArrayLike, *counters: ArrayLike) -> Keys:
    """The key of ``counters`` under ``key``; everything broadcasts.

    Args:
        key: Any integers, read modulo 2**64.
        *counters: Integers, folded in one after the other.

    Returns:
        uint64 keys of the broadcast shape.
    """
    mixed = _words(key)
    with np.errstate(over="ignore"):  # arithmetic is modulo 2**64 by intent
        for counter in counters:
            mixed = mixed + _GOLDEN * (_words(counter) + _ONE)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
            mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
            mixed = mixed ^ (mixed >> np.uint64(31))
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
