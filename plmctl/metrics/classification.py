"""Metrics as pure functions of NumPy arrays, with the edge cases settled.

The arithmetic is scikit-learn's and SciPy's. What they leave undefined is settled the same way
everywhere: a class that was never predicted has precision 0, a constant side has correlation 0,
and nothing to score is a DataError. ``plmctl.metrics.modules`` wraps each of these as an
``evaluate`` module.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plmctl.errors import DataError

Average = Literal["macro", "micro", "weighted", "binary"]


def accuracy(predictions: ArrayLike, references: ArrayLike) -> float:
    """Share of equal entries."""
    predicted, expected = _both(predictions, references)
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
    """Matthews correlation, for any number of classes; 0 where one side is constant."""
    from sklearn.metrics import matthews_corrcoef

    predicted, expected = _both(predictions, references)
    if min(np.unique(predicted).size, np.unique(expected).size) < 2:
        return 0.0
    return float(matthews_corrcoef(expected, predicted))


def pearson(predictions: ArrayLike, references: ArrayLike) -> float:
    """Pearson correlation; 0 where one side is constant."""
    from scipy.stats import pearsonr

    predicted, expected = _numbers(predictions, references)
    return float(pearsonr(predicted, expected).statistic) if _vary(predicted, expected) else 0.0


def spearman(predictions: ArrayLike, references: ArrayLike) -> float:
    """Spearman rank correlation, ties at their mean rank; 0 where one side is constant."""
    from scipy.stats import spearmanr

    predicted, expected = _numbers(predictions, references)
    return float(spearmanr(predicted, expected).statistic) if _vary(predicted, expected) else 0.0


def majority(references: ArrayLike) -> float:
    """Accuracy of always naming the most frequent label: what any model has to beat."""
    expected, _ = _both(references, references)
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
    """How often each class was taken for each.

    Args:
        predictions: [N] class numbers.
        references: [N] true ones.
        classes: C, their number.

    Returns:
        [C, C]: rows are the truth, columns the prediction.

    Raises:
        DataError: A class number that is not below ``classes``.
    """
    from sklearn.metrics import confusion_matrix

    predicted, expected = _both(predictions, references)
    for found in (predicted, expected):
        if found.min() < 0 or found.max() >= classes:
            raise DataError(f"class numbers {found.min()} to {found.max()} of {classes} classes")
    matrix: NDArray[np.int64] = confusion_matrix(expected, predicted, labels=range(classes))
    return matrix


def classification(
    predictions: ArrayLike,
    references: ArrayLike,
    labels: Sequence[str],
    *,
    positive: int | None = None,
) -> dict[str, Any]:
    """All that is shown of a classifier, in plain types.

    Args:
        predictions: [N] predicted label numbers.
        references: [N] true ones.
        labels: Names by number.
        positive: The label whose F1 is ``f1``, where there are two; None: the second.

    Returns:
        accuracy, majority (accuracy of the most frequent label), f1 (of two labels), f1_macro,
        f1_weighted, matthews, per_class (label, precision, recall, f1, support) and confusion
        (labels; matrix: rows are the truth, columns the prediction).
    """
    from sklearn.metrics import precision_recall_fscore_support

    predicted, expected = _both(predictions, references)
    matrix = confusion(predicted, expected, len(labels))
    columns = precision_recall_fscore_support(
        expected, predicted, labels=range(len(labels)), zero_division=0
    )
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
        "confusion": {"labels": list(labels), "matrix": matrix.tolist()},
    }


def _averaged(
    predictions: ArrayLike, references: ArrayLike, average: Average, positive: Any
) -> tuple[float, float, float]:
    from sklearn.metrics import precision_recall_fscore_support

    predicted, expected = _both(predictions, references)
    if average == "binary":  # without scikit-learn's refusal of more than two classes
        predicted, expected = predicted == positive, expected == positive
    found = precision_recall_fscore_support(
        expected, predicted, average=average, pos_label=True, zero_division=0
    )
    return float(found[0]), float(found[1]), float(found[2])


def _both(predictions: ArrayLike, references: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    predicted, expected = np.asarray(predictions), np.asarray(references)
    if predicted.shape != expected.shape:
        raise DataError(
            f"predictions {predicted.shape} do not match references {expected.shape}",
            "give one prediction for each reference, in the same order",
        )
    if not predicted.size:
        raise DataError("nothing to score: there are no predictions")
    return predicted, expected


def _numbers(
    predictions: ArrayLike, references: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    predicted, expected = _both(predictions, references)
    predicted, expected = predicted.astype(np.float64), expected.astype(np.float64)
    if not (np.isfinite(predicted).all() and np.isfinite(expected).all()):
        raise DataError("a prediction or a reference is not a finite number")
    return predicted, expected


def _vary(*arrays: NDArray[np.float64]) -> bool:
    return all(np.ptp(array) > 0 for array in arrays)
