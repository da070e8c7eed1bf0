"""Interpolated Kneser-Ney n-grams of a token store: the yardstick of causal language models.

The probability of a token after a context is its discounted count there, and what the discounts
leave goes to the shorter context. A longest n-gram counts how often it occurs, a shorter one by how
many different tokens it follows. Each order has three discounts, for counts of one, two and more
(Chen and Goodman, 1999, An Empirical Study of Smoothing Techniques for Language Modeling). At the
bottom all tokens are equal, so that no target has the probability 0.

An n-gram never reaches back over the beginning of its text. It may begin with the separator that
stands there; then nothing comes before it, and it counts how often it occurs (as in KenLM).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Bools, Floats, Ints
from plmctl.corpus.store import (
    Corpus,
    MixedStore,
    TokenStore,
    cached_array,
    offsets,
    stores_of,
    token_dtype,
)
from plmctl.examples.keys import fold, stream

ORDER = 5
"""Tokens of the longest n-gram: of 15 million tokens, longer ones gain nothing."""
MOST_TOKENS = 15_000_000
"""Of a larger store a sample of documents is counted: this many take 30 seconds and 2 GB."""
_LARGE = 255
"""Counts from here on are kept apart in a file: few are."""


@dataclass(frozen=True)
class Grams:
    """All n-grams of one order, with their counts.

    Attributes:
        keys: [M] ascending: number of the context among the n-grams of the order below, times the
            vocabulary size, plus the last token. Of order 1 all V tokens.
        counts: [M].
        contexts: C, n-grams of the order below.
        vocab_size: V.
    """

    keys: Ints
    counts: NDArray[np.uint32]
    contexts: int
    vocab_size: int

    @cached_property
    def discounts(self) -> Floats:
        """[4] what is taken from a count of 0, 1, 2, and 3 or more."""
        n1, n2, n3, n4 = (int((self.counts == count).sum()) for count in (1, 2, 3, 4))
        one = n1 / (n1 + 2 * n2) if n1 else 0.5
        if n1 and n2 and n3:
            three = [1 - 2 * one * n2 / n1, 2 - 3 * one * n3 / n2, 3 - 4 * one * n4 / n3]
            if all(0 < discount <= count for count, discount in enumerate(three, start=1)):
                return np.array([0, *three])
        return np.array([0, one, one, one])  # of few n-grams the estimate of three is no discount

    @cached_property
    def totals(self) -> Floats:
        """[C] counts after each context."""
        return np.bincount(self._context, self.counts, self.contexts).astype(np.float64)

    @cached_property
    def left(self) -> Floats:
        """[C] what the discounts leave after each context to the order below."""
        taken = self.discounts[np.minimum(self.counts, 3)]
        return np.bincount(self._context, taken, self.contexts).astype(np.float64)

    @property
    def _context(self) -> Ints:
        return self.keys // self.vocab_size

    def probabilities(self, contexts: Ints, numbers: Ints, given: Floats) -> Floats:
        """The probability of each token in its context.

        Args:
            contexts: [N] -1: it never occurred.
            numbers: [N] of ``find``.
            given: [N] the probability by the order below.

        Returns:
            [N]; in a context that never occurred what was given.
        """
        if not len(self.keys):
            return given
        counts = np.where(numbers >= 0, self.counts[numbers], 0)
        totals = np.where(contexts >= 0, self.totals[contexts], 0)
        kept = counts - self.discounts[np.minimum(counts, 3)] + self.left[contexts] * given
        return np.where(totals > 0, kept / np.maximum(totals, 1), given)

    def find(self, contexts: Ints, tokens: Ints) -> Ints:
        """[N] the number of each token in its context; -1: there is none."""
        if len(self.keys) == self.vocab_size and self.contexts == 1:
            return tokens
        return places(self.keys, contexts * self.vocab_size + tokens)


def places(known: Ints, wanted: Ints) -> Ints:
    """[N] where each number stands among ascending ones; -1: it does not."""
    if not len(known):
        return np.full(len(wanted), -1)
    order = np.argsort(wanted)  # a search for ascending numbers is several times faster
    ascending = wanted[order]
    place = np.minimum(np.searchsorted(known, ascending), len(known) - 1)
    numbers = np.empty_like(wanted)
    numbers[order] = np.where(known[place] == ascending, place, -1)
    return numbers


@dataclass(frozen=True)
class NGrams:
    """The n-grams of a text.

    Attributes:
        orders: By order, from 1 on; fewer than asked for if no text is that long.
        tokens: Tokens that were counted.
    """

    orders: tuple[Grams, ...]
    tokens: int

    @property
    def order(self) -> int:
        """Tokens of the longest n-gram."""
        return len(self.orders)

    @classmethod
    def count(cls, ids: Ints, depths: Ints, vocab_size: int, order: int = ORDER) -> NGrams:
        """Count the n-grams of a text.

        Args:
            ids: [N].
            depths: [N] of ``depths_of``; 0 at a token that is only context.
        """
        orders, keys, raw = (
            [],
            np.arange(vocab_size),
            np.bincount(ids[depths > 0], None, vocab_size),
        )
        at, contexts = ids.astype(np.int32), 1  # the number of the n-gram that ends at each token
        for longer in range(2, order + 1):
            here = np.flatnonzero(depths >= longer)
            if not len(here):
                break
            ends = at[here - 1].astype(np.int64) * vocab_size + ids[here]
            by_key = np.argsort(ends)
            ends, here = ends[by_key], here[by_key]
            first = np.concatenate([[True], ends[1:] != ends[:-1]])
            counts = np.bincount(at[here[first]], None, len(keys))  # different tokens before it
            counts += np.bincount(at[depths == longer - 1], None, len(keys))  # nothing before it
            orders.append(Grams(keys, counts.astype(np.uint32), contexts, vocab_size))
            at = np.empty(len(ids), np.int32)
            at[here] = np.cumsum(first) - 1
            contexts, keys = len(keys), ends[first]
            raw = np.diff(np.append(np.flatnonzero(first), len(first)))
        orders.append(Grams(keys, raw.astype(np.uint32), contexts, vocab_size))
        return cls(tuple(orders), int((depths > 0).sum()))

    def probabilities(self, ids: Ints, depths: Ints) -> Floats:
        """The probability of each token of a text after those before it.

        Args:
            ids: [N].
            depths: [N] of ``depths_of``.

        Returns:
            [N].
        """
        vocab_size = self.orders[0].vocab_size
        given = np.full(len(ids), 1 / vocab_size)
        at = ids.astype(np.int64)
        for order, grams in enumerate(self.orders, start=1):
            here = np.flatnonzero(depths >= order)
            context = at[here - 1] if order > 1 else np.zeros_like(here)
            here, context = here[context >= 0], context[context >= 0]
            numbers = grams.find(context, ids[here])
            given[here] = grams.probabilities(context, numbers, given[here])
            at = np.full(len(ids), -1)
            at[here] = numbers
        return given

    def to_bytes(self) -> Iterator[NDArray[np.uint8]]:
        """A small form: seven bytes per token of an English text."""
        head = [self.tokens, self.orders[0].vocab_size, len(self.orders)]
        parts: list[NDArray[Any]] = [*_small(self.orders[0].counts)]
        for grams in self.orders[1:]:
            followers = np.bincount(grams.keys // grams.vocab_size, None, grams.contexts)
            words = (grams.keys % grams.vocab_size).astype(token_dtype(grams.vocab_size))
            parts += [*_small(grams.counts), *_small(followers), words]
        head += [part.nbytes for part in parts]
        yield np.array([len(head), *head], "<i8").view(np.uint8)
        yield from (part.view(np.uint8) for part in parts)

    @classmethod
    def from_bytes(cls, data: NDArray[np.uint8]) -> NGrams:
        """What ``to_bytes`` wrote."""
        length = int(data[:8].view("<i8")[0])
        tokens, vocab_size, orders, *sizes = data[8 : 8 * (length + 1)].view("<i8").tolist()
        edges = (offsets(np.array(sizes)) + 8 * (length + 1)).tolist()
        parts = iter([data[a:b] for a, b in zip(edges, edges[1:], strict=False)])
        counts = _large(next(parts), next(parts))
        read = [Grams(np.arange(vocab_size), counts, 1, vocab_size)]
        for _ in range(1, orders):
            counts = _large(next(parts), next(parts))
            followers = _large(next(parts), next(parts))
            words = next(parts).view(token_dtype(vocab_size))
            context = np.repeat(np.arange(len(followers)), followers)
            read.append(Grams(context * vocab_size + words, counts, len(followers), vocab_size))
        return cls(tuple(read), tokens)


def _small(values: NDArray[np.integer]) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Values as bytes, and those that are too large for one."""
    return np.minimum(values, _LARGE).astype(np.uint8), values[values >= _LARGE].astype("<u4")


