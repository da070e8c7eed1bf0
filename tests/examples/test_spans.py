"""SpanBERT's spans: held to the original's statistics, and to its plain loop over one row."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plmctl.examples.keys import fold
from plmctl.examples.masking import choose_weighted, rarity
from plmctl.examples.spans import (
    Spans,
    boundaries,
    budget,
    choose_spans,
    replace_spans,
    span_shares,
)

# facebookresearch/SpanBERT's PairWithSpanMaskingScheme, 3,000 rows of 510 tokens of which 20 %
# continue a word.
REFERENCE = {
    "masked": 0.15098,
    "mask": 0.8021,
    "random": 0.1005,
    "keep": 0.0974,
    "shares": [0.2241, 0.1792, 0.1434, 0.1147, 0.0918, 0.0734, 0.0587, 0.047, 0.0376, 0.0301],
    "mean": 3.797097503983287,
    "span_tokens": 5.100,
    "span_words": 3.889,
    "spans": 15.098,
    "pairs": 14.903,
}
SHARES = span_shares(0.2, 10)
ROWS, WIDTH = 3000, 512


@pytest.fixture(scope="module")
def batch() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Candidates, word starts and chosen positions of many rows, as the original was run."""
    candidates = np.zeros((ROWS, WIDTH), bool)
    candidates[:, 1:-1] = True
    starts = np.random.default_rng(0).random((ROWS, WIDTH)) >= 0.2
    starts[:, 1] = True
    counts = budget(candidates.sum(1), 0.15)
    return candidates, starts, choose_spans(candidates, starts, counts, keys(ROWS), SHARES)


def keys(rows: int, seed: int = 5) -> np.ndarray:
    return fold(seed, np.arange(rows))


def plain_spans(starts: list[bool], count: int, rng: random.Random) -> set[int]:
    """The published loop over one row."""
    size, chosen = len(starts), set()
    while len(chosen) < count:
        words = rng.choices(range(1, 11), SHARES)[0]
        anchor = rng.randrange(size)
        if anchor in chosen:
            continue
        at = anchor
        while at and not starts[at]:
            at -= 1
        for _ in range(words):
            end = at + 1
            while end < size and not starts[end]:
                end += 1
            for i in range(at, end):
                if len(chosen) < count:
                    chosen.add(i)
            at = end
            if at >= size or len(chosen) >= count:
                break
    return chosen


def test_lengths_are_geometric_and_cut() -> None:
    assert SHARES.round(4).tolist() == REFERENCE["shares"]
    assert SHARES @ np.arange(1, 11) == pytest.approx(REFERENCE["mean"], abs=1e-12)


def test_budget_is_rounded_up() -> None:
    lengths = np.array([510, 126, 20, 40, 7, 1])
    assert budget(lengths, 0.15).tolist() == [77, 19, 3, 6, 2, 1]
    assert budget(np.arange(1, 600), 0.15).tolist() == [
        math.ceil(15 * n / 100) for n in range(1, 600)
    ]


def test_statistics_of_the_original_code(batch: tuple[np.ndarray, ...]) -> None:
    candidates, starts, chosen = batch
    assert (chosen.sum(1) == 77).all()
    assert chosen.sum() / candidates.sum() == pytest.approx(REFERENCE["masked"], abs=1e-5)
    spans = Spans.of(chosen)
    words = np.bincount(spans.number, starts.reshape(-1)[spans.positions])
    pairs = boundaries(spans, candidates, 15)
    # One run of the original; means of 3,000 rows move by 0.3 % from run to run, in both.
    assert len(spans.first) / ROWS == pytest.approx(REFERENCE["spans"], rel=0.015)
    tokens = spans.last - spans.first + 1
    assert tokens.mean() == pytest.approx(REFERENCE["span_tokens"], rel=0.015)
    assert words.mean() == pytest.approx(REFERENCE["span_words"], rel=0.015)
    assert len(np.unique(pairs.left)) / ROWS == pytest.approx(REFERENCE["pairs"], rel=0.015)


