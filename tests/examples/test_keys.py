import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plmctl.examples.keys import below, fold, permute, permuted, stream, uniform


def splitmix64(seed: int, count: int) -> list[int]:
    """The published generator, in plain integers."""
    word, out = 2**64 - 1, []
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & word
        z = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & word
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & word
        out.append(z ^ (z >> 31))
    return out


@given(st.integers(0, 2**64 - 1))
def test_fold_is_splitmix64(seed: int) -> None:
    assert fold(np.uint64(seed), np.arange(5)).tolist() == splitmix64(seed, 5)


def test_known_first_outputs_of_splitmix64() -> None:
    # Steele, Lea and Flood's generator for seed 1234567, as Rosetta Code lists it.
    assert fold(1234567, np.arange(2)).tolist() == [6457827717110365317, 3203168211198807973]


def test_a_key_does_not_depend_on_what_else_is_drawn() -> None:
    alone = fold(7, stream("mask"), 3, 5)
    together = fold(7, stream("mask"), np.arange(10)[:, None], np.arange(8))
    assert alone == together[3, 5]


def test_streams_differ() -> None:
    assert stream("order") != stream("mask")


def test_uniform_and_below_are_flat() -> None:
    keys = fold(1, np.arange(200_000))
    draws = uniform(keys)
    assert draws.min() >= 0
    assert draws.max() < 1
    assert np.histogram(draws, bins=10)[0] == pytest.approx(np.full(10, 20_000), rel=0.03)
    assert np.bincount(below(keys, 7), minlength=7) == pytest.approx(
        np.full(7, 200_000 / 7), rel=0.03
    )


@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
def test_permute_is_a_permutation(n: int, key: int) -> None:
    shuffled = permute(np.arange(n), n, np.uint64(key))
    assert sorted(shuffled.tolist()) == list(range(n))


def test_permute_of_one_position_is_that_of_many() -> None:
    n = 10**12
    many = permute(np.array([0, 5, n - 1]), n, 99)
    assert [int(permute(i, n, 99)) for i in (0, 5, n - 1)] == many.tolist()


def test_a_permutation_in_parts_is_the_same() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("plmctl.examples.keys._PART", 7)
        parts, plain = list(permuted(30, 5)), list(permuted(30, None))
    assert len(parts) == 5
    assert np.concatenate(parts).tolist() == permute(np.arange(30), 30, 5).tolist()
    assert np.concatenate(plain).tolist() == list(range(30))


def test_permute_takes_a_key_a_position() -> None:
    mixed = permute(np.array([3, 3]), 100, np.array([1, 2], dtype=np.uint64))
    assert mixed.tolist() == [int(permute(3, 100, 1)), int(permute(3, 100, 2))]


def test_permute_shuffles_well() -> None:
    n = 4096
    first = np.array([int(permute(0, n, key)) for key in range(2000)])
    assert abs(first.mean() - n / 2) < n / 2 * 0.05
    order = permute(np.arange(n), n, 5)
    # Neighbours of a shuffled list are unrelated: the correlation is within four standard errors.
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 4 / np.sqrt(n)
