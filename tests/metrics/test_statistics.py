import math

import numpy as np
import pytest

from plmctl.errors import DataError
from plmctl.metrics.statistics import (
    error_of_ratio,
    interval,
    mean_and_error,
    paired,
    uncertainty,
    uncertainty_of_counts,
    with_interval,
)


def accuracy(predictions: np.ndarray, references: np.ndarray) -> float:
    return float((predictions == references).mean())


TRUE = np.arange(400) % 2
SAID = np.where(np.arange(400) % 5 == 0, 1 - TRUE, TRUE)  # 80 % right


def test_the_interval_is_that_of_the_binomial() -> None:
    """By the normal approximation 0.8 +- 1.96 * sqrt(0.8 * 0.2 / 400) = 0.0392."""
    low, high = interval(accuracy, SAID, TRUE, 7, resamples=4000)
    assert low == pytest.approx(0.8 - 0.0392, abs=0.004)
    assert high == pytest.approx(0.8 + 0.0392, abs=0.004)
    narrow = interval(accuracy, SAID, TRUE, 7, resamples=4000, level=0.5)
    assert low < narrow[0] < 0.8 < narrow[1] < high


def test_it_is_seeded() -> None:
    assert interval(accuracy, SAID, TRUE, 7) == interval(accuracy, SAID, TRUE, 7)
    assert interval(accuracy, SAID, TRUE, 7) != interval(accuracy, SAID, TRUE, 8)


def test_lists_of_anything_are_drawn_together() -> None:
    def exact(predictions: list, references: list) -> float:
        return sum(p == r["gold"] for p, r in zip(predictions, references, strict=True)) / len(
            references
        )

    predicted, true = ["a", "b"] * 20, [{"gold": "a"}, {"gold": "b"}] * 20
    assert interval(exact, predicted, true, 1) == (1.0, 1.0)
    assert interval(exact, [["x"]] * 4, [{"gold": ["x"]}] * 4, 1) == (1.0, 1.0)


def test_a_model_against_itself_and_against_a_better_one() -> None:
    same = paired(accuracy, SAID, SAID, TRUE, 3)
    assert (same["difference"], same["low"], same["high"], same["p"]) == (0.0, 0.0, 0.0, 1.0)
    better = paired(accuracy, SAID, TRUE, TRUE, 3)
    assert better["difference"] == pytest.approx(0.2)
    assert 0.15 < better["low"] < 0.2 < better["high"] < 0.25
    assert better["p"] == pytest.approx(2 / 1001)
    worse = paired(accuracy, TRUE, SAID, TRUE, 3)
    assert worse["difference"] == pytest.approx(-better["difference"])
    assert worse["p"] == better["p"]


def test_a_difference_of_chance_is_none() -> None:
    """As many rows won as lost."""
    one, two = TRUE.copy(), TRUE.copy()
    one[:20], two[20:40] = 1 - TRUE[:20], 1 - TRUE[20:40]
    assert paired(accuracy, one, two, TRUE, 3)["p"] > 0.5


def test_nothing_and_lengths_that_differ_are_refused() -> None:
    with pytest.raises(DataError, match="nothing to score"):
        interval(accuracy, [], [], 1)
    with pytest.raises(DataError, match="do not match"):
        interval(accuracy, [1, 2], [1], 1)


def test_the_standard_error_is_that_of_a_mean() -> None:
    mean, error = mean_and_error([1.0, 0.0, 0.0, 1.0, 1.0])
    assert mean == pytest.approx(0.6)
    assert error == pytest.approx(math.sqrt(0.6 * 0.4 / 4))
    assert mean_and_error([1.0, 0.0, 1.0, 1.0])[1] == pytest.approx(0.25)
    assert mean_and_error([1.0]) == (1.0, None)


def test_error_of_ratio_with_equal_denominators_is_that_of_a_mean() -> None:
    """The ratio is then the mean of the items, whose standard error is known."""
    items = np.sin(np.arange(400.0)) + 2
    error = error_of_ratio(3 * items, np.full(400, 3.0), seed=1)
    assert error == pytest.approx(items.std() / math.sqrt(400), rel=0.08)


def test_error_of_ratio_is_seeded_and_takes_a_function() -> None:
    above, below = np.arange(1.0, 40), np.arange(40.0, 1, -1)
    assert error_of_ratio(above, below, 1) == error_of_ratio(above, below, 1)
    assert error_of_ratio(above, below, 1) != error_of_ratio(above, below, 2)
    small = 1e-6 * above  # where exp(x) is 1 + x
    plain = error_of_ratio(small, below, 1)
    assert error_of_ratio(small, below, 1, np.exp) == pytest.approx(plain, rel=1e-4)
    assert error_of_ratio(above[:1], below[:1], 1) is None
    assert error_of_ratio(2 * below, below, 1) == pytest.approx(0, abs=1e-12)


def test_a_single_row_has_no_interval() -> None:
    metrics, one, two = {"accuracy": 1.0}, np.array([1]), np.array([1, 0])
    assert with_interval(metrics, "accuracy", accuracy, one, one) == metrics
    assert uncertainty(accuracy, one, one) == {}
    assert uncertainty_of_counts({}, np.array([[1, 0], [0, 0]])) == {}
    assert "accuracy_low" in with_interval(metrics, "accuracy", accuracy, two, two)
