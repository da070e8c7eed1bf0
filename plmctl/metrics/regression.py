"""Metrics of predicted numbers (STS-B)."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from plmctl.metrics.classification import pearson, spearman


def mean_squared_error(predictions: ArrayLike, references: ArrayLike) -> float:
    """The mean of squared differences."""
    difference = np.asarray(predictions, np.float64) - np.asarray(references, np.float64)
    return float(np.square(difference).mean())


def regression(predictions: ArrayLike, references: ArrayLike) -> dict[str, Any]:
    """All that is shown of predicted numbers.

    Args:
        predictions: [N] numbers.
        references: [N] true ones.

    Returns:
        pearson, spearman, their mean, which is STS-B's score in GLUE, and the mean squared error.
    """
    linear, ranked = pearson(predictions, references), spearman(predictions, references)
    return {
        "pearson": linear,
        "spearman": ranked,
        "pearson_spearman": (linear + ranked) / 2,
        "mean_squared_error": mean_squared_error(predictions, references),
    }
