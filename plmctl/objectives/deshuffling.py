"""Deshuffling: restore the order of a text's tokens (T5 paper, section 3.3).

Each document is cut into segments of `seq_len` - 1 tokens; the input is a random order of them, the
target the segment. Source: google-research/text-to-text-transfer-transformer, preprocessors.py
(``permute_noise_tokens`` at noise density 1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from plmctl.arrays import Ints
from plmctl.examples.keys import Keys
from plmctl.examples.noise import Ragged, shuffled
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
    """Put the shuffled tokens of a text in order."""

    name: Literal["deshuffling"] = "deshuffling"


def make(config: Config, store: TokenStore, vocab: Vocab, seq_len: int, seed: int) -> TextToText:
    """The objective over a store; ``seq_len`` counts the end token.

    Raises:
        ConfigError: The tokenizer has no padding token or no end token.
    """
    needed = specials(vocab, config.name, 0)
    starts, ends = cut(store, seq_len - 1)

    def known() -> dict[str, float]:
        mean = float((ends - starts).mean() + 1) if len(starts) else 0.0
        return {"mean_length": mean, "mean_target_length": mean}

    return TextToText(store, starts, ends, needed, _shape, config.z_loss, key_of(seed), known)


def _shape(ids: Ints, lengths: Ints, keys: Keys) -> Pair:
    return Pair(Ragged(shuffled(ids, lengths, keys), lengths), Ragged(ids, lengths))
