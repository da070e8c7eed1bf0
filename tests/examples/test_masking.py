import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plmctl.examples.keys import fold
from plmctl.examples.masking import Treatment, choose, count_exact, count_probabilistic, replace


def test_count_is_the_published_rule() -> None:
    lengths = np.array([3, 10, 30, 70, 128, 512])
    # 0.45, 1.5, 4.5, 10.5, 19.2, 76.8: at least one, halves to the even neighbour as in Python 3.
    assert count_exact(lengths, 0.15, None).tolist() == [1, 2, 4, 10, 19, 77]
    assert count_exact(lengths, 0.15, 20).tolist() == [1, 2, 4, 10, 19, 20]
    assert [round(0.15 * n) for n in (10, 30, 70, 128, 512)] == [2, 4, 10, 19, 77]


def test_probabilistic_count_has_an_exact_mean() -> None:
    counts = count_probabilistic(np.full(20_000, 512), 0.15, fold(1, np.arange(20_000)))
    assert set(counts.tolist()) == {76, 77}
    assert counts.mean() == pytest.approx(76.8, abs=0.02)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 2**32), st.data())
def test_choose_takes_exactly_that_many_candidates(
    rows: int, width: int, key: int, data: st.DataObject
) -> None:
    bits = data.draw(st.lists(st.booleans(), min_size=rows * width, max_size=rows * width))
    candidates = np.array(bits).reshape(rows, width)
    counts = np.array(data.draw(st.lists(st.integers(0, 45), min_size=rows, max_size=rows)))
    chosen = choose(candidates, counts, fold(key, np.arange(rows)))
    assert not (chosen & ~candidates).any()
    assert chosen.sum(1).tolist() == np.minimum(counts, candidates.sum(1)).tolist()


def test_all_subsets_are_equally_likely() -> None:
    n = 60_000
    chosen = choose(np.ones((n, 5), bool), np.full(n, 2), fold(4, np.arange(n)))
    subsets = np.bincount(chosen @ (1 << np.arange(5)), minlength=32)
    assert (subsets > 0).sum() == 10
    assert subsets[subsets > 0] == pytest.approx(np.full(10, n / 10), rel=0.05)


def test_masks_do_not_depend_on_the_rest_of_the_batch() -> None:
    keys = fold(4, np.arange(6))
    candidates, counts = np.ones((6, 30), bool), np.full(6, 4)
    together = choose(candidates, counts, keys)
    wider = choose(np.pad(candidates, ((0, 0), (0, 10))), counts, keys)
    assert np.array_equal(together, wider[:, :30])
    assert np.array_equal(together[2:3], choose(candidates[2:3], counts[2:3], keys[2:3]))


def test_treatment_shares_and_random_range() -> None:
    n, vocab = 3_000, 1_000
    ids = np.full((n, 100), 7)
    chosen = choose(np.ones_like(ids, bool), np.full(n, 15), fold(1, np.arange(n)))
    out = replace(ids, chosen, fold(1, np.arange(n)), Treatment(mask_id=4, vocab_size=vocab))
    assert (out[~chosen] == 7).all()
    what = out[chosen]
    total = len(what)
    assert (what == 4).sum() / total == pytest.approx(0.8 + 0.1 / vocab, abs=0.01)
    assert (what == 7).sum() / total == pytest.approx(0.1 + 0.1 / vocab, abs=0.01)
    random = what[(what != 4) & (what != 7)]
    assert len(random) / total == pytest.approx(0.1, abs=0.01)
    assert random.min() == 0  # special ids too, as in the original
    assert random.max() == vocab - 1
    assert (ids == 7).all()  # the original array is not written to


def test_random_tokens_are_uniform_over_all_but_those_that_are_never_drawn() -> None:
    ids = np.full((200, 100), 7)
    every = np.ones_like(ids, bool)
    treatment = Treatment(mask_id=4, vocab_size=20, mask=0, random=1.0, never=(19, 0, 1, 9, 9))
    out = replace(ids, every, fold(1, np.arange(200)), treatment)
    counts = np.bincount(out.ravel(), minlength=20)
    assert np.flatnonzero(counts == 0).tolist() == [0, 1, 9, 19]
    assert counts[counts > 0] == pytest.approx(np.full(16, 20_000 / 16), rel=0.12)
