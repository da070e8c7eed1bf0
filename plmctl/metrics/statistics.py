"""The uncertainty of a metric: over other rows of the same kind, and over runs with other seeds.

The bootstrap (Efron, 1979) draws rows with replacement as often as there are rows, and computes
the metric again. The draws are seeded: models that are scored on the same rows have the same draws.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Floats, Ints
from plmctl.errors import DataError
from plmctl.examples.keys import below, fold, stream

Rows = Sequence[Any] | NDArray[Any]
"""Data with one item per row."""

Function = Callable[[Any, Any], float]
"""``function(predictions, references)``."""

CountFunction = Callable[[Ints], Floats]
"""A metric of each of the confusion matrices [R, C, C]."""

_RESAMPLES = 1000
_CELLS = 1 << 20  # draws at once
_SEED = 0  # of shown intervals: models that are scored on the same rows have the same draws


def interval(
    function: Function,
    predictions: Rows,
    references: Rows,
    seed: int,
    *,
    resamples: int = 1_000,
    level: float = 0.95,
) -> tuple[float, float]:
    """The percentile interval of a metric.

    Args:
        function: The metric, of predictions and references of the same length.
        predictions: [N], one per row; arrays and lists are both taken.
        references: [N].
        level: Share of the draws whose metric lies in the interval.

    Returns:
        Its lower and its upper end.

    Raises:
        DataError: No row, or not as many predictions as references.
    """
    tail = 100 * (1 - level) / 2
    draws = _drawn(function, predictions, references, seed, resamples)
    low, high = np.percentile(draws, [tail, 100 - tail])
    return float(low), float(high)


def uncertainty(function: Function, predictions: Rows, references: Rows) -> dict[str, float]:
    """The uncertainty of a metric: ``spread_of`` 1,000 draws; arguments as ``interval``.

    Returns:
        Nothing of a single row, which says nothing of others.

    Raises:
        DataError: As ``interval``.
    """
    if len(references) == 1:
        return {}
    return spread_of(_drawn(function, predictions, references, _SEED, 1_000))


def uncertainty_of_counts(
    functions: Mapping[str, CountFunction], matrix: Ints
) -> dict[str, dict[str, float]]:
    """``uncertainty`` of metrics that a confusion matrix decides.

    Drawing N rows with replacement draws the cells of the matrix from a multinomial, which takes
    as long for a million rows as for a hundred.

    Args:
        functions: Metrics by name, each of matrices [R, C, C], giving [R].
        matrix: [C, C] counts: rows are the truth, columns the prediction.

    Raises:
        DataError: No row.
    """
    total, classes = int(matrix.sum()), len(matrix)
    if not total:
        raise DataError("nothing to score: there are no predictions")
    if total == 1:
        return {}
    generator = np.random.Generator(np.random.Philox(_SEED))
    results: dict[str, list[Floats]] = {name: [] for name in functions}
    for _ in range(10):  # in pieces: a thousand matrices of a hundred classes are large
        drawn = generator.multinomial(total, matrix.ravel() / total, size=100)
        for name, function in functions.items():
            results[name].append(function(drawn.reshape(-1, classes, classes)))
    return {name: spread_of(np.concatenate(values)) for name, values in results.items()}


def spread_of(values: Floats) -> dict[str, float]:
    """Standard error ``se``, and the ends ``low`` and ``high`` of the 95 % interval.

    Args:
        values: [R] a metric, of as many draws.
    """
    low, high = np.percentile(values, [2.5, 97.5])
    return {"se": float(np.std(values, ddof=1)), "low": float(low), "high": float(high)}


def with_interval(
    metrics: Mapping[str, Any],
    name: str,
    function: Function,
    predictions: Rows,
    references: Rows,
) -> dict[str, Any]:
    """Metrics with the 95 % interval of one of them, ``<name>_low`` and ``<name>_high``, after it.

    One row has no interval: every draw of it is the same.

    Args:
        predictions: [N].
        references: [N].
    """
    if len(references) < 2:
        return dict(metrics)
    low, high = interval(function, predictions, references, _SEED)
    ends = {f"{name}_low": low, f"{name}_high": high}
    results: dict[str, Any] = {}
    for key, value in metrics.items():
        results |= {key: value, **(ends if key == name else {})}
    return results


def paired(
    function: Function,
    first: Rows,
    second: Rows,
    references: Rows,
    seed: int,
    *,
    resamples: int = 1_000,
) -> dict[str, float]:
    """Whether the second of two models is better on the same rows: the paired bootstrap.

    Args:
        function: A metric of which more is better.
        first: [N] predictions of the one model.
        second: [N] those of the other.
        seed: The seed of the draws, which are the same for both models.

    Returns:
        difference (second minus first, on all rows), low and high (its 95 % percentile interval),
        p (two-sided: twice the smaller share of draws that are not on one side of 0, at most 1 and
        never 0, as Davison and Hinkley, 1997, count).

    Raises:
        DataError: No row, or lengths that differ.
    """
    one, two = _rows(first, references), _rows(second, references)
    true = _rows(references, first)
    differences = np.empty(resamples)
    for place, rows in enumerate(_draws(len(true), seed, resamples)):
        expected = _select(true, rows)
        differences[place] = function(_select(two, rows), expected)
        differences[place] -= function(_select(one, rows), expected)
    low, high = np.percentile(differences, [2.5, 97.5])
    opposite = min((differences <= 0).sum(), (differences >= 0).sum())
    return {
        "difference": function(two, true) - function(one, true),
        "low": float(low),
        "high": float(high),
        "p": float(min(1.0, 2 * (opposite + 1) / (resamples + 1))),
    }


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and its standard error, sd / sqrt(n) with n - 1 in the variance.

    Args:
        values: One or more.

    Returns:
        The error is None of one value.
    """
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return mean, None
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return mean, math.sqrt(variance / count)


