"""Several token stores with their weights."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from plmctl.corpus.store import TokenStore


@dataclass(frozen=True)
class MixedStore:
    """Corpora that are mixed in training.

    Attributes:
        names: Of the corpora.
        stores: One each.
        weights: Shares of the samples, of any sum.
    """

    names: tuple[str, ...]
    stores: tuple[TokenStore, ...]
    weights: tuple[float, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens in all stores."""
        return sum(store.num_tokens for store in self.stores)

    @property
    def num_sentences(self) -> int:
        """Sentences in all stores."""
        return sum(store.num_sentences for store in self.stores)

    @property
    def num_documents(self) -> int:
        """Documents in all stores."""
        return sum(store.num_documents for store in self.stores)


Corpus = TokenStore | MixedStore


def stores_of(corpus: Corpus) -> tuple[TokenStore, ...]:
    """The stores of a corpus: of a mixture, or the one that it is."""
    return corpus.stores if isinstance(corpus, MixedStore) else (corpus,)


def mixed_digest(digests: list[str], weights: list[float]) -> str:
    """A digest of a mixture: equal where the data and the weights are equal."""
    text = " ".join(f"{digest}:{weight!r}" for digest, weight in zip(digests, weights, strict=True))
    return hashlib.sha256(text.encode()).hexdigest()
