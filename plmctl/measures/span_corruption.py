"""Span corruption: loss, perplexity and accuracy of T5's targets, on fixed noise.

Sums over all target tokens of the set, with sentinels and end tokens, which are easy to predict:
metrics are comparable only for one tokenizer, one density, one mean span and one sequence length.
"""

from typing import Any, Literal

from pydantic import Field

from plmctl.evaluation.model import LoadedModel
from plmctl.measures.base import ObjectiveMeasure, ObjectiveMeasureConfig


class Config(ObjectiveMeasureConfig):
    """Loss, perplexity and accuracy of hidden spans, on fixed noise."""

    name: Literal["span_corruption"] = "span_corruption"
    density: float = Field(default=0.15, gt=0, le=0.9)
    """Share of the tokens that is hidden."""
    mean_span: float = Field(default=3.0, ge=1)
    """Mean tokens of a hidden span."""


class SpanCorruption(ObjectiveMeasure[Config], config=Config):
    """See ``Config``."""

    OBJECTIVE = "span_corruption"

    def objective_fields(self, model: LoadedModel) -> dict[str, Any]:
        """The noise, without the z-loss."""
        return {
            "density": self.config.density,
            "mean_span": self.config.mean_span,
            "z_loss": 0.0,
        }
