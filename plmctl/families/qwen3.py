"""Qwen3 (Yang et al., 2025, arXiv:2505.09388): Llama whose queries and keys are normalised.

RMSNorm over each head's query and key, before the rotary positions, keeps attention logits small:
larger learning rates stay stable (Henry et al., 2020, arXiv:2010.04245).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from plmctl.families._llama import LlamaConfig, LlamaFamily

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Config(LlamaConfig):
    """Qwen3: Llama's decoder with normalised queries and keys."""

    family: Literal["qwen3"] = "qwen3"


class Qwen3(LlamaFamily, config=Config):
    """Qwen3."""

    MODEL_TYPE = "qwen3"

    @classmethod
    def network_class(cls, loss_terms: tuple[str, ...]) -> type[PreTrainedModel]:
        """One class: there is one head."""
        from transformers import Qwen3ForCausalLM

        return Qwen3ForCausalLM

    def network_fields(self, *, vocab_size: int, pad_id: int) -> dict[str, Any]:
        """See the base class; transformers' own size of a head is 128 at any hidden size."""
        fields = super().network_fields(vocab_size=vocab_size, pad_id=pad_id)
        return fields | {"head_dim": fields["hidden_size"] // fields["num_attention_heads"]}
