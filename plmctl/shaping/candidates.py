"""Candidates of a sampled softmax, drawn by a key."""

import numpy as np
from numpy.typing import ArrayLike

from plmctl.arrays import Ints
from plmctl.shaping.keys import fold, uniform


def log_uniform(key: ArrayLike, size: int, count: int) -> tuple[Ints, int]:
    """Distinct ids, id k with probability log((k + 2) / (k + 1)) / log(size + 1) a draw.

    That is nearly Zipf's law for ids that are sorted by frequency. Source: TensorFlow's
    ``log_uniform_candidate_sampler`` with ``unique=True``, which also draws until it has enough.

    Args:
        key: Of these draws.
        size: Ids are below this.
        count: How many, fewer than ``size``.

    Returns:
        The ids [count] as they came, and the number of draws.
    """
    draws = 2 * count
    while True:
        chance = uniform(fold(key, np.arange(draws)))
        ids = np.expm1(chance * np.log(size + 1)).astype(np.int64)
        ids = np.minimum(ids, size - 1)  # rounding at the upper end
        _, first = np.unique(ids, return_index=True)
        if len(first) >= count:
            first = np.sort(first)[:count]
            return ids[first], int(first[-1]) + 1
        draws *= 2