def test_spans_are_those_of_the_published_loop() -> None:
    """Runs of chosen tokens and how often each place is chosen, on short rows where edges count."""
    rng = random.Random(3)
    starts = [True, False, True, True, False, False, True, True, True, False, True, True]
    rows = 20_000
    wide = np.tile(starts, (rows, 1))
    chosen = choose_spans(np.ones_like(wide), wide, np.full(rows, 5), keys(rows), SHARES)
    plain = np.zeros_like(wide)
    for row in plain:
        row[list(plain_spans(starts, 5, rng))] = True
    assert (chosen.sum(1) == 5).all()
    assert chosen.mean(0) == pytest.approx(plain.mean(0), abs=0.02)
    ours, theirs = (
        np.bincount(s.last - s.first + 1, minlength=6) / rows
        for s in (Spans.of(chosen), Spans.of(plain))
    )
    assert ours == pytest.approx(theirs, abs=0.02)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40)), min_size=1, max_size=6), st.data()
)
def test_exact_counts_of_whole_words(sizes: list[tuple[int, int]], data: st.DataObject) -> None:
    """Whatever the rows: as many as asked for, candidates only, and words from their beginnings."""
    rows = len(sizes)
    width = 2 + max(size for size, _ in sizes)
    candidates = np.arange(width) - 1 < np.array([[size] for size, _ in sizes])
    candidates[:, 0] = False
    starts = np.random.default_rng(data.draw(st.integers(0, 99))).random((rows, width)) < 0.6
    counts = np.array([count for _, count in sizes])
    chosen = choose_spans(candidates, starts, counts, keys(rows), SHARES)
    assert chosen.sum(1).tolist() == np.minimum(counts, candidates.sum(1)).tolist()
    assert not (chosen & ~candidates).any()
    # A chosen token that continues a word comes after a chosen one, unless its word began before
    # the row.
    starts = starts.copy()
    starts[:, 1] = True
    inner = chosen[:, 1:] & ~starts[:, 1:]
    assert chosen[:, :-1][inner].all()


def test_rows_do_not_depend_on_their_neighbours(batch: tuple[np.ndarray, ...]) -> None:
    candidates, starts, chosen = batch
    some = np.array([7, 3, 2999])
    counts = np.full(3, 77)
    alone = choose_spans(candidates[some], starts[some], counts, keys(ROWS)[some], SHARES)
    assert (alone == chosen[some]).all()


def test_runs_end_with_the_row() -> None:
    chosen = np.array([[1, 1, 0, 1], [1, 0, 1, 1], [0, 0, 0, 0]], bool)
    spans = Spans.of(chosen)
    assert spans.first.tolist() == [0, 3, 4, 6]
    assert spans.last.tolist() == [1, 3, 4, 7]
    assert spans.number.tolist() == [0, 0, 1, 2, 3, 3]


def test_boundary_targets_by_hand() -> None:
    """Cells 1..8 of ten are text; the run at its start has no left neighbour in the text."""
    text = np.array([[0, 1, 1, 1, 1, 1, 1, 1, 1, 0]], bool)
    chosen = np.array([[0, 1, 0, 0, 1, 1, 1, 0, 0, 0]], bool)
    targets = boundaries(Spans.of(chosen), text, 2)
    assert targets.target.tolist() == [4, 5]
    assert targets.left.tolist() == [3, 3]
    assert targets.right.tolist() == [7, 7]
    assert targets.place.tolist() == [0, 1]
    last = np.array([[0, 0, 0, 0, 0, 0, 0, 1, 1, 0]], bool)
    assert not len(boundaries(Spans.of(last), text, 2).target)


def test_runs_are_treated_as_one(batch: tuple[np.ndarray, ...]) -> None:
    spans = Spans.of(batch[2])
    ids = np.full((ROWS, WIDTH), 7)
    fillers = np.full(len(spans.positions), 9)
    replaced = replace_spans(ids, spans, keys(ROWS), (0.8, 0.1), (4, fillers))
    assert (replaced[~batch[2]] == 7).all()
    of_run = replaced.reshape(-1)[spans.positions]
    assert (of_run == replaced.reshape(-1)[spans.first][spans.number]).all()
    for id_, name in ((4, "mask"), (9, "random"), (7, "keep")):
        assert (of_run == id_).mean() == pytest.approx(REFERENCE[name], abs=0.01)


def test_rare_tokens_are_chosen_more_often() -> None:
    """First choices come in proportion to the weights; later ones never repeat one."""
    weights = rarity(np.array([0, 1, 100, 10_000]), 0.7)
    assert weights == pytest.approx([1, 1, 100**-0.7, 10_000**-0.7])
    rows = 40_000
    wide = np.tile([0.0, 4.0, 2.0, 1.0, 1.0], (rows, 1))
    first = choose_weighted(wide, np.ones(rows, int), keys(rows)).mean(0)
    assert first == pytest.approx([0, 0.5, 0.25, 0.125, 0.125], abs=0.01)
    counts = np.arange(rows) % 7
    assert (
        choose_weighted(wide, counts, keys(rows)).sum(1).tolist() == np.minimum(counts, 4).tolist()
    )
