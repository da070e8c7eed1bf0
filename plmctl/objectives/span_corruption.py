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
from plmctl.config.base import ObjectiveConfig
from plmctl.examples.keys import Keys
from plmctl.examples.noise import replace_runs, span_counts, span_lengths, span_noise
from plmctl.examples.packing import CONCATENATED
from plmctl.objectives._text_to_text import (
    Pair,
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


class SpanCorruption(TextToText, config=Config):
    """Segments of groups of documents; ``seq_len`` counts the input's sentinels and end token."""

    TOKENS = ("pad", "eos", "sentinels")

    def __init__(
        self, config: Config, store: TokenStore, vocab: Vocab, seq_len: int, seed: int
    ) -> None:
        lengths = span_lengths(seq_len, config.density, config.mean_span)
        super().__init__(
            config,
            store,
            vocab,
            seed,
            size=lengths.raw,
            group=CONCATENATED,
            sentinels=lengths.spans,
        )
        self.config = config

    @classmethod
    def targets_per_token(cls, config: ObjectiveConfig) -> float:
        """Spans and their sentinels, per token that remains and sentinel."""
        assert isinstance(config, Config)
        spans = config.density / config.mean_span
        return (config.density + spans) / (1 - config.density + spans)

    def shape(self, ids: Ints, lengths: Ints, keys: Keys) -> Pair:
        """The text with a sentinel per span, and each sentinel with its span."""
        noise = span_noise(lengths, self.config.density, self.config.mean_span, keys)
        return Pair(*replace_runs(ids, lengths, noise, self.specials.sentinels), noise)

    def expected(self) -> dict[str, float]:
        """The share of noise, and the mean length of its spans."""
        lengths = self.ends - self.starts
        noise, spans = span_counts(lengths, self.config.density, self.config.mean_span)
        return {
            "noise_share": float(noise.sum() / max(lengths.sum(), 1)),
            "mean_run": float(noise.sum() / max(spans.sum(), 1)),
        }
