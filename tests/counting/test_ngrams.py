"""Kneser-Ney n-grams: by hand, beside a plain version with dictionaries, and on files."""

import math
import os
import signal
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plmctl.corpus.store import MixedStore, TokenStore
from plmctl.counting.ngrams import NGrams, depths_of, ngrams_of
from tests.processes import forked

SEPARATOR = 5


def plain(text: list[int], vocab_size: int, order: int, begin: int | None):
    """The same in plain Python: a function of context and token."""
    raw, counts = defaultdict(Counter), defaultdict(Counter)
    for end, token in enumerate(text):
        if end == 0 and token == begin:
            continue
        context: tuple[int, ...] = ()
        for size in range(1, order + 1):
            raw[size][*context, token] += 1
            at = end - size
            if at < 0 or (context and context[0] == begin):
                counts[size][*context, token] += 1  # nothing before it
                break
            if size == order:
                break
            context = (text[at], *context)
    longest = max(raw)
    for size in range(1, longest):
        counts[size].update(gram[1:] for gram in raw[size + 1])
    counts[longest] = raw[longest]

    def probability(context: tuple[int, ...], token: int) -> float:
        size = len(context) + 1
        below = probability(context[1:], token) if context else 1 / vocab_size
        after = {gram[-1]: n for gram, n in counts[size].items() if gram[:-1] == context}
        if not after:
            return below
        of = Counter(counts[size].values())
        one = of[1] / (of[1] + 2 * of[2]) if of[1] else 0.5
        taken = [one] * 3
        if of[1] and of[2] and of[3]:
            three = [n - (n + 1) * one * of[n + 1] / of[n] for n in (1, 2, 3)]
            taken = three if all(0 < d <= n for n, d in enumerate(three, 1)) else taken
        left = sum(taken[min(n, 3) - 1] for n in after.values())
        kept = after[token] - taken[min(after[token], 3) - 1] if token in after else 0
        return (kept + left * below) / sum(after.values())

    return probability, longest


def counted(text: list[int], vocab_size: int, order: int, begin: int | None) -> NGrams:
    ids = np.array(text)
    depths = depths_of(ids == begin if begin is not None else np.zeros(len(ids), bool), order)
    depths[0] *= text[0] != begin
    return NGrams.count(ids, depths, vocab_size, order)


def test_by_hand() -> None:
    """``a b a b a c`` with a = 0, b = 1, c = 2, and two tokens an n-gram.

    Bigrams ab 2, ba 2, ac 1: n1 = 1, n2 = 2, and no count of 3, so the discount is 1 / 5. Tokens by
    what is before them: a 2 (b, and the beginning), b 1 (a), c 1 (a): the discount is 2 / 4.
    """
    grams = counted([0, 1, 0, 1, 0, 2], 4, 2, None)
    below = {token: (count - 0.5 + 1.5 / 4) / 4 for token, count in {0: 2, 1: 1, 2: 1}.items()}
    below[3] = 1.5 / 4 / 4
    for token, count in {0: 0, 1: 2, 2: 1, 3: 0}.items():
        by_hand = (max(count - 0.2, 0) + 2 * 0.2 * below[token]) / 3
        ids, depths = np.array([0, token]), np.array([1, 2])
        assert grams.probabilities(ids, depths)[1] == pytest.approx(by_hand, abs=1e-12)
    never = grams.probabilities(np.array([2, 1]), np.array([1, 2]))[1]  # nothing follows c
    assert never == pytest.approx(below[1], abs=1e-12)


texts = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=30), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(texts, texts, st.integers(1, 5), st.booleans())
def test_equals_the_plain_version(train, valid, order, separated) -> None:
    begin = SEPARATOR if separated else None

    def joined(documents):
        end = [SEPARATOR] * separated
        return [*end, *(token for document in documents for token in [*document, *end])]

    text, held_out = joined(train), joined(valid)
    grams, (probability, longest) = counted(text, 7, order, begin), plain(text, 7, order, begin)
    ids = np.array(held_out)
    depths = depths_of(ids == begin if separated else np.zeros(len(ids), bool), order)
    wanted = []
    for end, token in enumerate(held_out):
        size = min(depths[end], longest)
        wanted.append(probability(tuple(held_out[end - size + 1 : end]), token))
    np.testing.assert_allclose(grams.probabilities(ids, depths), wanted, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(
        NGrams.from_bytes(np.concatenate(list(grams.to_bytes()))).probabilities(ids, depths),
        grams.probabilities(ids, depths),
    )
    context = held_out[: order - 1]
    rows = np.array([[*context, token] for token in range(7)])
    begins = rows == begin if separated else np.zeros(rows.shape, bool)
    depths = depths_of(begins, order)
    sums = grams.probabilities(rows.ravel(), depths.ravel()).reshape(rows.shape)[:, -1]
    assert (sums > 0).all()
    assert sums.sum() == pytest.approx(1, abs=1e-9)


def test_many_counts_have_three_discounts() -> None:
    text = np.random.default_rng(0).zipf(1.3, 3000)
    text = np.minimum(text, 40).tolist()
    grams, (probability, _) = counted(text, 41, 3, None), plain(text, 41, 3, None)
    assert all(len(set(one.discounts[1:])) == 3 for one in grams.orders[1:])
    found = grams.probabilities(np.array(text[:50]), depths_of(np.zeros(50, bool), 3))
    wanted = [probability(tuple(text[max(0, end - 2) : end]), text[end]) for end in range(50)]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9)


