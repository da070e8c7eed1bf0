"""Intervals beside zero."""

from plmctl.reporting.drawing import draw_intervals, interval_bars
from plmctl.reporting.plots import Interval


def test_bars_have_one_scale_with_zero_on_it() -> None:
    found = interval_bars([Interval("a", 1.0, 0.5, 2.0), Interval("b", -0.5, -2.0, 0.5)])
    first, second = found
    assert (len(first), len(second)) == (21, 21)
    assert first.index("|") == second.index("|") == 10
    assert first.index("o") == 15
    assert first[:10].strip() == ""  # it does not reach zero
    assert second.startswith("-")
    assert second.index("o") == 8


def test_no_difference_is_in_the_middle() -> None:
    assert interval_bars([Interval("same", 0.0, 0.0, 0.0)]) == ["o".center(21)]
    assert "same" in str(draw_intervals([Interval("same", 0.0, 0.0, 0.0)]))
