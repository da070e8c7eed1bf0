"""Metrics of classification and regression: pure functions of NumPy arrays, edge cases settled.

The definitions are scikit-learn's, and the tests compare with it. Its import would take three
seconds of a finetuning that takes forty. What it leaves undefined is settled the same way: a class
that was never predicted has precision 0, a constant side has correlation 0, and nothing to score is
a DataError. ``plmctl.metrics.modules`` wraps them as ``evaluate`` modules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plmctl.arrays import Floats
from plmctl.errors import DataError

Counts = NDArray[np.int64]

# --- One label per row ---


MOST_IN_MATRIX = 500
"""Labels of a confusion matrix: with more, it and its bootstrap would take gigabytes."""


def classification_metrics(
    predictions: ArrayLike,
    references: ArrayLike,
    labels: Sequence[str],
    *,
    positive: int | None = None,
) -> dict[str, Any]:
    """All metrics of a classifier with one label per row, in plain types.

    Args:
        predictions: [N] predicted label numbers.
        references: [N] true ones.
        positive: The label whose F1 is ``f1``, where there are two; None: the second.

    Returns:
        accuracy, majority (accuracy of the most frequent label), f1 (of two labels), f1_macro,
        f1_weighted, matthews, per_class (label, precision, recall, f1, support) and confusion
        (labels; matrix: rows are the truth, columns the prediction), which is left out if there
        are more than ``MOST_IN_MATRIX`` labels.
    """
    predicted, expected = _checked(predictions, references)
    with_matrix = len(labels) <= MOST_IN_MATRIX
    matrix = confusion(predicted, expected, len(labels)).tolist() if with_matrix else []
    counts = _counts(predicted, expected, len(labels))
    columns = (*_precision_recall_f1(*counts), counts[2])
    names = ("precision", "recall", "f1", "support")
    per_class = [
        {"label": label, **{n: c[k].item() for n, c in zip(names, columns, strict=True)}}
        for k, label in enumerate(labels)
    ]
    two = len(labels) == 2
    return {
        "accuracy": accuracy(predicted, expected),
        "majority": majority(expected),
        **({"f1": per_class[-1 if positive is None else positive]["f1"]} if two else {}),
        "f1_macro": f1(predicted, expected),
        "f1_weighted": f1(predicted, expected, "weighted"),
        "matthews": matthews(predicted, expected),
        "per_class": per_class,
        **({"confusion": {"labels": list(labels), "matrix": matrix}} if with_matrix else {}),
    }


Average = Literal["macro", "micro", "weighted", "binary"]


def accuracy(predictions: ArrayLike, references: ArrayLike) -> float:
    """Share of equal entries."""
    predicted, expected = _checked(predictions, references)
    return float((predicted == expected).mean())


def precision(
    predictions: ArrayLike, references: ArrayLike, average: Average = "macro", positive: Any = 1
) -> float:
    """Share of the predictions of a class that are right, averaged as ``f1``."""
    return _averaged(predictions, references, average, positive)[0]


def recall(
    predictions: ArrayLike, references: ArrayLike, average: Average = "macro", positive: Any = 1
) -> float:
    """Share of the entries of a class that were found, averaged as ``f1``."""
    return _averaged(predictions, references, average, positive)[1]


def f1(
    predictions: ArrayLike, references: ArrayLike, average: Average = "macro", positive: Any = 1
) -> float:
    """F1, the harmonic mean of precision and recall, averaged over the classes that occur.

    Args:
        predictions: [N] classes, numbers or names.
        references: [N] true ones.
        average: "macro" gives every class one vote, "weighted" as many as it has entries, and
            "micro" counts over all classes together (which is accuracy when each entry has one
            class); "binary" is that of the class ``positive`` alone (MRPC and QQP in GLUE).
        positive: That class, a number or a name.
    """
    return _averaged(predictions, references, average, positive)[2]


def matthews(predictions: ArrayLike, references: ArrayLike) -> float:
    """Matthews correlation, for any number of classes; 0 where one side is constant.

    For more than two classes it is R_K (Gorodkin, 2004).
    """
    predicted, expected, classes = _numbered(*_checked(predictions, references))
    # In floats: fourth powers of a million rows exceed 64 bits.
    right, guesses, truths = (n.astype(np.float64) for n in _counts(predicted, expected, classes))
    total = float(len(expected))
    spread = (total**2 - guesses @ guesses) * (total**2 - truths @ truths)
    joint = right.sum() * total - guesses @ truths
    return float(joint / np.sqrt(spread)) if spread else 0.0


def majority(references: ArrayLike) -> float:
    """Accuracy of always naming the most frequent label: what any model has to beat."""
    expected, _ = _checked(references, references)
    _, counts = np.unique(expected, return_counts=True)
    return float(counts.max() / counts.sum())


def perplexity(loss_sum: float, count: int) -> float:
    """The exponential of the mean loss over a whole set, never a mean of batch means.

    Args:
        loss_sum: Cross-entropy in nats, summed over all targets.
        count: Targets.

    Raises:
        DataError: No target.
    """
    if count < 1:
        raise DataError("nothing to score: there are no target tokens")
    try:
        return math.exp(loss_sum / count)
    except OverflowError:
        return math.inf


def confusion(predictions: ArrayLike, references: ArrayLike, classes: int) -> NDArray[np.int64]:
    """How often each class was predicted as each.

    Args:
        predictions: [N] class numbers.
        references: [N] true ones.
        classes: C, their number.

    Returns:
        [C, C]: rows are the truth, columns the prediction.

    Raises:
        DataError: A class number that is not below ``classes``.
    """
    predicted, expected = _checked(predictions, references)
    for numbers in (predicted, expected):
        if numbers.min() < 0 or numbers.max() >= classes:
            raise DataError(
                f"class numbers {numbers.min()} to {numbers.max()} of {classes} classes"
            )
    cells: Counts = np.bincount(expected * classes + predicted, minlength=classes**2)
    return cells.reshape(classes, classes)


def _averaged(
    predictions: ArrayLike, references: ArrayLike, average: Average, positive: Any
) -> tuple[float, float, float]:
    predicted, expected = _checked(predictions, references)
    if average == "binary":
        counts = _counts((predicted == positive).astype(int), (expected == positive).astype(int), 2)
        weights = np.array([0.0, 1.0])
    else:
        counts = _counts(*_numbered(predicted, expected))
        weights = counts[2] if average == "weighted" else np.ones(len(counts[2]))
    if average == "micro":
        counts, weights = tuple(n.sum(keepdims=True) for n in counts), np.ones(1)
    first, second, third = (
        float(np.average(values, weights=weights)) for values in _precision_recall_f1(*counts)
    )
    return first, second, third


def _numbered(
    predicted: NDArray[Any], expected: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """The classes that occur as numbers from 0 on, and how many they are."""
    classes, numbers = np.unique(np.concatenate([predicted, expected]), return_inverse=True)
    return numbers[: len(predicted)], numbers[len(predicted) :], len(classes)


def _counts(
    predicted: NDArray[np.int64], expected: NDArray[np.int64], classes: int
) -> tuple[Counts, Counts, Counts]:
    """How often each class [C] was predicted rightly, was predicted, and is true."""
    right = np.bincount(expected[predicted == expected], minlength=classes)
    guesses = np.bincount(predicted, minlength=classes)
    return right, guesses, np.bincount(expected, minlength=classes)


def _precision_recall_f1(
    right: Counts, guesses: Counts, truths: Counts
) -> tuple[Floats, Floats, Floats]:
    """Precision, recall and F1 per class [C]; 0 where undefined."""
    return _ratio(right, guesses), _ratio(right, truths), _ratio(2 * right, guesses + truths)


def _checked(predictions: ArrayLike, references: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    predicted, expected = np.asarray(predictions), np.asarray(references)
    if predicted.shape != expected.shape:
        raise DataError(
            f"predictions {predicted.shape} do not match references {expected.shape}",
            "give one prediction for each reference, in the same order",
        )
    if not predicted.size:
        raise DataError("nothing to score: there are no predictions")
    return predicted, expected


# --- Several labels per row, or none: each label is a yes or a no ---


def subset_accuracy(predictions: ArrayLike, references: ArrayLike) -> float:
    """Share of rows all of whose labels are right, and no other.

    Args:
        predictions: [N, C], true where a row has the label.
        references: As predictions.
    """
    predicted, expected = _checked_label_sets(predictions, references)
    return float((predicted == expected).all(axis=1).mean())


def multi_label_f1_micro(predictions: ArrayLike, references: ArrayLike) -> float:
    """F1 over the labels of all rows together; 0 where there are none on either side."""
    predicted, expected = _checked_label_sets(predictions, references)
    both, either = (predicted & expected).sum(), predicted.sum() + expected.sum()
    return float(2 * both / either) if either else 0.0


def multi_label_f1_macro(predictions: ArrayLike, references: ArrayLike) -> float:
    """The mean of the labels' F1; 0 for a label that is on neither side."""
    return float(np.mean([row["f1"] for row in per_label(predictions, references)]))