def error_of_ratio(
    numerator: Floats,
    denominator: Floats,
    seed: int,
    function: Callable[[Floats], Floats] = lambda ratio: ratio,
) -> float | None:
    """Standard error of ``function(sum of numerator / sum of denominator)`` over documents.

    The bootstrap: the deviation of the metric over 1,000 draws of as many documents, with
    replacement. Each draw is a function of the seed and its number, so that the draws need not be
    in memory together.

    Args:
        numerator: [N], of each document.
        denominator: [N].
        function: The function of the ratio, elementwise.

    Returns:
        None of fewer than two documents.
    """
    size = len(numerator)
    if size < 2:
        return None
    key = fold(seed, stream("bootstrap"))
    at_once = max(1, _CELLS // size)
    ratios = []
    for start in range(0, _RESAMPLES, at_once):
        draws = np.arange(start, min(start + at_once, _RESAMPLES))[:, None]
        drawn = below(fold(key, draws, np.arange(size)), size)
        ratios.append(numerator[drawn].sum(1) / denominator[drawn].sum(1))
    return float(np.std(function(np.concatenate(ratios)), ddof=1))


def spread(values: Sequence[float]) -> dict[str, float | int]:
    """Median, mean, sample standard deviation (of one value: 0), least and greatest.

    Raises:
        DataError: No value.
    """
    if not values:
        raise DataError("nothing to compare: no run has a metric")
    array = np.asarray(values, dtype=float)
    return {
        "n": len(array),
        "median": float(np.median(array)),
        "mean": float(array.mean()),
        "std": float(array.std(ddof=1)) if len(array) > 1 else 0.0,
        "min": float(array.min()),
        "max": float(array.max()),
    }


def _drawn(
    function: Function, predictions: Rows, references: Rows, seed: int, resamples: int
) -> Floats:
    """The metric of each draw."""
    predicted, true = _rows(predictions, references), _rows(references, predictions)
    draws = _draws(len(predicted), seed, resamples)
    return np.array([function(_select(predicted, rows), _select(true, rows)) for rows in draws])


def _draws(rows: int, seed: int, resamples: int) -> Iterator[Ints]:
    generator = np.random.Generator(np.random.Philox(seed))
    for _ in range(resamples):
        yield generator.integers(rows, size=rows)


def _rows(values: Any, others: Any) -> Any:
    """An array as it is; anything else as a list."""
    if len(values) != len(others):
        raise DataError(
            f"{len(values):,} predictions do not match {len(others):,} references",
            "give one prediction for each reference, in the same order",
        )
    if not len(values):
        raise DataError("nothing to score: there are no predictions")
    if isinstance(values, np.ndarray):
        return values
    plain = isinstance(values[0], bool | int | float | str)
    return np.asarray(values) if plain else list(values)


def _select(values: Any, rows: Ints) -> Any:
    return values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows]
