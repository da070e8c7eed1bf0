"""Prefix language modeling with an encoder and a decoder (T5 paper, section 3.3; LM adaptation).

Each document is cut into segments of `seq_len` - 1 tokens; the input is a beginning of random
length, the target the rest. Continued from a model of span corruption it is the LM adaptation of T5
1.1. Source: google-research/text-to-text-transfer-transformer, preprocessors.py (``prefix_lm``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from plmctl.arrays import Ints
from plmctl.examples.keys import Keys, below, fold, stream
from plmctl.examples.noise import compact, real
from plmctl.objectives._text_to_text import (
    Pair,
    TextToText,
    TextToTextConfig,
)

if TYPE_CHECKING:
    from plmctl.corpus.store import TokenStore
    from plmctl.tokenization.load import Vocab


class Config(TextToTextConfig):
    """Continue the beginning of a text."""

    name: Literal["prefix_lm"] = "prefix_lm"


class PrefixLM(TextToText, config=Config):
    """Segments of one document each; ``seq_len`` counts a segment and one end token."""

    def __init__(
        self, config: Config, store: TokenStore, vocab: Vocab, seq_len: int, seed: int
    ) -> None:
        super().__init__(config, store, vocab, seed, size=seq_len - 1)

    def shape(self, ids: Ints, lengths: Ints, keys: Keys) -> Pair:
        """Prefixes of 1..n-1 tokens, all equally likely, and the rest."""
        prefix = 1 + below(fold(keys, stream("prefix")), lengths - 1)
        is_prefix = np.asarray(real(prefix, ids.shape[1]))
        is_rest = real(lengths, ids.shape[1]) & ~is_prefix
        return Pair(compact(ids, is_prefix), compact(ids, is_rest))

    def expected(self) -> dict[str, float]:
        """Input and target have half of a segment each, and an end token."""
        mean = float((self.ends - self.starts).mean() / 2 + 1) if len(self) else 0.0
        return {"mean_length": mean, "mean_target_length": mean}
