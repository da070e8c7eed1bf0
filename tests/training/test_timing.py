"""What a budget of time counts."""

import pytest

from plmctl.training.timing import Timing


def test_what_comes_around_the_steps() -> None:
    timing = Timing((1.0, 3.0), 5.0, 2.0, 0.5, 10, 25, extra_saves=4)
    # 3 validations and 1 + 4 checkpoints on the way, 2 of each at the end, 5 s for the report, and
    # 2 % of 30 steps of 2 s.
    expected = 5 + 3 * 2 + 5 * 0.5 + 2 * 2 + 2 * 0.5 + 5 + 1.2
    assert timing.overhead(30) == pytest.approx(expected)
