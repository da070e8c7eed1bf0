"""Causal language modeling: loss, perplexity and accuracy of the next token.

Disjoint windows of the text: every token but the first is predicted once. The first tokens of a
window have little context, so that this is an upper bound of the perplexity with full context.
"""

from typing import Any, Literal

from plmctl.evaluation.model import LoadedModel
from plmctl.measures.base import ObjectiveMeasure, ObjectiveMeasureConfig


class Config(ObjectiveMeasureConfig):
    """Loss, perplexity and accuracy of the next token, in disjoint windows."""

    name: Literal["clm"] = "clm"
    separator: Literal["end_of_text", "none"] = "end_of_text"
    """The token after every document, as the model was trained; none: GPT-1."""
    attention: Literal["across", "within"] = "across"
    """Where a token attends to, as the model was trained: its window or its document."""


class CausalLM(ObjectiveMeasure[Config], config=Config):
    """See ``Config``."""

    OBJECTIVE = "clm"

    def objective_fields(self, model: LoadedModel) -> dict[str, Any]:
        """Separator and attention, as the model was trained."""
        return {"separator": self.config.separator, "attention": self.config.attention}
