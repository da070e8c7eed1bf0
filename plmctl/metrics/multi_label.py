"""Metrics of rows that have several labels, or none: each label is a yes or no of its own."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plmctl.errors import DataError


def subset_accuracy(predictions: ArrayLike, references: ArrayLike) -> float:
    """Share of rows all of whose labels are right, and no other.

    Args:
        predictions: [N, C], true where a row has the label.
        references: As predictions.
    """
    predicted, expected = _both(predictions, references)
    return float((predicted == expected).all(axis=1).mean())


def f1_micro(predictions: ArrayLike, references: ArrayLike) -> float:
    """F1 over the labels of all rows together; 0 where there are none on either side."""
    predicted, expected = _both(predictions, references)
    both, either = (predicted & expected).sum(), predicted.sum() + expected.sum()
    return float(2 * both / either) if either else 0.0


def f1_macro(predictions: ArrayLike, references: ArrayLike) -> float:
    """The mean of the labels' F1; 0 for a label that is on neither side."""
    return float(np.mean([row["f1"] for row in per_label(predictions, references)]))


def per_label(predictions: ArrayLike, references: ArrayLike) -> list[dict[str, Any]]:
    """Precision, recall, f1 and support of each label; what is undefined is 0."""
    predicted, expected = _both(predictions, references)
    hits = (predicted & expected).sum(0)
    said, there = predicted.sum(0), expected.sum(0)
    return [
        {
            "precision": float(hit / max(s, 1)),
            "recall": float(hit / max(t, 1)),
            "f1": float(2 * hit / max(s + t, 1)),
            "support": int(t),
        }
        for hit, s, t in zip(hits, said, there, strict=True)
    ]


def multi_label(
    predictions: ArrayLike, references: ArrayLike, labels: Sequence[str]
) -> dict[str, Any]:
    """All that is shown of a classifier with several labels a row, in plain types.

    Args:
        predictions: [N, C], true where a row is said to have the label.
        references: [N, C], true where it has.
        labels: Names by number.

    Returns:
        f1_micro, f1_macro, subset_accuracy, majority (subset accuracy of the most frequent set of
        labels) and per_class (label, precision, recall, f1, support).
    """
    _, expected = _both(predictions, references)
    _, counts = np.unique(expected, axis=0, return_counts=True)
    rows = per_label(predictions, references)
    return {
        "f1_micro": f1_micro(predictions, references),
        "f1_macro": f1_macro(predictions, references),
        "subset_accuracy": subset_accuracy(predictions, references),
        "majority": float(counts.max() / counts.sum()),
        "per_class": [{"label": label, **row} for label, row in zip(labels, rows, strict=True)],
    }


def _both(
    predictions: ArrayLike, references: ArrayLike
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    predicted = np.asarray(predictions).astype(bool)
    expected = np.asarray(references).astype(bool)
    if predicted.shape != expected.shape or predicted.ndim != 2:
        raise DataError(
            f"predictions {predicted.shape} do not match references {expected.shape}",
            "both are rows by labels, in the same order",
        )
    if not predicted.size:
        raise DataError("nothing to score: there are no predictions")
    return predicted, expected
