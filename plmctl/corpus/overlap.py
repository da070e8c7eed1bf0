"""How much of a held-out text is also in the training text: by runs of tokens, from the stores.

A split holds out whole documents by their hash, so no document is on both sides; but a page that
occurs in two forms may be, and separate validation files may be copies of the training files. Runs
of 32 tokens are compared by their hashes, of which a quarter is kept; short documents as a whole.
Of a large text, stretches are read that are spread over it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Ints, mixed_bits
from plmctl.corpus.store import Corpus, TokenStore, stores_of

_RUN = 32  # tokens, a power of two

_SHORTEST = 8  # tokens: shorter documents are alike by chance

_TRAIN, _VALID, _STRETCH = 20_000_000, 1_000_000, 1 << 20  # tokens: read at most, and at once

_ODD = 0x9E3779B97F4A7C15

_BITS = 22  # of the first filter: 4 MB

_SAID_FROM = 0.01

Hashes = NDArray[np.uint64]


@dataclass(frozen=True)
class Shared:
    """What of a held-out text is also in the training text.

    Attributes:
        shared: Those of which at least half is in the training text.
        text: The share of their tokens that is.
    """

    documents: int
    shared: int
    text: float
    whole: bool

    def report(self) -> str | None:
        """A line for the user; None: hardly anything is shared."""
        if self.text < _SAID_FROM:
            return None
        least = "" if self.whole else "at least "
        return (
            f"{least}{100 * self.text:.1f} % of the validation text is also in the training text "
            f"({self.shared:,} of {self.documents:,} documents for the most part), so that its "
            "loss is too low: remove copies from the text, or validate on other files"
        )


class Known:
    """Hashes of one text, of which those that occur in another text are marked.

    A table of the first bits of all hashes says at once that most hashes are not among them.
    """

    def __init__(self, hashes: Hashes) -> None:
        self._hashes, self._places = np.unique(hashes, return_inverse=True)
        self._marked = np.zeros(len(self._hashes), dtype=np.bool_)
        self._likely = np.zeros(1 << _BITS, dtype=np.bool_)
        self._likely[self._hashes >> np.uint64(64 - _BITS)] = True

    def mark(self, hashes: Hashes) -> None:
        """Mark those that are among the hashes of the other text."""
        likely = hashes[self._likely[hashes >> np.uint64(64 - _BITS)]]
        places = np.minimum(np.searchsorted(self._hashes, likely), len(self._hashes) - 1)
        self._marked[places[self._hashes[places] == likely]] = True

    def marked(self) -> NDArray[np.bool_]:
        """Whether each hash, as they were given, is marked."""
        marked: NDArray[np.bool_] = self._marked[self._places]
        return marked


def shared_text(train: Corpus, valid: Corpus) -> Shared:
    """Compare a held-out text with a training text of the same tokenizer."""
    runs, owners, sizes, short = _held_out(stores_of(valid))
    held_out = Known(runs)
    total = read = 0
    for store in stores_of(train):
        total += store.num_tokens
        for stretch in _stretches(store.num_tokens, _TRAIN // len(stores_of(train))):
            read += len(stretch)
            held_out.mark(_runs(store.tokens(stretch))[0])
        if short.any():
            held_out.mark(_short_documents(store)[0])
    counts = np.bincount(owners, minlength=len(sizes))
    parts = np.bincount(owners, weights=held_out.marked(), minlength=len(sizes)) / np.maximum(
        1, counts
    )
    compared = counts > 0
    tokens = sizes[compared].sum()
    text = float((parts * sizes)[compared].sum() / tokens) if tokens else 0.0
    return Shared(int(compared.sum()), int((parts >= 0.5).sum()), text, read >= total)


def _held_out(stores: tuple[TokenStore, ...]) -> tuple[Hashes, Ints, Ints, NDArray[np.bool_]]:
    """The hashes of a held-out text, the document of each, and tokens and kind of the documents."""
    hashes, owners, sizes, short = list[Hashes](), list[Ints](), list[Ints](), list[Any]()
    before = 0
    for store in stores:
        starts = store.sentences[store.documents]
        own = np.diff(starts)
        step = max(1, round(store.num_tokens * len(stores) / _VALID))
        chosen = np.arange(0, len(own), step)
        short_hashes, numbers = _short_documents(store)
        here = np.isin(numbers, chosen)
        long = chosen[own[chosen] >= _RUN]
        lengths = np.minimum(own[long], _STRETCH)
        index, owner = _ranges(starts[long], lengths), np.repeat(long, lengths)
        run_hashes, places = _runs(store.tokens(index))
        inside = owner[places] == owner[places + _RUN - 1]
        hashes += [short_hashes[here], run_hashes[inside]]
        owners += [before + numbers[here], before + owner[places[inside]]]
        sizes.append(own)
        short.append(own < _RUN)
        before += len(own)
    return (
        np.concatenate(hashes),
        np.concatenate(owners),
        np.concatenate(sizes),
        np.concatenate(short),
    )


def _stretches(tokens: int, most: int) -> Iterator[Ints]:
    """Token indices, in stretches that are spread over a text; together at most about so many."""
    count = -(-tokens // _STRETCH)
    step = max(1.0, tokens / most)
    for number in range(max(1, int(count / step))):
        begin = int(number * step) * _STRETCH
        yield np.arange(begin, min(tokens, begin + _STRETCH + _RUN - 1))


def _ranges(starts: Ints, lengths: Ints) -> Ints:
    """The indices of consecutive ranges."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())


def _runs(tokens: NDArray[np.int32]) -> tuple[Hashes, Ints]:
    """A quarter of the hashes of all runs of tokens, and where these begin."""
    hashes, length, factor = tokens.astype(np.uint64) + np.uint64(1), 1, _ODD
    while length < _RUN:  # a run of twice the length is two runs
        hashes = hashes[:-length] * np.uint64(factor) + hashes[length:]
        length, factor = 2 * length, factor * factor % 2**64
    hashes = mixed_bits(hashes)
    places = np.flatnonzero(hashes % np.uint64(4) == 0)
    return hashes[places], places


def _short_documents(store: TokenStore) -> tuple[Hashes, Ints]:
    """The hashes of documents that are shorter than a run, and their numbers."""
    starts = store.sentences[store.documents]
    sizes = np.diff(starts)
    numbers = np.flatnonzero((sizes >= _SHORTEST) & (sizes < _RUN))
    hashes = [np.zeros(0, np.uint64)]
    for some in np.array_split(numbers, len(numbers) * _RUN // _STRETCH + 1):
        if len(own := sizes[some]):
            begins = np.cumsum(own) - own
            place = np.arange(own.sum()) - np.repeat(begins, own)
            ids = store.tokens(_ranges(starts[some], own)).astype(np.uint64)
            parts = mixed_bits(ids * np.uint64(_RUN) + place.astype(np.uint64))
            hashes.append(mixed_bits(np.add.reduceat(parts, begins)))
    return np.concatenate(hashes), numbers
