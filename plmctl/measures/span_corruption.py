"""Span corruption: loss, perplexity and accuracy of T5's targets, on fixed noise.

Sums over all target tokens of the set, sentinels and end tokens included, which are easy: figures
are comparable for one tokenizer, one density, one mean span and one sequence length only.
"""

from typing import Any, Literal

from pydantic import Field

from plmctl.evaluation.model import EvaluatedModel
from plmctl.measures.base import TextMeasureConfig, score_text
from plmctl.objectives.span_corruption import Config as ObjectiveConfig


class Config(TextMeasureConfig):
    """Loss, perplexity and accuracy of hidden spans, on fixed noise."""

    name: Literal["span_corruption"] = "span_corruption"
    density: float = Field(default=0.15, gt=0, le=0.9)
    """Share of the tokens that is hidden."""
    mean_span: float = Field(default=3.0, ge=1)
    """Mean tokens of a hidden span."""


def measure(config: Config, subject: EvaluatedModel) -> dict[str, Any]:
    """See ``base.score_text``; without the z-loss."""
    objective = ObjectiveConfig(
        name="span_corruption", density=config.density, mean_span=config.mean_span, z_loss=0.0
    )
    return score_text(config, objective, subject)
