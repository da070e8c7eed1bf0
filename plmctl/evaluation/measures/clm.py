"""Causal language modeling: loss, perplexity and accuracy of the next token.

Disjoint windows of the text: every token but the first is predicted once, the first tokens of a
window with little context, so that this is an upper bound of the perplexity with full context.
"""

from typing import Any, Literal

from plmctl import objectives
from plmctl.evaluation.language import TextMeasureConfig, score_text
from plmctl.evaluation.measures import Subject


class Config(TextMeasureConfig):
    """Loss, perplexity and accuracy of the next token, in disjoint windows."""

    name: Literal["clm"] = "clm"


def measure(config: Config, subject: Subject) -> dict[str, Any]:
    """See ``language.score_text``."""
    return score_text(config, objectives.get("clm").Config(name="clm"), subject)
