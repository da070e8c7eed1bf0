"""Causal language modeling: loss, perplexity and accuracy of the next token.

Disjoint windows of the text: every token but the first is predicted once, the first tokens of a
window with little context, so that this is an upper bound of the perplexity with full context.
"""

from typing import Any, Literal

from plmctl.evaluation.model import EvaluatedModel
from plmctl.measures.base import TextMeasureConfig, score_text
from plmctl.objectives.clm import Config as ObjectiveConfig


class Config(TextMeasureConfig):
    """Loss, perplexity and accuracy of the next token, in disjoint windows."""

    name: Literal["clm"] = "clm"
    separator: Literal["end_of_text", "none"] = "end_of_text"
    """What stands after every document, as the model was trained; none: GPT-1."""
    attention: Literal["across", "within"] = "across"
    """What a token may look back at, as the model was trained: its window or its document."""


def measure(config: Config, subject: EvaluatedModel) -> dict[str, Any]:
    """See ``base.score_text``."""
    asked = {"separator": config.separator, "attention": config.attention}
    return score_text(config, ObjectiveConfig(name="clm", **asked), subject)
