import math

import numpy as np
import pytest

from plmctl.evaluation.likelihood import uncertainty


def test_of_mean_by_hand() -> None:
    assert uncertainty.of_mean(np.array([1.0, 0.0, 1.0, 1.0])) == pytest.approx(0.25)
    assert uncertainty.of_mean(np.array([1.0])) is None


def test_of_ratio_with_equal_denominators_is_that_of_a_mean() -> None:
    """The ratio is then the mean of the items, whose standard error is known."""
    items = np.sin(np.arange(400.0)) + 2
    found = uncertainty.of_ratio(3 * items, np.full(400, 3.0), seed=1)
    assert found == pytest.approx(items.std() / math.sqrt(400), rel=0.08)


def test_of_ratio_is_seeded_and_takes_a_function() -> None:
    above, below = np.arange(1.0, 40), np.arange(40.0, 1, -1)
    assert uncertainty.of_ratio(above, below, 1) == uncertainty.of_ratio(above, below, 1)
    assert uncertainty.of_ratio(above, below, 1) != uncertainty.of_ratio(above, below, 2)
    small = 1e-6 * above  # where exp(x) is 1 + x
    plain = uncertainty.of_ratio(small, below, 1)
    assert uncertainty.of_ratio(small, below, 1, np.exp) == pytest.approx(plain, rel=1e-4)
    assert uncertainty.of_ratio(above[:1], below[:1], 1) is None
    assert uncertainty.of_ratio(2 * below, below, 1) == pytest.approx(0, abs=1e-12)
