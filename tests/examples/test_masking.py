import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plmctl.examples.keys import fold
from plmctl.examples.masking import (
    Treatment,
    choose,
    choose_words,
    count_exact,
    count_probabilistic,
    ngram_shares,
    replace,
)


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


# Masking of whole words and of runs of them: held to the published procedure as a plain loop.


WORD = np.ones(1)


def plain_choice(
    sizes: list[int], count: int, longest: int, rng: random.Random
) -> tuple[set[int], list[int]]:
    """The published loop over words given by their sizes: chosen pieces, and the drawn lengths."""
    starts = np.concatenate([[0], np.cumsum(sizes)])
    weights = [1 / n for n in range(1, longest + 1)]
    covered: set[int] = set()
    drawn = []
    for word in rng.sample(range(len(sizes)), len(sizes)):
        if len(covered) >= count:
            break
        n = rng.choices(range(1, longest + 1), weights)[0]
        drawn.append(n)
        while n:
            run = set(range(starts[word], starts[min(word + n, len(sizes))]))
            if len(covered) + len(run) <= count:
                break
            n -= 1
        if n and not covered & run:
            covered |= run
    return covered, drawn


def rows_of(sizes: list[list[int]], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Candidates and word starts [B, width] of rows of words, after one special token."""
    candidates = np.zeros((len(sizes), width), bool)
    starts = np.zeros_like(candidates)
    for row, words in enumerate(sizes):
        candidates[row, 1 : 1 + sum(words)] = True
        starts[row, 1 + np.concatenate([[0], np.cumsum(words)[:-1]]).astype(int)] = True
    return candidates, starts


def test_shares_of_run_lengths() -> None:
    assert ngram_shares(3) == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    assert ngram_shares(3, favor_shorter=False) == pytest.approx([2 / 11, 3 / 11, 6 / 11])
    assert ngram_shares(1).tolist() == [1.0]


words = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=12), min_size=1, max_size=5)


@settings(max_examples=150, deadline=None)
@given(words, st.integers(1, 20), st.integers(1, 4), st.integers(0, 2**32))
def test_whole_words_within_the_count(
    sizes: list[list[int]], count: int, longest: int, key: int
) -> None:
    candidates, starts = rows_of(sizes, 64)
    keys = fold(key, np.arange(len(sizes)))
    counts = np.full(len(sizes), count)
    chosen = choose_words(candidates, starts, counts, keys, ngram_shares(longest))
    assert not (chosen & ~candidates).any()
    for row, lengths in enumerate(sizes):
        ends = 1 + np.cumsum(lengths)
        parts = np.split(chosen[row, 1 : ends[-1]], np.cumsum(lengths)[:-1])
        assert all(part.all() or not part.any() for part in parts)  # words whole or not at all
        total = chosen[row].sum()
        assert total <= count
        # What is left is too small for any word that is left: nothing was given up needlessly.
        if longest == 1:
            left = [len(part) for part in parts if not part.any()]
            assert not left or min(left) > count - total
        alone = choose_words(
            candidates[row : row + 1, :48], starts[row : row + 1, :48],
            counts[:1], keys[row : row + 1], ngram_shares(longest),
        ) if ends[-1] <= 48 else chosen[row : row + 1, :48]  # fmt: skip
        assert np.array_equal(alone[0], chosen[row, :48])  # the rest of the batch plays no part


@pytest.mark.parametrize(("longest", "count"), [(1, 8), (3, 8), (3, 3), (5, 20)])
def test_same_distribution_as_the_plain_loop(longest: int, count: int) -> None:
    sizes = [1, 1, 3, 1, 2, 1, 1, 4, 1, 1, 2, 1, 1, 1, 5, 1, 2, 1, 1, 1]
    n, rng = 20_000, random.Random(1)
    plain = np.zeros(sum(sizes))
    totals = []
    for _ in range(n):
        covered, _ = plain_choice(sizes, count, longest, rng)
        plain[list(covered)] += 1
        totals.append(len(covered))
    candidates, starts = (np.repeat(a, n, axis=0) for a in rows_of([sizes], 1 + sum(sizes)))
    keys = fold(3, np.arange(n))
    chosen = choose_words(candidates, starts, np.full(n, count), keys, ngram_shares(longest))
    # Both are means of n rows: 0.013 is over 3.5 standard deviations of their difference at most.
    assert chosen[:, 1:].mean(0) == pytest.approx(plain / n, abs=0.018)
    ours = np.bincount(chosen.sum(1), minlength=count + 1) / n
    assert ours == pytest.approx(np.bincount(totals, minlength=count + 1) / n, abs=0.018)


def test_a_piece_that_starts_no_word_belongs_to_the_word_before() -> None:
    # [CLS] ##b c [SEP] ##d e [SEP], as when truncation cut a word at the start of both segments.
    candidates = np.array([[0, 1, 1, 0, 1, 1, 0]], bool)
    starts = np.array([[1, 0, 1, 1, 0, 1, 1]], bool)
    every = [
        choose_words(candidates, starts, np.array([2]), fold(1, [key]), WORD)[0]
        for key in range(60)
    ]
    seen = {tuple(np.flatnonzero(row).tolist()) for row in every}
    # ##b is a word; c and ##d are one, as in the published code; e is one.
    assert seen == {(1, 5), (2, 4)}


def test_runs_reach_over_the_boundary_and_end_with_the_row() -> None:
    candidates = np.array([[0, 1, 1, 0, 1, 0, 0, 0]], bool)
    only = np.array([0.0, 0.0, 1.0])  # always three words
    every = [
        choose_words(candidates, candidates, np.array([3]), fold(1, [key]), only)[0]
        for key in range(60)
    ]
    seen = {tuple(np.flatnonzero(row).tolist()) for row in every}
    assert (1, 2, 4) in seen  # from the first word
    assert all(row.sum() <= 3 for row in every)


def test_rows_without_candidates_and_without_counts() -> None:
    candidates = np.array([[False] * 4, [True] * 4])
    chosen = choose_words(candidates, candidates, np.array([2, 0]), fold(1, [1, 2]), WORD)
    assert not chosen.any()
