"""Masked tokens and next-sentence prediction: BERT's pretraining (Devlin et al., 2019).

Loss = mean cross-entropy of the masked tokens + mean cross-entropy of the pair's label, where label
1 says that the second segment is from another document. Source: google-research/bert,
create_pretraining_data.py and run_pretraining.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from plmctl.config.masking import MaskingConfig
from plmctl.objectives._masked import ROW_TOKENS, masker
from plmctl.objectives._paired import NEXT_SENTENCE, MaskedPairs, check_documents, kept_pairs
from plmctl.shaping.keys import Keys
from plmctl.shaping.pairing import Records, next_sentence_pairs

if TYPE_CHECKING:
    from plmctl.corpus.store import TokenStore
    from plmctl.tokenization.vocab import Vocab

PARTS = ("mlm", "nsp")
TOKENS = ROW_TOKENS


class Config(MaskingConfig):
    """Predict masked tokens, and whether the second segment follows the first."""

    name: Literal["mlm+nsp"] = "mlm+nsp"
    short_seq_prob: float = Field(default=0.1, ge=0, le=1)
    """Share of documents whose pairs are cut to a random shorter length."""


def make(config: Config, store: TokenStore, vocab: Vocab, seq_len: int, seed: int) -> MaskedPairs:
    """The objective over a store; ``seq_len`` counts [CLS] and both [SEP].

    Raises:
        DataError: Fewer than two documents, so that no random next segment can be drawn.
    """
    check_documents(config.name, store, "use the objective 'mlm'")

    def make_pairs(key: Keys) -> Iterator[Records]:
        share = config.short_seq_prob
        return next_sentence_pairs(
            store.sentences, store.documents, seq_len, key, short_seq_prob=share
        )

    pairs = kept_pairs(store, seq_len, ("nsp", config.short_seq_prob), seed, make_pairs)
    return MaskedPairs(masker(config, store, vocab, seed), pairs, PARTS, NEXT_SENTENCE)
