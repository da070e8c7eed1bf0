"""Tokens between both neighbours: the yardstick of masked language models.

p(token | the token before it, the token after it) is its discounted count between the two. What the
discounts leave goes to the mean of p(token | before) and p(token | after), what those leave to how
often it occurs, and the rest to all tokens alike. These are the contexts of a generalized language
model (Pickhardt et al., 2014, A Generalized Language Model as the Combination of Skipped n-grams
and Modified Kneser-Ney Smoothing), each with three discounts, as in ``ngrams``. A shorter context
counts how often a token occurs in it, not in how many longer ones: a masked neighbour is not known,
so that the other one is often all there is.

A document's first token has nothing before it, and its last nothing after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from plmctl.arrays import Floats, Ints
from plmctl.corpus.store import Corpus, stores_of
from plmctl.counting.ngrams import Grams, counted_in, places, text_of


@dataclass(frozen=True)
class Neighbours:
    """Tokens with their neighbours.

    Attributes:
        alone: Tokens; there is one context, 0.
        before: Tokens by the one before them, which is the context.
        after: Tokens by the one after them.
        pairs: [P] ascending: the token before, times V, plus the token after.
        between: Tokens by the pair around them: its place in ``pairs`` is the context.
    """

    alone: Grams
    before: Grams
    after: Grams
    pairs: Ints
    between: Grams

    @classmethod
    def count(cls, ids: Ints, sizes: Ints, vocab_size: int) -> Neighbours:
        """Count a text.

        Args:
            ids: [N] of one document after the other.
            sizes: [D] tokens of each document.
        """
        ids = ids.astype(np.int64)
        follows = np.ones(len(ids), bool)  # whether its document has a token before it
        follows[(np.cumsum(sizes) - sizes)[sizes > 0]] = False
        left, right = ids[:-1][follows[1:]], ids[1:][follows[1:]]
        inside = np.flatnonzero(follows[1:-1] & follows[2:]) + 1
        around = ids[inside - 1] * vocab_size + ids[inside + 1]
        keys, counts = _counted(around * vocab_size + ids[inside])
        around, tokens = np.divmod(keys, vocab_size)
        first = np.diff(around, prepend=-1) > 0
        pairs = around[first]
        keys = (np.cumsum(first) - 1) * vocab_size + tokens
        alone = np.bincount(ids, minlength=vocab_size).astype(np.uint32)
        return cls(
            Grams(np.arange(vocab_size), alone, 1, vocab_size),
            Grams(*_counted(left * vocab_size + right), vocab_size, vocab_size),
            Grams(*_counted(right * vocab_size + left), vocab_size, vocab_size),
            pairs,
            Grams(keys, counts, len(pairs), vocab_size),
        )

    def probabilities(self, before: Ints, tokens: Ints, after: Ints) -> Floats:
        """The probability of each token between its neighbours.

        Args:
            before: [N] -1: it is not known.
            tokens: [N].
            after: [N] -1: it is not known.
        """
        vocab_size = self.alone.vocab_size
        alone = _given(
            self.alone, np.zeros_like(tokens), tokens, np.full(len(tokens), 1 / vocab_size)
        )
        left, right = (
            _given(grams, neighbour, tokens, alone)
            for grams, neighbour in ((self.before, before), (self.after, after))
        )
        known = (before >= 0, after >= 0)
        pair = np.where(known[0] & known[1], before * vocab_size + after, -1)
        either = np.where(known[0], left, right)
        either[pair >= 0] = ((left + right) / 2)[pair >= 0]
        return _given(self.between, places(self.pairs, pair), tokens, either)


def neighbours_of(corpus: Corpus, vocab_size: int, say: Callable[[str], None]) -> Neighbours:
    """The tokens of a corpus with their neighbours; ``say`` gets a line.

    15 million tokens take five seconds and 1.2 GB, so that no file is kept.
    """
    began = time.monotonic()
    ids, sizes = text_of(corpus)
    vocab_size = max(vocab_size, *(store.vocab_size for store in stores_of(corpus)))
    counted = Neighbours.count(ids, sizes, vocab_size)
    say(counted_in("neighbours", corpus, len(ids), time.monotonic() - began))
    return counted


def _counted(keys: Ints) -> tuple[Ints, np.ndarray]:
    keys, counts = np.unique(keys, return_counts=True)
    return keys, counts.astype(np.uint32)


def _given(grams: Grams, contexts: Ints, tokens: Ints, below: Floats) -> Floats:
    return grams.probabilities(contexts, grams.find(contexts, tokens), below)
