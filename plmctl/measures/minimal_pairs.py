"""Minimal pairs (Warstadt et al., 2020, BLiMP): is the good sentence the more probable one?"""

from typing import Literal

from pydantic import Field

from plmctl.evaluation.likelihood import Likelihood
from plmctl.evaluation.model import LoadedModel
from plmctl.measures._pairs import PairsConfig, UnknownRule, measure_pairs
from plmctl.measures.base import Measure, Measurement


class Config(PairsConfig):
    """Accuracy on minimal pairs of sentences (BLiMP), for every family."""

    name: Literal["minimal_pairs"] = "minimal_pairs"
    variant: Literal["original", "word_l2r"] = "original"
    """Masked models. original: one token is masked, as published; word_l2r: the later tokens of its
    word too."""
    span: int | None = Field(default=None, ge=1)
    """Encoder-decoders. Empty: the decoder predicts the whole sentence; a number: this many tokens
    are hidden together, and the encoder reads the rest."""
    unknown_is_wrong: UnknownRule = "never"
    """Whether a pair is wrong that the tokenizer does not know. quoted: one of the texts between
    “ and ” (the Chinese BabyLM's pairs of characters); anywhere: any of either sentence."""


class MinimalPairs(Measure[Config], config=Config):
    """See ``Config``."""

    def measure(self, model: LoadedModel, seed: int) -> Measurement:
        """The result of ``measure_pairs``."""
        config = self.config
        likelihood = Likelihood.of(model)
        rule = config.unknown_is_wrong
        return measure_pairs(config, likelihood, config.variant, config.span, rule)
