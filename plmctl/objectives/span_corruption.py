"""Span corruption: T5's pretraining (Raffel et al., 2020, arXiv:1910.10683).

Documents are put one after the other in groups of 128 and cut into windows of a length such that
the corrupted input has exactly `seq_len` tokens. Spans of noise become sentinels in the input, and
the target has each sentinel with the tokens that it stands for. Source:
google-research/text-to-text-transfer-transformer, preprocessors.py (``span_corruption``).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from plmctl.arrays import Ints
from plmctl.examples.keys import Keys
from plmctl.examples.noise import replace_runs, span_counts, span_lengths, span_noise
from plmctl.examples.packing import CONCATENATED
from plmctl.objectives._text_to_text import (
    ENCODER_DECODER,
    LOSS_TERMS,
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

TOKENS = ("pad", "eos", "sentinels")


class Config(TextToTextConfig):
    """Predict the spans that sentinels stand for."""

    name: Literal["span_corruption"] = "span_corruption"
    density: float = Field(default=0.15, gt=0, le=0.9)
    """Share of the tokens that is hidden."""
    mean_span: float = Field(default=3.0, ge=1)
    """Mean tokens of a hidden span."""


def make(config: Config, store: TokenStore, vocab: Vocab, seq_len: int, seed: int) -> TextToText:
    """The objective over a store; ``seq_len`` counts the input with sentinels and end token.

    Raises:
        ConfigError: The tokenizer has no padding token, no end token, or too few sentinels.
    """
    lengths = span_lengths(seq_len, config.density, config.mean_span)
    needed = specials(vocab, config.name, lengths.spans)
    # A window of one token has no noise.
    starts, ends = cut(store, lengths.raw, CONCATENATED)
    shape = partial(_shape, config.density, config.mean_span, needed.sentinels)

    def known() -> dict[str, float]:
        noise, spans = span_counts(ends - starts, config.density, config.mean_span)
        share, run = max((ends - starts).sum(), 1), max(spans.sum(), 1)
        return {"noise_share": float(noise.sum() / share), "mean_run": float(noise.sum() / run)}

    return TextToText(store, starts, ends, needed, shape, config.z_loss, key_of(seed), known)


def _shape(
    density: float, mean_span: float, sentinels: Ints, ids: Ints, lengths: Ints, keys: Keys
) -> Pair:
    noise = span_noise(lengths, density, mean_span, keys)
    return Pair(*replace_runs(ids, lengths, noise, sentinels), noise)
