"""Metrics as pure functions of NumPy arrays, with the edge cases settled.

The arithmetic is scikit-learn's and SciPy's. ``plmctl.evaluation.modules`` wraps each of these as
an ``evaluate`` module.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from plmctl.errors import DataError


def accuracy(predictions: ArrayLike, references: ArrayLike) -> float:
    """Share of equal entries."""
    predicted, expected = _both(predictions, references)
    return float((predicted == expected).mean())


def f1(predictions: ArrayLike, references: ArrayLike, average: str = "macro") -> float:
    """F1 over the classes that occur: "macro", "micro" or "weighted"; 0 where undefined."""
    from sklearn.metrics import f1_score

    predicted, expected = _both(predictions, references)
    return float(f1_score(expected, predicted, average=average, zero_division=0))


def matthews(predictions: ArrayLike, references: ArrayLike) -> float:
    """Matthews correlation; 0 where one side is constant."""
    from sklearn.metrics import matthews_corrcoef

    predicted, expected = _both(predictions, references)
    return float(matthews_corrcoef(expected, predicted))


def pearson(predictions: ArrayLike, references: ArrayLike) -> float:
    """Pearson correlation; 0 where one side is constant."""
    from scipy.stats import pearsonr

    predicted, expected = _both(predictions, references)
    return float(pearsonr(predicted, expected).statistic) if _vary(predicted, expected) else 0.0


def spearman(predictions: ArrayLike, references: ArrayLike) -> float:
    """Spearman rank correlation; 0 where one side is constant."""
    from scipy.stats import spearmanr

    predicted, expected = _both(predictions, references)
    return float(spearmanr(predicted, expected).statistic) if _vary(predicted, expected) else 0.0


def majority(references: ArrayLike) -> float:
    """Accuracy of always naming the most frequent label: what any model has to beat."""
    _, counts = np.unique(np.asarray(references), return_counts=True)
    return float(counts.max() / counts.sum())


def perplexity(loss_sum: float, count: int) -> float:
    """The exponential of the mean loss over a whole set, never a mean of batch means."""
    if count < 1:
        raise DataError("no token to score")
    return math.exp(min(loss_sum / count, 700.0))  # exp overflows a float at 709


def classification(
    predictions: ArrayLike, references: ArrayLike, labels: Sequence[str]
) -> dict[str, Any]:
    """All that is shown of a classifier.

    Args:
        predictions: [N] predicted label numbers.
        references: [N] true ones.
        labels: Names by number.

    Returns:
        accuracy, f1_macro, majority, matthews, per_class (label, precision, recall, f1, support)
        and confusion (labels; matrix: rows are the truth, columns the prediction).
    """
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    predicted, expected = _both(predictions, references)
    numbers = list(range(len(labels)))
    columns = precision_recall_fscore_support(expected, predicted, labels=numbers, zero_division=0)
    names = ("precision", "recall", "f1", "support")
    per_class = [
        {"label": label, **{n: c[k].item() for n, c in zip(names, columns, strict=True)}}
        for k, label in enumerate(labels)
    ]
    return {
        "accuracy": accuracy(predicted, expected),
        "f1_macro": f1(predicted, expected),
        "majority": majority(expected),
        "matthews": matthews(predicted, expected),
        "per_class": per_class,
        "confusion": {
            "labels": list(labels),
            "matrix": confusion_matrix(expected, predicted, labels=numbers).tolist(),
        },
    }


def _both(predictions: ArrayLike, references: ArrayLike) -> tuple[Any, Any]:
    predicted, expected = np.asarray(predictions), np.asarray(references)
    if predicted.shape != expected.shape:
        raise DataError(f"{len(predicted)} predictions for {len(expected)} references")
    if not predicted.size:
        raise DataError("nothing to score: there are no predictions")
    return predicted, expected


def _vary(*arrays: Any) -> bool:
    return all(np.ptp(array) > 0 for array in arrays)
