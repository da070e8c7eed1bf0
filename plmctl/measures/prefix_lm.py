"""Prefix language modeling: loss, perplexity and accuracy of what follows a fixed beginning."""

from typing import Any, Literal

from plmctl.evaluation.model import EvaluatedModel
from plmctl.measures.base import TextMeasureConfig, score_text
from plmctl.objectives.prefix_lm import Config as ObjectiveConfig


class Config(TextMeasureConfig):
    """Loss, perplexity and accuracy of the rest of a text, given a beginning of random length."""

    name: Literal["prefix_lm"] = "prefix_lm"


def measure(config: Config, subject: EvaluatedModel) -> dict[str, Any]:
    """See ``base.score_text``; without the z-loss."""
    objective = ObjectiveConfig(name="prefix_lm", z_loss=0.0)
    return score_text(config, objective, subject)
