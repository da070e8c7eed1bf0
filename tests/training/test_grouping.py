"""Length-grouped steps are a shuffle of every epoch, and a function of the step alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plmctl.training.data import examples_of, grouped


@given(st.integers(1, 400), st.integers(1, 40), st.integers(0, 2**32))
@settings(deadline=None, max_examples=60)
def test_an_epoch_has_every_sample_once(size: int, batch: int, seed: int) -> None:
    lengths = np.random.default_rng(size).integers(1, 60, size)
    steps = -(-2 * size // batch)
    parts = [grouped(step, lengths, batch, seed) for step in range(steps)]
    assert all(part.shape == (2, batch) for part in parts)
    stream = np.concatenate(parts, axis=1)
    for epoch in (0, 1):
        samples = stream[1][stream[0] == epoch]
        assert sorted(samples.tolist()) == list(range(size))


def test_steps_belong_to_the_same_epochs_as_ungrouped_ones() -> None:
    lengths = np.random.default_rng(0).integers(1, 60, 333)
    for step in range(40):
        plain = examples_of(step, 333, 32, 7)[0]
        assert np.array_equal(grouped(step, lengths, 32, 7)[0], plain)


def padding(parts: list[np.ndarray], lengths: np.ndarray) -> float:
    """The share of a padded batch that is padding."""
    rows = [lengths[part[1]] for part in parts]
    return 1 - sum(r.sum() for r in rows) / sum(len(r) * r.max() for r in rows)


def test_there_is_little_padding_in_every_epoch() -> None:
    lengths = np.random.default_rng(1).geometric(0.05, 5000)
    plain = padding([examples_of(s, 5000, 32, 3) for s in range(450)], lengths)
    for first in (0, 157, 313):  # the first steps of three epochs
        steps = range(first, first + 150)
        assert padding([grouped(s, lengths, 32, 3) for s in steps], lengths) < plain / 6


def test_steps_are_in_no_order_of_length_and_change_with_epoch_and_seed() -> None:
    lengths = np.arange(6400)
    means = [lengths[grouped(s, lengths, 32, 5)[1]].mean() for s in range(200)]
    assert abs(np.corrcoef(means, range(200))[0, 1]) < 0.25
    one, again, other = (
        set(grouped(step, lengths, 32, seed)[1]) for step, seed in ((3, 5), (203, 5), (3, 6))
    )
    assert one != again
    assert one != other


@pytest.mark.parametrize("step", [10**6, 10**6 + 1])
def test_a_far_step_needs_no_history(step: int) -> None:
    lengths = np.random.default_rng(2).integers(1, 60, 1000)
    there = grouped(step, lengths, 32, 7)
    assert there[0].min() == step * 32 // 1000
    assert np.array_equal(there, grouped(step, lengths, 32, 7))
