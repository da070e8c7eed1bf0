"""Figures of confusion matrices equal those of the rows, and so do their standard errors."""

import math

import numpy as np
import pytest

from plmctl.errors import DataError
from plmctl.metrics import statistics
from plmctl.metrics.classification import (
    accuracy,
    accuracy_of_counts,
    confusion,
    f1,
    f1_of_counts,
    matthews,
    matthews_of_counts,
)

DRAWS = np.random.default_rng(5)


@pytest.mark.parametrize("classes", [2, 4])
def test_results_are_those_of_the_rows(classes: int) -> None:
    rows = [DRAWS.integers(classes, size=(2, 50)) for _ in range(6)]
    matrices = np.stack([confusion(predicted, true, classes) for predicted, true in rows])
    for function, whole in (
        (accuracy_of_counts, accuracy),
        (matthews_of_counts, matthews),
        (
            lambda counts: f1_of_counts(counts, 1),
            lambda predicted, true: f1(predicted, true, "binary", 1),
        ),
    ):
        assert function(matrices) == pytest.approx(
            [whole(predicted, true) for predicted, true in rows]
        )


def test_what_is_undefined_is_0() -> None:
    constant = np.array([[[7, 0], [3, 0]], [[0, 0], [0, 9]]])
    assert matthews_of_counts(constant).tolist() == [0, 0]
    assert f1_of_counts(constant, 1).tolist() == [0, 1]
    assert f1_of_counts(np.array([[[7, 0], [0, 0]]]), 1).tolist() == [0]


def test_the_error_is_that_of_drawing_rows() -> None:
    true = np.arange(400) % 2
    predicted = np.where(np.arange(400) % 5 == 0, 1 - true, true)  # 80 % right
    counts = confusion(predicted, true, 2)
    results = statistics.uncertainty_of_counts(
        {"accuracy": accuracy_of_counts, "matthews": matthews_of_counts}, counts
    )
    assert results["accuracy"]["se"] == pytest.approx(math.sqrt(0.8 * 0.2 / 400), rel=0.1)
    assert results["accuracy"]["low"] < 0.8 < results["accuracy"]["high"]
    by_rows = statistics.uncertainty(matthews, predicted, true)
    assert results["matthews"]["se"] == pytest.approx(by_rows["se"], rel=0.1)
    again = statistics.uncertainty_of_counts({"accuracy": accuracy_of_counts}, counts)
    assert again["accuracy"] == results["accuracy"]


def test_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="nothing to score"):
        statistics.uncertainty_of_counts({}, np.zeros((2, 2), np.int64))
