"""Sentence order: accuracy on fixed pairs, beside always naming the larger class."""

from typing import Any, Literal

from plmctl.evaluation.model import EvaluatedModel
from plmctl.measures.base import TextMeasureConfig, score_text
from plmctl.objectives.mlm_and_sop import Config as ObjectiveConfig


class Config(TextMeasureConfig):
    """Accuracy of sentence order, on fixed pairs of one document each with fixed masks."""

    name: Literal["sop"] = "sop"


def measure(config: Config, subject: EvaluatedModel) -> dict[str, Any]:
    """See ``base.score_text``; the inputs are masked, as in pretraining.

    Single sentences are left out, so that half of the pairs are swapped and chance is 0.5.
    """
    fields = {"name": "mlm+sop", "single_sentence": "skip"}
    return score_text(config, ObjectiveConfig(**fields), subject)
