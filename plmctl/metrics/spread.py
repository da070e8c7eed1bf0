"""How much a figure varies over runs that differ in their seed."""

from collections.abc import Sequence

import numpy as np

from plmctl.errors import DataError


def spread(values: Sequence[float]) -> dict[str, float | int]:
    """Median, mean, sample standard deviation (of one value: 0), least and greatest.

    Raises:
        DataError: No value.
    """
    if not values:
        raise DataError("nothing to compare: no run has a figure")
    array = np.asarray(values, dtype=float)
    return {
        "n": len(array),
        "median": float(np.median(array)),
        "mean": float(array.mean()),
        "std": float(array.std(ddof=1)) if len(array) > 1 else 0.0,
        "min": float(array.min()),
        "max": float(array.max()),
    }
