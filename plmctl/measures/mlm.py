"""Masked language modeling: loss, perplexity and accuracy on fixed masks.

Sums over all masked positions of one copy of the text; the seed alone decides the masks. Metrics
are comparable only for one tokenizer, one rate and one sequence length.
"""

from typing import Any, Literal

from pydantic import Field

from plmctl.evaluation.model import LoadedModel
from plmctl.measures.base import ObjectiveMeasure, ObjectiveMeasureConfig


class Config(ObjectiveMeasureConfig):
    """Loss, perplexity and accuracy of masked tokens, on fixed masks."""

    name: Literal["mlm"] = "mlm"
    rate: float = Field(default=0.15, gt=0, lt=1)
    """Share of the tokens that is masked."""


class MaskedLM(ObjectiveMeasure[Config], config=Config):
    """See ``Config``."""

    OBJECTIVE = "mlm"

    def objective_fields(self, model: LoadedModel) -> dict[str, Any]:
        """The rate of masking."""
        return {"rate": self.config.rate}
