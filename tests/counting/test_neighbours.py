"""Tokens between both neighbours: by hand, and beside a plain version with dictionaries."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plmctl.corpus.store import MixedStore, TokenStore
from plmctl.counting.neighbours import Neighbours, neighbours_of


def plain(documents: list[list[int]], vocab_size: int):
    """The same in plain Python: a function of the neighbours and the token."""
    counts: Counter[tuple] = Counter()
    for document in documents:
        for place, token in enumerate(document):
            before = document[place - 1] if place else None
            after = document[place + 1] if place + 1 < len(document) else None
            counts["alone", None, token] += 1
            counts["before", before, token] += before is not None
            counts["after", after, token] += after is not None
            counts["between", (before, after), token] += None not in (before, after)

    def mixed(kind, context, token, below):
        within = {key[2]: n for key, n in counts.items() if key[:2] == (kind, context) and n}
        if not within:
            return below
        of = Counter(n for key, n in counts.items() if key[0] == kind)
        one = of[1] / (of[1] + 2 * of[2]) if of[1] else 0.5
        taken = [one] * 3
        if of[1] and of[2] and of[3]:
            three = [n - (n + 1) * one * of[n + 1] / of[n] for n in (1, 2, 3)]
            taken = three if all(0 < d <= n for n, d in enumerate(three, 1)) else taken
        left = sum(taken[min(n, 3) - 1] for n in within.values())
        n = within.get(token, 0)
        return (n - (taken[min(n, 3) - 1] if n else 0) + left * below) / sum(within.values())

    def probability(before, token, after):
        alone = mixed("alone", None, token, 1 / vocab_size)
        sides = [("before", before), ("after", after)]
        known = [mixed(*side, token, alone) for side in sides if side[1] >= 0]
        below = sum(known) / len(known) if known else alone
        return mixed("between", (before, after), token, below)

    return probability


def test_by_hand() -> None:
    """``a b a c a b`` with a = 0, b = 1, c = 2, of four tokens.

    Tokens alone: a 3, b 2, c 1, so the discounts of 1, 2 and 3 are 1/3, 1 and 3, and leave 13/3.
    After a: b 2, c 1; after b and after c: a 1. Before b: a 2; before a: b 1, c 1; before c: a 1.
    Both have three counts of 1 and one of 2, so the discount is 3/5. Between two neighbours each
    token is once: the discount is 1, and leaves all to the mean of both sides.
    """
    counted = Neighbours.count(np.array([0, 1, 0, 2, 0, 1]), np.array([6]), 4)
    b, d = (2 - 1 + 13 / 12) / 6, 13 / 12 / 6
    after_a = {1: (2 - 0.6 + 1.2 * b) / 3, 3: 1.2 * d / 3}
    before_a = {1: (1 - 0.6 + 1.2 * b) / 2, 3: 1.2 * d / 2}
    for token in (1, 3):
        both = (after_a[token] + before_a[token]) / 2
        for sides, by_hand in (
            ((0, 0), both),
            ((0, -1), after_a[token]),
            ((-1, 0), before_a[token]),
            ((-1, -1), {1: b, 3: d}[token]),
        ):
            before, after = (np.array([side]) for side in sides)
            found = counted.probabilities(before, np.array([token]), after)[0]
            assert found == pytest.approx(by_hand, abs=1e-12)


documents = st.lists(st.lists(st.integers(0, 4), max_size=25), min_size=1, max_size=8).filter(any)


@settings(max_examples=60, deadline=None)
@given(documents, st.integers(0, 5), st.integers(0, 5))
def test_equals_the_plain_version(texts, before, after) -> None:
    ids = np.array([token for text in texts for token in text])
    counted = Neighbours.count(ids, np.array([len(text) for text in texts]), 6)
    probability, every = plain(texts, 6), np.arange(6)
    for left, right in ((before, after), (-1, after), (before, -1), (-1, -1)):
        found = counted.probabilities(np.full(6, left), every, np.full(6, right))
        wanted = [probability(left, token, right) for token in range(6)]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)
        assert (found > 0).all()
        assert found.sum() == pytest.approx(1, abs=1e-12)


def test_many_counts_have_three_discounts() -> None:
    ids = np.minimum(np.random.default_rng(0).zipf(1.3, 3000), 40)
    counted, probability = Neighbours.count(ids, np.array([3000]), 41), plain([ids.tolist()], 41)
    for grams in (counted.before, counted.after, counted.between):
        assert len(set(grams.discounts[1:])) == 3
    found = counted.probabilities(ids[:-2], ids[1:-1], ids[2:])[:50]
    wanted = [probability(*ids[place : place + 3].tolist()) for place in range(50)]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


def test_the_texts_of_a_mixture() -> None:
    stores = tuple(TokenStore.from_lists([[[one] * 3]] * 20, 3) for one in (0, 1))
    lines: list[str] = []
    counted = neighbours_of(MixedStore(("a", "b"), stores, (3.0, 1.0)), 4, lines.append)
    assert counted.alone.counts.tolist() == [60, 60, 0, 0]
    assert counted.between.counts.tolist() == [20, 20]
    assert lines == ["counted the neighbours of 120 tokens in 0 s"]
