"""Prefix language modeling: loss, perplexity and accuracy of what follows a fixed beginning."""

from typing import Any, Literal

from plmctl.evaluation.model import LoadedModel
from plmctl.measures.base import ObjectiveMeasure, ObjectiveMeasureConfig


class Config(ObjectiveMeasureConfig):
    """Loss, perplexity and accuracy of the rest of a text, given a beginning of random length."""

    name: Literal["prefix_lm"] = "prefix_lm"


class PrefixLM(ObjectiveMeasure[Config], config=Config):
    """See ``Config``."""

    OBJECTIVE = "prefix_lm"

    def objective_fields(self, model: LoadedModel) -> dict[str, Any]:
        """The options of the objective, without the z-loss."""
        return {"z_loss": 0.0}
