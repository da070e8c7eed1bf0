"""Masked tokens and next-sentence prediction: BERT's pretraining (Devlin et al., 2019).

Loss = mean cross-entropy of the masked tokens + mean cross-entropy of the pair's label, where label
1 says that the second segment is from another document. Source: google-research/bert,
create_pretraining_data.py and run_pretraining.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from plmctl.config.sections import MaskingConfig
from plmctl.examples.keys import Keys
from plmctl.examples.pairing import Records, next_sentence_pairs
from plmctl.objectives._masked import (
    NEXT_SENTENCE,
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
    """Predict masked tokens, and whether the second segment follows the first."""

    name: Literal["mlm+nsp"] = "mlm+nsp"
    short_seq_prob: float = Field(default=0.1, ge=0, le=1)
    """Share of documents whose pairs are cut to a random shorter length."""


class NextSentencePrediction(MaskedObjective[Config], config=Config):
    """Pairs of segments, labelled by whether the second one follows the first."""

    LOSS_TERMS = ("mlm", "nsp")

    def over(self, store: TokenStore, vocab: Vocab, seq_len: int, seed: int) -> MaskedPairs:
        """The pairs of a store; ``seq_len`` counts [CLS] and both [SEP].

        Raises:
            DataError: Fewer than two documents, so that there is no random next segment.
        """
        share = self.config.short_seq_prob
        check_documents(self.config.name, store, "use the objective 'mlm'")

        def make_pairs(key: Keys) -> Iterator[Records]:
            return next_sentence_pairs(
                store.sentences, store.documents, seq_len, key, short_seq_prob=share
            )

        pairs = cached_pairs(store, seq_len, ("nsp", share), seed, make_pairs)
        masks = masker(self.config, store, vocab, seed)
        return MaskedPairs(self, masks, pairs, NEXT_SENTENCE)
