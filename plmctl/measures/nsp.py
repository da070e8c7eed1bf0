"""Next-sentence prediction: accuracy on fixed pairs, beside always naming the larger class."""

from typing import Any, Literal

from plmctl.evaluation.model import EvaluatedModel
from plmctl.measures.base import TextMeasureConfig, score_text
from plmctl.objectives.mlm_and_nsp import Config as ObjectiveConfig


class Config(TextMeasureConfig):
    """Accuracy of next-sentence prediction, on fixed pairs with fixed masks."""

    name: Literal["nsp"] = "nsp"


def measure(config: Config, subject: EvaluatedModel) -> dict[str, Any]:
    """See ``base.score_text``; the inputs are masked, as in pretraining."""
    return score_text(config, ObjectiveConfig(name="mlm+nsp"), subject)
