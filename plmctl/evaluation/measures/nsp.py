"""Next-sentence prediction: accuracy on fixed pairs, beside always naming the larger class."""

from typing import Any, Literal

from plmctl import objectives
from plmctl.evaluation.language import TextMeasureConfig, score_text
from plmctl.evaluation.measures import Subject


class Config(TextMeasureConfig):
    """Accuracy of next-sentence prediction, on fixed pairs with fixed masks."""

    name: Literal["nsp"] = "nsp"


def measure(config: Config, subject: Subject) -> dict[str, Any]:
    """See ``language.score_text``; the inputs are masked, as in pretraining."""
    return score_text(config, objectives.get("mlm+nsp").Config(name="mlm+nsp"), subject)
