"""Token embeddings from counts in a text."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from plmctl.corpus import cooccurrence
from plmctl.corpus.cooccurrence import (
    embeddings_of,
    near_counts,
    positive_information,
    reduced,
)
from plmctl.corpus.store import MixedStore, TokenStore

VOCAB = 12
SENTENCES = st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6), max_size=3)


# --- Counts ---


@given(st.lists(SENTENCES, min_size=1, max_size=4))
def test_counts_are_those_of_a_loop(documents: list[list[list[int]]]) -> None:
    """Sentences of a document follow each other; documents do not."""
    expected = np.zeros((VOCAB, VOCAB))
    for document in documents:
        ids = [token for sentence in document for token in sentence]
        for place, token in enumerate(ids):
            for distance in range(1, min(4, len(ids) - 1 - place) + 1):
                expected[token, ids[place + distance]] += 12 / distance
    store = TokenStore.from_lists(documents, VOCAB)
    assert (near_counts(store, VOCAB).toarray() == expected).all()


def test_a_long_text_is_read_in_blocks_that_are_spread_over_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cooccurrence, "_BLOCK", 10)
    text = [[[number // 10] * 10] for number in range(0, 100, 10)]  # block n: ten times token n
    store = TokenStore.from_lists(text, VOCAB)
    assert near_counts(store, VOCAB, most=99).diagonal().astype(bool)[:10].sum() == 9
    read = np.flatnonzero(near_counts(store, VOCAB, most=30).diagonal())
    assert read.tolist() == [0, 3, 6]


def test_information_of_a_pair() -> None:
    """Computed by hand: ln(count * total of neighbours / (row sum * neighbour's sum))."""
    counts = csr_array(np.array([[0.0, 3, 1], [1, 0, 0], [0, 0, 0]]))
    after = positive_information(counts).toarray()[:, :3]
    sums = np.array([1.0, 3, 1]) ** 0.75
    chance = sums / sums.sum()
    assert after[0, 1] == pytest.approx(math.log(3 / (4 * chance[1])))
    assert after[1, 0] == pytest.approx(math.log(1 / (1 * chance[0])))
    assert after[0, 2] == pytest.approx(max(0.0, math.log(1 / (4 * chance[2]))))
    assert not after[2].any()


# --- Reduction ---


def test_rows_of_a_matrix_that_fits_keep_their_angles() -> None:
    """Those of the exact U sqrt(S), by NumPy's own decomposition."""
    generator = np.random.default_rng(1)
    matrix = generator.random((40, 5)) @ generator.random((5, 80))
    left, values, _ = np.linalg.svd(matrix)
    exact = left[:, :5] * np.sqrt(values[:5])
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    rows = reduced(csr_array(matrix.astype(np.float32)), 5)
    assert np.abs(rows @ rows.T / 5 - exact @ exact.T).max() < 2e-3
    assert np.linalg.norm(rows, axis=1) == pytest.approx(math.sqrt(5), rel=1e-5)


def test_last_bits_of_the_matrix_change_only_last_bits_of_the_rows() -> None:
    """With singular vectors themselves, equal singular values would turn the result around."""
    blocks = np.kron(np.eye(8), np.ones((3, 3))).astype(np.float32)  # eight equal singular values
    nudged = blocks * (1 + 1e-6 * np.random.default_rng(0).random(blocks.shape).astype(np.float32))
    assert np.abs(reduced(csr_array(blocks), 8) - reduced(csr_array(nudged), 8)).max() < 1e-3


@pytest.mark.parametrize("size", [3, 12, 50])
def test_any_size_and_any_text(size: int) -> None:
    for text in ([[[5]]], [[[5, 5, 5]]], [[[1, 2]], [[3]]], [[[1, 2, 3, 4, 1, 2, 3, 4]]]):
        rows = embeddings_of(TokenStore.from_lists(text, VOCAB), VOCAB, size)
        assert rows.shape == (VOCAB, size)
        lengths = np.linalg.norm(rows, axis=1)
        assert np.isclose(lengths, 0).sum() + np.isclose(lengths, math.sqrt(size)).sum() == VOCAB


# --- Embeddings ---


def test_tokens_with_the_same_neighbours_start_alike() -> None:
    """1 and 2 follow the same tokens; 1 and 3 do not."""
    text = [[[6, 1, 7, 6, 2, 7]] * 20, [[8, 3, 9, 8, 4, 9]] * 20]
    rows = embeddings_of(TokenStore.from_lists(text, VOCAB), VOCAB, 6) / math.sqrt(6)
    assert rows[1] @ rows[2] > 0.9
    assert rows[3] @ rows[4] > 0.9
    assert abs(rows[1] @ rows[3]) < 0.3


def test_texts_are_counted_by_their_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cooccurrence, "_BLOCK", 10)
    monkeypatch.setattr(cooccurrence, "_MOST_TOKENS", 40)
    stores = tuple(TokenStore.from_lists([[[token, token + 1] * 50]], VOCAB) for token in (1, 5))
    read = []
    count = cooccurrence.near_counts

    def noted(store: TokenStore, vocab_size: int, most: int) -> object:
        read.append(most)
        return count(store, vocab_size, most)

    monkeypatch.setattr(cooccurrence, "near_counts", noted)
    rows = embeddings_of(MixedStore(("a", "b"), stores, (3.0, 1.0)), VOCAB, 4)
    assert read == [30, 10]
    assert rows.any(1).tolist() == [token in (1, 2, 5, 6) for token in range(VOCAB)]
