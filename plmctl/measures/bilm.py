"""Bidirectional language modeling: loss, perplexity and accuracy of both directions.

The text in its own order as 32 streams whose recurrent state is kept, with the full softmax at
every word. The ELMo paper reports ``perplexity``: that of the mean of both directions' losses.
"""

import math
from typing import Any, Literal

from pydantic import Field

from plmctl.evaluation.model import LoadedModel
from plmctl.measures.base import Measurement, ObjectiveMeasure, ObjectiveMeasureConfig


class Config(ObjectiveMeasureConfig):
    """Loss, perplexity and accuracy of the next word and the one before."""

    name: Literal["bilm"] = "bilm"
    seq_len: int = Field(default=20, ge=8)
    """Words per window; it changes no metric, but the number of words in `max_samples`."""


class BidirectionalLM(ObjectiveMeasure[Config], config=Config):
    """See ``Config``."""

    OBJECTIVE = "bilm"

    def objective_fields(self, model: LoadedModel) -> dict[str, Any]:
        """The text in its order, and a softmax over all words."""
        return {"shuffle": False, "target_words": model.outputs}

    def measure(self, model: LoadedModel, seed: int) -> Measurement:
        """Adds the perplexity of the mean loss."""
        results = super().measure(model, seed).results
        return Measurement({**results, "perplexity": math.exp(min(results["loss"], 700.0))})
