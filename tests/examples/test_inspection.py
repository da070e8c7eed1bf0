"""Statistics and marks of examples, against what one counts by hand."""

import numpy as np
import pytest

from plmctl.examples.inspection import (
    ExampleToken,
    expected_shares,
    masked_row,
    masked_tallies,
    means,
    merge,
    pair_tallies,
)

MASK = 4
# Two rows of width 8, of 8 and 6 tokens; 2 [CLS], 3 [SEP], 0 padding.
IDS = np.array([[2, 4, 4, 13, 90, 3, 16, 3], [2, 20, 3, 22, 4, 3, 0, 0]])
POSITIONS = np.array([1, 2, 4, 6, 8 + 1, 8 + 4])
TARGETS = np.array([11, 12, 14, 16, 21, 23])


def test_a_masked_batch() -> None:
    statistics = means(masked_tallies(IDS, np.array([8, 6]), POSITIONS, TARGETS, MASK))
    assert statistics == {
        "mean_length": 7.0,
        "masked_share": pytest.approx(6 / 14),
        "mask_share": pytest.approx(3 / 6),
        "random_share": pytest.approx(2 / 6),  # 90 for 14, 20 for 21
        "keep_share": pytest.approx(1 / 6),
        "mean_run": pytest.approx(6 / 5),  # 1-2, 4, 6 and 1, 4 of the second row
    }


def test_a_run_ends_with_its_row() -> None:
    ids = np.full((2, 4), MASK)
    tallies = masked_tallies(ids, np.array([4, 4]), np.arange(8), np.arange(8) + 10, MASK)
    assert means(tallies)["mean_run"] == 4


def test_a_batch_without_a_masked_token() -> None:
    none = np.zeros(0, dtype=np.int64)
    statistics = means(masked_tallies(IDS, np.array([8, 6]), none, none, MASK))
    assert statistics == {"mean_length": 7.0, "masked_share": 0.0}


def test_a_batch_of_pairs() -> None:
    segments = np.array([[0, 0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1, 0, 0]])
    label, single = np.array([1, 0]), np.array([True, False])
    statistics = means(pair_tallies(np.array([8, 6]), segments, label, single, "random_next"))
    assert statistics == {
        "random_next_share": 0.5,
        "random_next_share_multi": 0.0,
        "single_share": 0.5,
        "mean_length_a": (4 + 1) / 2,
        "mean_length_b": (1 + 2) / 2,
    }


def test_means_of_batches_are_those_of_all() -> None:
    halves = [
        masked_tallies(IDS[:1], np.array([8]), POSITIONS[:4], TARGETS[:4], MASK),
        masked_tallies(IDS[1:], np.array([6]), POSITIONS[4:] - 8, TARGETS[4:], MASK),
    ]
    whole = masked_tallies(IDS, np.array([8, 6]), POSITIONS, TARGETS, MASK)
    assert means(merge(halves)) == pytest.approx(means(whole))


def test_shares_that_are_expected_are_one_together() -> None:
    shares = expected_shares(0.8, 0.1, 50)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["random_share"] == pytest.approx(0.098)


def test_a_row_for_reading() -> None:
    row = masked_row(IDS[0], POSITIONS[:4], TARGETS[:4], MASK, {2, 3})
    assert row == (
        ExampleToken(2, "special"),
        ExampleToken(4, "masked", 11),
        ExampleToken(4, "masked", 12),
        ExampleToken(13, "text"),
        ExampleToken(90, "random", 14),
        ExampleToken(3, "special"),
        ExampleToken(16, "kept"),
        ExampleToken(3, "special"),
    )