def per_label(predictions: ArrayLike, references: ArrayLike) -> list[dict[str, Any]]:
    """Precision, recall, f1 and support of each label; what is undefined is 0."""
    predicted, expected = _checked_label_sets(predictions, references)
    hits = (predicted & expected).sum(0)
    predicted_counts, true_counts = predicted.sum(0), expected.sum(0)
    return [
        {
            "precision": float(hit / max(s, 1)),
            "recall": float(hit / max(t, 1)),
            "f1": float(2 * hit / max(s + t, 1)),
            "support": int(t),
        }
        for hit, s, t in zip(hits, predicted_counts, true_counts, strict=True)
    ]


def multi_label_metrics(
    predictions: ArrayLike, references: ArrayLike, labels: Sequence[str]
) -> dict[str, Any]:
    """All metrics of a classifier with several labels per row, in plain types.

    Args:
        predictions: [N, C], true where a row is predicted to have the label.
        references: [N, C], true where it has.

    Returns:
        f1_micro, f1_macro, subset_accuracy, majority (subset accuracy of the most frequent set of
        labels) and per_class (label, precision, recall, f1, support).
    """
    _, expected = _checked_label_sets(predictions, references)
    _, counts = np.unique(expected, axis=0, return_counts=True)
    rows = per_label(predictions, references)
    return {
        "f1_micro": multi_label_f1_micro(predictions, references),
        "f1_macro": multi_label_f1_macro(predictions, references),
        "subset_accuracy": subset_accuracy(predictions, references),
        "majority": float(counts.max() / counts.sum()),
        "per_class": [{"label": label, **row} for label, row in zip(labels, rows, strict=True)],
    }


