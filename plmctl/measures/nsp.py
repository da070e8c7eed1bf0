"""Next-sentence prediction: accuracy on fixed pairs, beside that of the larger class."""

from typing import Literal

from plmctl.measures.base import ObjectiveMeasure, ObjectiveMeasureConfig


class Config(ObjectiveMeasureConfig):
    """Accuracy of next-sentence prediction, on fixed pairs with fixed masks."""

    name: Literal["nsp"] = "nsp"


class NextSentence(ObjectiveMeasure[Config], config=Config):
    """See ``Config``; the inputs are masked, as in pretraining."""

    OBJECTIVE = "mlm+nsp"
