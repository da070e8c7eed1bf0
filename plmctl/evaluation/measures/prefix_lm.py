"""Prefix language modeling: loss, perplexity and accuracy of what follows a fixed beginning."""

from typing import Any, Literal

from plmctl import objectives
from plmctl.evaluation.language import TextMeasureConfig, score_text
from plmctl.evaluation.measures import Subject


class Config(TextMeasureConfig):
    """Loss, perplexity and accuracy of the rest of a text, given a beginning of random length."""

    name: Literal["prefix_lm"] = "prefix_lm"


def measure(config: Config, subject: Subject) -> dict[str, Any]:
    """See ``language.score_text``; without the z-loss."""
    objective = objectives.get("prefix_lm").Config(name="prefix_lm", z_loss=0.0)
    return score_text(config, objective, subject)
