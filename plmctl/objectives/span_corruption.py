"""Span corruption: T5's pretraining (Raffel et al., 2020, arXiv:1910.10683).

Documents are put one after the other in groups of 128 and cut into windows of a length such that
the corrupted input has exactly `seq_len` tokens. Spans of noise become sentinels in the input, and
the target has each sentinel with the tokens that it stands for. Source:
google-research/text-to-text-transfer-transformer, preprocessors.py (``span_corruption``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from plmctl.arrays import Ints
from plmctl.examples.keys import Keys
from plmctl.examples.noise import replace_runs, span_counts, span_lengths, span_noise
from plmctl.examples.packing import CONCATENATED
from plmctl.objectives._text_to_text import (
    Pair,
    Segments,
    Specials,
    TextToText,
    TextToTextConfig,
)

if TYPE_CHECKING:
    from plmctl.corpus.store import TokenStore
    from plmctl.tokenization.load import Vocab


class Config(TextToTextConfig):
    """Predict the spans that sentinels stand for."""

    name: Literal["span_corruption"] = "span_corruption"
    density: float = Field(default=0.15, gt=0, le=0.9)
    """Share of the tokens that is hidden."""
    mean_span: float = Field(default=3.0, ge=1)
    """Mean tokens of a hidden span."""


class SpanCorruption(TextToText[Config], config=Config):
    """Spans of noise become sentinels in the input; the target has what they stand for."""

    TOKENS = ("pad", "eos", "sentinels")

    def over(self, store: TokenStore, vocab: Vocab, seq_len: int, seed: int) -> Segments:
        """Segments of groups of documents; ``seq_len`` counts sentinels and the end token."""
        lengths = span_lengths(seq_len, self.config.density, self.config.mean_span)
        size, sentinels = lengths.raw, lengths.spans
        return Segments(
            self, store, vocab, seed, size=size, group=CONCATENATED, sentinels=sentinels
        )

    def targets_per_token(self) -> float:
        """Spans and their sentinels, per token that remains and sentinel."""
        density = self.config.density
        spans = density / self.config.mean_span
        return (density + spans) / (1 - density + spans)

    def shape(self, ids: Ints, lengths: Ints, keys: Keys, specials: Specials) -> Pair:
        """The text with a sentinel per span, and each sentinel with its span."""
        noise = span_noise(lengths, self.config.density, self.config.mean_span, keys)
        return Pair(*replace_runs(ids, lengths, noise, specials.sentinels), noise)

    def expected(self, lengths: Ints, rows: int) -> dict[str, float]:
        """The share of noise, and the mean length of its spans."""
        noise, spans = span_counts(lengths, self.config.density, self.config.mean_span)
        return {
            "noise_share": float(noise.sum() / max(lengths.sum(), 1)),
            "mean_run": float(noise.sum() / max(spans.sum(), 1)),
        }
