"""Rows of different lengths as one array."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def padded(rows: Sequence[Sequence[int]], value: int) -> tuple[Ints, NDArray[np.bool_]]:
    """Rows filled up at their ends to the length of the longest.

    Args:
        rows: [B] sequences of ids.
        value: What padding is.

    Returns:
        ids: [B, L].
        real: [B, L], False at padding.
    """
    lengths = np.array([len(row) for row in rows])
    real = np.arange(lengths.max(initial=0)) < lengths[:, None]
    out = np.full(real.shape, value, dtype=np.int64)
    out[real] = np.concatenate(rows)
    return out, real
