"""Bidirectional language modeling: loss, perplexity and accuracy of both directions.

The text in its own order as 32 streams with the state carried on, the full softmax at every word.
The figure of the ELMo paper is ``perplexity``: of the mean of both directions' losses.
"""

import math
from typing import Any, Literal

from pydantic import Field

from plmctl.evaluation.model import EvaluatedModel
from plmctl.measures.base import TextMeasureConfig, score_text
from plmctl.objectives.bilm import Config as ObjectiveConfig


class Config(TextMeasureConfig):
    """Loss, perplexity and accuracy of the next word and the one before."""

    name: Literal["bilm"] = "bilm"
    seq_len: int = Field(default=20, ge=8)
    """Words a window; it changes no figure, but how many words `max_samples` are."""


def measure(config: Config, subject: EvaluatedModel) -> dict[str, Any]:
    """See ``base.score_text``."""
    from plmctl.models.load import config_of

    objective = ObjectiveConfig(
        name="bilm", shuffle=False, target_words=config_of(subject.model).vocab_size
    )
    figures = score_text(config, objective, subject)
    return {**figures, "perplexity": math.exp(min(figures["loss"], 700.0))}
