"""Sentence order: accuracy on fixed pairs, beside that of the larger class."""

from typing import Any, Literal

from plmctl.evaluation.model import LoadedModel
from plmctl.measures.base import ObjectiveMeasure, ObjectiveMeasureConfig


class Config(ObjectiveMeasureConfig):
    """Accuracy of sentence order, on fixed pairs of one document each with fixed masks."""

    name: Literal["sop"] = "sop"


class SentenceOrder(ObjectiveMeasure[Config], config=Config):
    """See ``Config``; the inputs are masked, as in pretraining."""

    OBJECTIVE = "mlm+sop"

    def objective_fields(self, model: LoadedModel) -> dict[str, Any]:
        """Single sentences are left out, so that half of the pairs are swapped: chance is 0.5."""
        return {"single_sentence": "skip"}
