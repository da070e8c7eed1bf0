"""Llama (Touvron et al., 2023, arXiv:2302.13971), in the sizes of those who train small ones.

125m and 360m have the shapes of MobileLLM and SmolLM2; the smaller ones are made like them. Their
names count the parameters with a vocabulary that fits the size (docs/families/llama.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from plmctl.families._llama import LlamaConfig, LlamaFamily

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Config(LlamaConfig):
    """Llama: a causal decoder with rotary positions and a gated feed-forward."""

    family: Literal["llama"] = "llama"


class Llama(LlamaFamily, config=Config):
    """Llama."""

    MODEL_TYPE = "llama"

    @classmethod
    def network_class(cls, loss_terms: tuple[str, ...]) -> type[PreTrainedModel]:
        """One class: there is one head."""
        from transformers import LlamaForCausalLM

        return LlamaForCausalLM
