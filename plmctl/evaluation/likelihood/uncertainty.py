"""Standard errors, of means over items and of ratios of sums over documents."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from plmctl.shaping.keys import below, fold, stream

_RESAMPLES = 1000
_CELLS = 1 << 20  # draws at once

Floats = NDArray[np.float64]


def of_mean(values: Floats) -> float | None:
    """Standard error of the mean of independent items; None of fewer than two."""
    if len(values) < 2:
        return None
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def of_ratio(
    numerator: Floats,
    denominator: Floats,
    seed: int,
    function: Callable[[Floats], Floats] = lambda ratio: ratio,
) -> float | None:
    """Standard error of ``function(sum of numerator / sum of denominator)`` over documents.

    The bootstrap: the deviation of the figure over 1,000 draws of as many documents, with
    replacement (Efron, 1979).

    Args:
        numerator: [N], of each document.
        denominator: [N].
        seed: Of the draws.
        function: Of the ratio, elementwise.

    Returns:
        None of fewer than two documents.
    """
    size = len(numerator)
    if size < 2:
        return None
    key = fold(seed, stream("bootstrap"))
    at_once = max(1, _CELLS // size)
    found = []
    for start in range(0, _RESAMPLES, at_once):
        draws = np.arange(start, min(start + at_once, _RESAMPLES))[:, None]
        drawn = below(fold(key, draws, np.arange(size)), size)
        found.append(numerator[drawn].sum(1) / denominator[drawn].sum(1))
    return float(np.std(function(np.concatenate(found)), ddof=1))
