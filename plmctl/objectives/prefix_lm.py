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
    ENCODER_DECODER,
    LOSS_TERMS,
    TOKENS,
    Pair,
    TextToText,
    TextToTextConfig,
    cut,
    key_of,
    specials,
)

if TYPE_CHECKING:
    from plmctl.corpus.store import TokenStore
    from plmctl.tokenization.load import Vocab

__all__ = ["ENCODER_DECODER", "LOSS_TERMS", "TOKENS", "Config", "make"]


class Config(TextToTextConfig):
    """Go on with the beginning of a text."""

    name: Literal["prefix_lm"] = "prefix_lm"


def make(config: Config, store: TokenStore, vocab: Vocab, seq_len: int, seed: int) -> TextToText:
    """The objective over a store; ``seq_len`` counts a segment and one end token.

    Raises:
        ConfigError: The tokenizer has no padding token or no end token.
    """
    needed = specials(vocab, config.name, 0)
    starts, ends = cut(store, seq_len - 1)

    def known() -> dict[str, float]:  # a part has 1..n-1 tokens, and the end
        mean = float((ends - starts).mean() / 2 + 1) if len(starts) else 0.0
        return {"mean_length": mean, "mean_target_length": mean}

    return TextToText(store, starts, ends, needed, _shape, config.z_loss, key_of(seed), known)


def _shape(ids: Ints, lengths: Ints, keys: Keys) -> Pair:
    """Prefixes of 1..n-1 tokens, all equally likely."""
    prefix = 1 + below(fold(keys, stream("prefix")), lengths - 1)
    given = real(prefix, ids.shape[1])
    return Pair(compact(ids, given), compact(ids, real(lengths, ids.shape[1]) & ~np.asarray(given)))
