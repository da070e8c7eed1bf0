"""Prefix language modeling with an encoder and a decoder (T5 paper, section 3.3; LM adaptation).

Each document is cut into segments of `seq_len` - 1 tokens; the input is a beginning of random
length, the target the rest. A row has as many segments as fit. Continued from a model of span
corruption it is the LM adaptation of T5 1.1. Source:
google-research/text-to-text-transfer-transformer, preprocessors.py (``prefix_lm``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from plmctl.arrays import Bools, Ints
from plmctl.examples.keys import Keys, below, fold, stream
from plmctl.examples.noise import compact, real
from plmctl.objectives._text_to_text import PackedTextToText, Pair, Specials, TextToTextConfig

if TYPE_CHECKING:
    from plmctl.tokenization.load import Vocab


class Config(TextToTextConfig):
    """Continue the beginning of a text."""

    name: Literal["prefix_lm"] = "prefix_lm"


class PrefixLM(PackedTextToText[Config], config=Config):
    """The input is the beginning of a text, the target the rest."""

    SAMPLES = "generation"

    def sample(self, ids: Ints, starts: Bools, key: int, vocab: Vocab) -> tuple[Ints, Ints]:
        """The first half of the sentence is continued."""
        return ids[: len(ids) // 2], ids[len(ids) // 2 :]

    def shape(self, ids: Ints, lengths: Ints, keys: Keys, specials: Specials) -> Pair:
        """Prefixes of 1..n-1 tokens, all equally likely, and the rest."""
        is_prefix = np.asarray(real(self.sizes(lengths, keys)[0], ids.shape[1]))
        is_rest = real(lengths, ids.shape[1]) & ~is_prefix
        return Pair(compact(ids, is_prefix), compact(ids, is_rest))

    def sizes(self, lengths: Ints, keys: Keys) -> tuple[Ints, Ints]:
        """See the base class."""
        prefix = 1 + below(fold(keys, stream("prefix")), lengths - 1)
        return prefix, lengths - prefix

    def expected(self, lengths: Ints, rows: int) -> dict[str, float]:
        """Input and target have half of each segment, and an end token."""
        tokens = float(lengths.sum() / 2 + len(lengths))
        return dict.fromkeys(("mean_length", "mean_target_length"), tokens / max(1, rows))
