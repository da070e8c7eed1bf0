import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plmctl.reporting.drawing import linear_axis, log_axis, nice_step
from plmctl.reporting.plots import ratio_of_extremes

values = st.lists(st.floats(-1e9, 1e9, allow_subnormal=False), min_size=1, max_size=20)


def labels(axis):
    return [axis.label(tick) for tick in axis.ticks]


@pytest.mark.parametrize(
    ("size", "step"), [(1, 1), (1.1, 2), (2.1, 5), (5.5, 10), (0.03, 0.05), (700, 1000)]
)
def test_steps_are_one_two_or_five(size, step):
    assert nice_step(size) == pytest.approx(step)


def test_a_linear_axis_by_hand():
    axis = linear_axis(np.array([2.3, 7.1, np.nan]))
    assert axis.ticks == (2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
    assert (axis.low, axis.high) == (2.0, 8.0)
    assert axis.at(np.array([2.0, 5.0, 8.0])).tolist() == [0.0, 0.5, 1.0]


def test_a_tight_axis_ends_with_its_values():
    axis = linear_axis(np.array([10.0, 3990.0]), zero=True, tight=True)
    assert (axis.low, axis.high) == (0.0, 3990.0)
    assert axis.ticks == (0.0, 1000.0, 2000.0, 3000.0)


@pytest.mark.parametrize(
    ("high", "expected"),
    [
        (0.0015, ["0", "5e-4", "1e-3", "1.5e-3"]),
        (0.4, ["0", "0.1", "0.2", "0.3", "0.4"]),
        (4000, ["0", "1,000", "2,000", "3,000", "4,000"]),
        (31000, ["0", "10k", "20k", "30k", "40k"]),
        (2_500_000, ["0", "0.5M", "1M", "1.5M", "2M", "2.5M"]),
    ],
)
def test_labels_suit_the_size(high, expected):
    assert labels(linear_axis(np.array([0.0, high]), zero=True)) == expected


def test_a_logarithmic_axis_by_hand():
    axis = log_axis(np.array([0.4, 8.0, 0.0, np.nan]))  # what is not positive is left out
    assert axis.ticks == (0.5, 1.0, 2.0, 5.0)
    middle = math.sqrt(axis.low * axis.high)
    assert axis.at(np.array([axis.low, middle, axis.high])) == pytest.approx([0, 0.5, 1])
    assert np.isnan(axis.at(np.array([0.0, -1.0]))).all()


def test_decades_alone_where_there_are_many():
    assert log_axis(np.array([1e-3, 1e3])).ticks == (1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1000.0)


@pytest.mark.parametrize("value", [0.0, 5.0, -3.0])
def test_a_constant_has_an_axis_too(value):
    axis = linear_axis(np.array([value, value]))
    assert axis.low < axis.high
    assert 0 <= axis.at(np.array([value]))[0] <= 1


def test_a_positive_constant_has_a_logarithmic_axis():
    axis = log_axis(np.array([3.0]))
    assert axis.low < 3.0 < axis.high
    assert axis.ticks


@given(values)
def test_every_value_is_on_the_axis_and_the_ticks_are_few_and_rising(numbers):
    axis = linear_axis(np.array(numbers))
    assert axis.low < axis.high
    at = axis.at(np.array(numbers))
    assert (at > -1e-6).all()
    assert (at < 1 + 1e-6).all()
    assert 2 <= len(axis.ticks) <= 12
    assert list(axis.ticks) == sorted(set(axis.ticks))


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=20))
def test_every_positive_value_is_on_a_logarithmic_axis(numbers):
    axis = log_axis(np.array(numbers))
    at = axis.at(np.array(numbers))
    assert ((at > -1e-6) & (at < 1 + 1e-6)).all()
    assert all(axis.low <= tick <= axis.high for tick in axis.ticks)
    assert axis.ticks


def test_spread():
    assert ratio_of_extremes(np.array([0.5, 2.0, np.nan])) == 4.0
    assert ratio_of_extremes(np.array([0.0, 2.0])) == 1.0
    assert ratio_of_extremes(np.array([np.nan])) == 1.0
