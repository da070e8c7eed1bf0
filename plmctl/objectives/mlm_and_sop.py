"""Masked tokens and sentence order: ALBERT's pretraining (Lan et al., 2020, arXiv:1909.11942).

Loss = mean cross-entropy of the masked tokens + mean cross-entropy of the pair's label, where label
1 says that the segments are swapped. Source: google-research/albert, create_pretraining_data.py and
run_pretraining.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from plmctl.config.sections import MaskingConfig
from plmctl.examples.keys import Keys
from plmctl.examples.pairing import Records, sentence_order_pairs
from plmctl.objectives._masked import (
    Label,
    MaskedObjective,
    MaskedPairs,
    cached_pairs,
    check_documents,
    masker,
)

if TYPE_CHECKING:
    from plmctl.corpus.store import TokenStore
    from plmctl.tokenization.load import Vocab


class Config(MaskingConfig):
    """Predict masked tokens, and whether the two segments are in their order or swapped."""

    name: Literal["mlm+sop"] = "mlm+sop"
    unit: Literal["token", "word", "ngram"] = "ngram"
    """What is chosen; word: all tokens of a word; ngram: runs of 1 to `max_ngram` whole words."""
    short_seq_prob: float = Field(default=0.1, ge=0, le=1)
    """Share of documents whose pairs are cut to a random shorter length."""
    single_sentence: Literal["other_document", "skip"] = "other_document"
    """What becomes of text of one sentence only, which has no order. other_document: the second
    segment is from another document and counts as swapped, as in ALBERT's code; skip: it is left
    out, so that the label is about order alone, as in ALBERT's paper."""


SWAPPED = Label("swapped", ("A comes before B", "B comes before A", "B is from another document"))


class SentenceOrderPrediction(MaskedObjective[Config], config=Config):
    """Pairs of consecutive segments, labelled by whether they are swapped."""

    LOSS_TERMS = ("mlm", "sop")

    def over(self, store: TokenStore, vocab: Vocab, seq_len: int, seed: int) -> MaskedPairs:
        """The pairs of a store; ``seq_len`` counts [CLS] and both [SEP].

        Raises:
            DataError: Fewer than two documents, and ``single_sentence: other_document``.
        """
        share, single = self.config.short_seq_prob, self.config.single_sentence
        if single == "other_document":
            check_documents(self.config.name, store, "set `objective.single_sentence: skip`")

        def make_pairs(key: Keys) -> Iterator[Records]:
            return sentence_order_pairs(
                store.sentences, store.documents, seq_len, key, short_seq_prob=share, single=single
            )

        pairs = cached_pairs(store, seq_len, ("sop", share, single), seed, make_pairs)
        return MaskedPairs(self, masker(self.config, store, vocab, seed), pairs, SWAPPED)
