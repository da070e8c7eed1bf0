"""Token embeddings from counts in a text: tokens with the same neighbours are alike.

With published initial weights a network must first learn from its loss which tokens resemble each
other. Counting says it in seconds: how often each token stands near each other one, as positive
pointwise mutual information (Church and Hanks, 1990), reduced to the size of the embeddings. Levy
and Goldberg, 2014 (Neural Word Embedding as Implicit Matrix Factorization), show that word2vec
factors nearly the same matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from plmctl.corpus.store import Corpus, MixedStore, TokenStore, cached_array, stores_of

_WEIGHTS = (12, 6, 4, 3)
"""What a pair counts at the distances 1 to 4: 12 / distance. Their sums are exact in any order."""
_SMOOTHING = 0.75
"""The frequency of a neighbour counts with this power, so that rare ones do not decide. Levy,
Goldberg and Dagan, 2015 (Improving Distributional Similarity with Lessons Learned from Word
Embeddings)."""
_ROUNDS = 4
"""Products with the matrix and its transpose, from random directions to its largest ones. Eight
gain nothing (docs/learning.md)."""
_MOST_TOKENS = 10_000_000
"""A longer text is read in blocks at equal distances: more would change little and take long."""
_BLOCK = 500_000
"""Tokens counted at once."""


def embeddings_of(corpus: Corpus, vocab_size: int, size: int) -> NDArray[np.float32]:
    """A vector per token of the vocabulary, from a text; saved beside the text.

    Args:
        corpus: One text, or several; of each, at most its share of the tokens that are counted.

    Returns:
        [V, size], rows of the length ``sqrt(size)``; zero for tokens without neighbours.
    """
    stores = stores_of(corpus)
    weights = corpus.weights if isinstance(corpus, MixedStore) else (1.0,)
    shares = [int(_MOST_TOKENS * weight / sum(weights)) for weight in weights]
    texts = [[store.digest, share] for store, share in zip(stores, shares, strict=True)]

    def compute() -> list[NDArray[np.float32]]:
        counts = sum(
            near_counts(store, vocab_size, share)
            for store, share in zip(stores, shares, strict=True)
        )
        return [reduced(positive_information(counts), size).ravel()]

    rule = ["embeddings", vocab_size, size, *texts, *_WEIGHTS, _SMOOTHING, _ROUNDS]
    return cached_array(stores[0], rule, np.float32, compute).reshape(vocab_size, size)


def near_counts(store: TokenStore, vocab_size: int, most: int = _MOST_TOKENS) -> Any:
    """How often each token stands before each other one, near it and in the same document.

    Args:
        most: Tokens to read, in blocks that are spread over the text.

    Returns:
        A sparse matrix [V, V]: row, then column in the text; a pair at a distance d counts 12 / d.
    """
    from scipy.sparse import coo_array, csr_array

    counts = csr_array((vocab_size, vocab_size), dtype=np.float64)
    starts = store.sentences[store.documents]  # of documents, in tokens
    for first, last in blocks(store.num_tokens, most):
        ids = store.tokens(np.arange(first, last))
        document = np.searchsorted(starts, np.arange(first, last), side="right")
        for distance, weight in enumerate(_WEIGHTS, start=1):
            near = document[:-distance] == document[distance:]
            pairs = ids[:-distance][near], ids[distance:][near]
            shape = vocab_size, vocab_size
            counts += coo_array((np.full(near.sum(), float(weight)), pairs), shape=shape).tocsr()
    return counts


def blocks(tokens: int, most: int) -> list[tuple[int, int]]:
    """The whole text, or blocks at equal distances with ``most`` tokens together."""
    whole = -(-tokens // _BLOCK)
    count = min(whole, max(1, most // _BLOCK))
    firsts = [block * whole // count * _BLOCK for block in range(count)]
    return [(first, min(first + _BLOCK, tokens)) for first in firsts]


def positive_information(counts: Any) -> Any:
    """Positive pointwise mutual information of each pair, in nats.

    Args:
        counts: Sparse [V, V], as ``near_counts`` gives them.

    Returns:
        A sparse matrix [V, 2 V]: for each token what stands after it, then what stands before it.
    """
    from scipy.sparse import csr_array, hstack

    sides = []
    for side in (counts, counts.T):
        pairs = side.tocoo()
        rows, columns = np.asarray(side.sum(axis=1)), np.asarray(side.sum(axis=0)) ** _SMOOTHING
        chance = columns / max(columns.sum(), 1.0)
        nats = np.log(pairs.data / (rows[pairs.row] * chance[pairs.col]))
        keep = nats > 0
        where = pairs.row[keep], pairs.col[keep]
        sides.append(csr_array((nats[keep].astype(np.float32), where), shape=side.shape))
    return hstack(sides, format="csr")


def reduced(matrix: Any, size: int) -> NDArray[np.float32]:
    """Rows with nearly the same products, of ``size`` numbers.

    With the singular values S and the left vectors U of the matrix, its largest ``size``, the
    result is ``U sqrt(S) R``, where the rotation R is random: no direction of the embeddings means
    more than another. Unlike the vectors themselves, it changes little when the last bits do.
    Halko, Martinsson and Tropp, 2011 (arXiv:0909.4061).

    Args:
        matrix: Sparse [V, C].

    Returns:
        [V, size], each row scaled to the length ``sqrt(size)``, or zero.
    """
    generator = np.random.default_rng(0)
    directions = generator.standard_normal((matrix.shape[1], size), dtype=np.float32)
    for _ in range(_ROUNDS):
        basis, _ = np.linalg.qr(matrix @ directions)
        directions = matrix.T @ basis
    directions, _ = np.linalg.qr(directions)
    rows = (matrix @ directions).astype(np.float64)
    squares, axes = np.linalg.eigh(rows.T @ rows)
    smallest = 1e-6 * max(squares[-1], 1e-6)  # of a text with few pairs, some are zero
    scaled = rows @ (axes * np.maximum(squares, smallest) ** -0.25) @ axes.T
    if scaled.shape[1] < size:  # a small vocabulary
        wider, _ = np.linalg.qr(generator.standard_normal((size, scaled.shape[1])))
        scaled = scaled @ wider.T
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
    seen = lengths > 1e-6 * max(lengths.max(), 1e-6)
    scaled *= np.divide(np.sqrt(size), lengths, out=np.zeros_like(lengths), where=seen)
    return np.asarray(scaled, dtype=np.float32)