def test_large_counts_survive_the_file() -> None:
    grams = counted([0, 1] * 1000, 3, 2, None)
    read = NGrams.from_bytes(np.concatenate(list(grams.to_bytes())))
    assert read.tokens == 2000
    for one, other in zip(grams.orders, read.orders, strict=True):
        np.testing.assert_array_equal(one.keys, other.keys)
        np.testing.assert_array_equal(one.counts, other.counts)
        assert one.contexts == other.contexts


def test_depths() -> None:
    begins = np.array([[0, 0, 0, 1, 0, 0], [0, 1, 1, 0, 0, 0]], bool)
    assert depths_of(begins, 3).tolist() == [[1, 2, 3, 3, 2, 3], [1, 2, 2, 2, 3, 3]]


DOCUMENTS = [[[0, 1, 2], [1, 2]], [[3]], [[2, 1, 0, 4]], [[1, 1]]]


def test_documents_and_the_separator() -> None:
    store = TokenStore.from_lists(DOCUMENTS, 6)
    lines: list[str] = []
    grams = ngrams_of(store, SEPARATOR, lines.append)
    flat = [SEPARATOR]
    for document in DOCUMENTS:
        flat += [*sum(document, []), SEPARATOR]
    own = counted(flat, 6, 5, SEPARATOR)
    assert [one.keys.tolist() for one in grams.orders] == [one.keys.tolist() for one in own.orders]
    assert lines == ["counted the 5-grams of 16 tokens in 0 s"]


def test_a_larger_text_is_sampled_by_documents() -> None:
    store = TokenStore.from_lists([[[number] * 10] for number in range(50)], 51)
    lines: list[str] = []
    grams = ngrams_of(store, None, lines.append, order=1, most=95)
    assert lines == ["counted the 1-grams of a sample of documents, 95 tokens in 0 s"]
    counts = Counter(grams.orders[0].counts.tolist())
    assert counts == {10: 9, 5: 1, 0: 41}


def test_several_texts_have_their_shares() -> None:
    stores = tuple(TokenStore.from_lists([[[one] * 10]] * 20, 3) for one in (0, 1))
    mixed = MixedStore(("a", "b"), stores, (3.0, 1.0))
    assert ngrams_of(mixed, None, print, order=1, most=40).orders[0].counts.tolist() == [30, 10, 0]


def test_the_file_is_read_again_or_counted_again(tmp_path: Path) -> None:
    store_on_disk = replace(TokenStore.from_lists(DOCUMENTS, 6), path=tmp_path, digest="of it")
    lines: list[str] = []
    first = ngrams_of(store_on_disk, SEPARATOR, lines.append)
    assert ngrams_of(store_on_disk, SEPARATOR, lines.append).tokens == first.tokens
    assert len(lines) == 1
    ngrams_of(store_on_disk, SEPARATOR, lines.append, order=3)
    assert len(lines) == 2  # other n-grams
    for path in (tmp_path / "rows").iterdir():
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    again = ngrams_of(store_on_disk, SEPARATOR, lines.append)
    assert len(lines) == 3
    np.testing.assert_array_equal(again.orders[-1].counts, first.orders[-1].counts)


def test_a_store_that_changed_is_counted_again(tmp_path: Path) -> None:
    store_on_disk = replace(TokenStore.from_lists(DOCUMENTS, 6), path=tmp_path, digest="of it")
    lines: list[str] = []
    ngrams_of(store_on_disk, SEPARATOR, lines.append)
    other = replace(TokenStore.from_lists(DOCUMENTS[1:], 6), path=tmp_path, digest="of another")
    assert ngrams_of(other, SEPARATOR, lines.append).tokens == 10
    assert len(lines) == 2


def test_a_kill_while_counting_leaves_no_half_file(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    store_on_disk = replace(TokenStore.from_lists(DOCUMENTS, 6), path=folder, digest="of it")

    def body() -> None:  # the last that happens before the file has its name
        ngrams_of(store_on_disk, SEPARATOR, lambda line: os.kill(os.getpid(), signal.SIGKILL))

    assert forked(body, tmp_path / "log").wait() == -signal.SIGKILL
    lines: list[str] = []
    grams = ngrams_of(store_on_disk, SEPARATOR, lines.append)
    assert (grams.tokens, len(lines)) == (16, 1)
    ngrams_of(store_on_disk, SEPARATOR, lines.append)
    assert len(lines) == 1


def test_real_text(shared_data: Path) -> None:
    """Of WikiText-2's bytes: better than a bigram, and far better than frequencies."""
    train, valid = (
        np.frombuffer((shared_data / "corpora" / "wikitext2" / name).read_bytes()[:size], np.uint8)
        for name, size in (("train.txt", 2_000_000), ("valid.txt", 100_000))
    )
    bits = []
    for order in (1, 2, 5):
        grams = NGrams.count(train, depths_of(np.zeros(len(train), bool), order), 256, order)
        given = grams.probabilities(valid, depths_of(np.zeros(len(valid), bool), order))
        bits.append(-np.log2(given).mean())
    assert bits[0] > 4.3
    assert bits[0] - bits[1] > 0.8
    assert bits[2] < 2.4
    assert math.isfinite(sum(bits))