def _checked_label_sets(
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


# --- Numbers (STS-B) ---


def regression_metrics(predictions: ArrayLike, references: ArrayLike) -> dict[str, Any]:
    """All metrics of predicted numbers.

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


def mean_squared_error(predictions: ArrayLike, references: ArrayLike) -> float:
    """The mean of squared differences."""
    difference = np.asarray(predictions, np.float64) - np.asarray(references, np.float64)
    return float(np.square(difference).mean())


def pearson(predictions: ArrayLike, references: ArrayLike) -> float:
    """Pearson correlation; 0 where one side is constant."""
    from scipy.stats import pearsonr

    predicted, expected = _checked_numbers(predictions, references)
    return float(pearsonr(predicted, expected).statistic) if _vary(predicted, expected) else 0.0


def spearman(predictions: ArrayLike, references: ArrayLike) -> float:
    """Spearman rank correlation, ties at their mean rank; 0 where one side is constant."""
    from scipy.stats import spearmanr

    predicted, expected = _checked_numbers(predictions, references)
    return float(spearmanr(predicted, expected).statistic) if _vary(predicted, expected) else 0.0


def _checked_numbers(
    predictions: ArrayLike, references: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    predicted, expected = _checked(predictions, references)
    predicted, expected = predicted.astype(np.float64), expected.astype(np.float64)
    if not (np.isfinite(predicted).all() and np.isfinite(expected).all()):
        raise DataError("a prediction or a reference is not a finite number")
    return predicted, expected


def _vary(*arrays: NDArray[np.float64]) -> bool:
    return all(np.ptp(array) > 0 for array in arrays)


# --- Many confusion matrices at once, for the bootstrap ---
#
# A matrix [C, C] has the truth in rows and the prediction in columns. The metrics are those above,
# undefined ones settled in the same way.


def accuracy_of_counts(matrices: Counts) -> Floats:
    """[R] shares of rows on the diagonal, of [R, C, C]."""
    return _ratio(_diagonal(matrices), matrices.sum((1, 2)))


def f1_of_counts(matrices: Counts, positive: int) -> Floats:
    """[R] F1 of the class ``positive``, of [R, C, C]; 0 where it is neither there nor predicted."""
    right = matrices[:, positive, positive]
    predicted, true = matrices[:, :, positive].sum(1), matrices[:, positive, :].sum(1)
    return _ratio(2 * right, predicted + true)


def matthews_of_counts(matrices: Counts) -> Floats:
    """[R] correlations of truth and prediction, of [R, C, C]; 0 where one side is constant.

    For more than two classes it is R_K (Gorodkin, 2004).
    """
    # In floats: fourth powers of a million rows exceed 64 bits.
    cells = matrices.astype(np.float64)
    total, true, predicted = cells.sum((1, 2)), cells.sum(2), cells.sum(1)
    joint = np.trace(cells, axis1=1, axis2=2) * total - (true * predicted).sum(1)
    square = total**2
    spread = (square - (true**2).sum(1)) * (square - (predicted**2).sum(1))
    return _ratio(joint, np.sqrt(spread))


def _diagonal(matrices: Counts) -> Counts:
    diagonal: Counts = np.trace(matrices, axis1=1, axis2=2)
    return diagonal


def _ratio(part: NDArray[np.number], whole: NDArray[np.number]) -> Floats:
    """``part / whole``; 0 where the whole is 0."""
    ratio: Floats = np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)
    return ratio