def _large(small: NDArray[np.uint8], rest: NDArray[np.uint8]) -> NDArray[np.uint32]:
    values = small.astype(np.uint32)
    values[small == _LARGE] = rest.view("<u4")
    return values


def depths_of(begins: Bools, order: int = ORDER) -> Ints:
    """The tokens that the longest n-gram that ends at each token may have.

    Args:
        begins: [..., L] tokens over which none reaches back, because a text begins with them; the
            first of a row is one.

    Returns:
        [..., L] from 1 to ``order``.
    """
    column = np.arange(begins.shape[-1], dtype=np.int32)
    first = np.maximum.accumulate(np.where(begins, column, 0), axis=-1)
    before = np.concatenate([np.zeros_like(first[..., :1]), first[..., :-1]], axis=-1)
    depths: Ints = np.minimum(column + 1 - before, order)
    return depths


# --- The n-grams of token stores ---


def ngrams_of(
    corpus: Corpus,
    separator: int | None,
    say: Callable[[str], None],
    *,
    order: int = ORDER,
    most: int = MOST_TOKENS,
) -> NGrams:
    """The n-grams of a corpus, saved beside it; of several texts each has its share.

    Args:
        separator: The id between documents; None: they follow each other as one text.
        say: Called with a line if n-grams are counted, not read.
    """
    stores, shares = stores_of(corpus), _shares(corpus, most)
    vocab_size = max(1 if separator is None else separator + 1, *(s.vocab_size for s in stores), 1)

    def count() -> Iterator[NDArray[np.uint8]]:
        began = time.monotonic()
        ids, sizes = text_of(corpus, most)
        if separator is not None:  # before the first document and after each
            ids = np.insert(ids, offsets(sizes), separator)
        begins = np.zeros(len(ids), bool) if separator is None else ids == separator
        depths = depths_of(begins, order)
        if separator is not None:
            depths[0] = 0  # nothing says that a text begins
        grams = NGrams.count(ids, depths, vocab_size, order)
        yield from grams.to_bytes()
        say(counted_in(f"{order}-grams", corpus, grams.tokens, time.monotonic() - began))

    texts = [[store.digest, share] for store, share in zip(stores, shares, strict=True)]
    rule = ["ngrams", 1, order, separator, *texts]
    return NGrams.from_bytes(cached_array(stores[0], rule, np.uint8, count))


