"""Masked language modeling: loss, perplexity and accuracy on fixed masks.

Sums over all masked positions of the set, one copy of it, masks drawn from the seed alone. Figures
are comparable for one tokenizer, one rate and one sequence length only.
"""

from typing import Any, Literal

from pydantic import Field

from plmctl.evaluation.model import EvaluatedModel
from plmctl.measures.base import TextMeasureConfig, score_text
from plmctl.objectives.mlm import Config as ObjectiveConfig


class Config(TextMeasureConfig):
    """Loss, perplexity and accuracy of masked tokens, on fixed masks."""

    name: Literal["mlm"] = "mlm"
    rate: float = Field(default=0.15, gt=0, lt=1)
    """Share of the tokens that is masked."""


def measure(config: Config, subject: EvaluatedModel) -> dict[str, Any]:
    """See ``base.score_text``."""
    objective = ObjectiveConfig(name="mlm", rate=config.rate)
    return score_text(config, objective, subject)
