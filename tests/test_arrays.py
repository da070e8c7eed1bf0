import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from plmctl.arrays import batches, padded, spread

LENGTHS = st.lists(st.integers(0, 30), max_size=60)


@given(LENGTHS, st.none() | st.integers(1, 100), st.none() | st.integers(1, 9), st.booleans())
def test_batches_hold_every_row_once(
    lengths: list[int], cells: int | None, most: int | None, same_length: bool
) -> None:
    batched = list(batches(np.array(lengths), max_tokens=cells, most=most, same_length=same_length))
    assert sorted(n for batch in batched for n in batch) == list(range(len(lengths)))
    here = [[lengths[n] for n in batch] for batch in batched]
    assert [length for batch in here for length in batch] == sorted(lengths, reverse=True)
    for batch in here:
        assert cells is None or len(batch) == 1 or len(batch) * max(batch) <= cells
        assert most is None or len(batch) <= most
        assert not same_length or len(set(batch)) == 1


def test_a_row_longer_than_a_window_costs_no_more_than_the_window() -> None:
    batched = batches(np.array([50, 50, 50, 50]), max_tokens=20, window=10)
    assert [len(batch) for batch in batched] == [2, 2]


def test_padded() -> None:
    rows = [np.array([1, 2]), [3], []]
    ids, real = padded(rows, 9)
    assert ids.tolist() == [[1, 2], [3, 9], [9, 9]]
    assert real.tolist() == [[True, True], [True, False], [False, False]]
    ids, real = padded(rows, 9, left=True)
    assert ids.tolist() == [[1, 2], [9, 3], [9, 9]]
    assert real.tolist() == [[True, True], [False, True], [False, False]]
    assert padded([], 9)[0].shape == (0, 0)
    assert padded([[4]], 9, left=True)[1].strides[1] > 0  # torch takes no negative strides


@given(st.integers(0, 3000), st.one_of(st.none(), st.integers(1, 3000)))
def test_spread_numbers_are_different_and_end_near_both_ends(size: int, limit: int | None) -> None:
    numbers = spread(size, limit)
    count = size if limit is None else min(size, limit)
    assert len(numbers) == count
    if count:
        gaps = np.diff([*numbers, size])
        assert numbers[0] == 0
        assert set(gaps.tolist()) <= {size // count, -(-size // count)}