def counted_in(what: str, corpus: Corpus, tokens: int, seconds: float) -> str:
    """What was counted, for the user."""
    part = "a sample of documents, " if tokens < corpus.num_tokens else ""
    return f"counted the {what} of {part}{tokens:,} tokens in {seconds:.0f} s"


def text_of(corpus: Corpus, most: int = MOST_TOKENS) -> tuple[NDArray[Any], Ints]:
    """The tokens of a corpus, and how many each document has; of several texts each has its share.

    Of a larger text they are those of a sample of documents.
    """
    stores, shares = stores_of(corpus), _shares(corpus, most)
    texts = [_text(one, share) for one, share in zip(stores, shares, strict=True)]
    return np.concatenate([ids for ids, _ in texts]), np.concatenate([sizes for _, sizes in texts])


def _shares(corpus: Corpus, most: int) -> list[int]:
    weights = corpus.weights if isinstance(corpus, MixedStore) else (1.0,)
    return [int(most * weight / sum(weights)) for weight in weights]


def _text(store: TokenStore, most: int) -> tuple[NDArray[np.int32], Ints]:
    """The tokens of a store, and how many each document has; of a larger one a sample.

    The documents of a sample are drawn by key. They keep their order, and the last one is cut.
    """
    starts = store.sentences[store.documents]
    drawn = np.arange(store.num_documents)
    if store.num_tokens > most:
        by_key = np.argsort(fold(stream("ngrams"), drawn))
        enough = int(np.searchsorted(np.cumsum(np.diff(starts)[by_key]), most)) + 1
        drawn = np.sort(by_key[:enough])
    sizes = np.diff(np.minimum(offsets(np.diff(starts)[drawn]), most))
    drawn, sizes = drawn[sizes > 0], sizes[sizes > 0]
    shift = np.repeat(starts[drawn] - offsets(sizes)[:-1], sizes)
    return store.tokens(np.arange(len(shift)) + shift), sizes
