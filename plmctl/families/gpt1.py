"""GPT-1 (Radford et al., 2018, "Improving Language Understanding by Generative Pre-Training").

Post-layer-norm decoder without a final layer norm; token and position embeddings, weights ~ N(0,
0.02), biases zero, and no residual scaling. Source: openai/finetune-transformer-lm, train.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from plmctl.families._gpt import DecoderFamily
from plmctl.families.base import TokenEmbeddingsConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Config(TokenEmbeddingsConfig):
    """GPT-1: a causal decoder, next-token prediction. tiny and mini have BERT's small sizes."""

    family: Literal["gpt1"] = "gpt1"
    size: Literal["tiny", "mini", "base"] = "base"
    """A size; base is the published one. Every option below overrides it."""
    n_layer: int | None = Field(default=None, ge=1)
    """Layers."""
    n_embd: int | None = Field(default=None, ge=1)
    """Hidden size."""
    n_head: int | None = Field(default=None, ge=1)
    """Attention heads. Default: n_embd / 64."""
    n_positions: int = Field(default=512, ge=8)
    """Number of positions: the longest input."""
    resid_pdrop: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of sublayers."""
    embd_pdrop: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of embeddings."""
    attn_pdrop: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of attention weights."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of the initial weights."""


class Gpt1(DecoderFamily, config=Config):
    """GPT-1, which has neither a padding token nor an end-of-text token."""

    TOKENIZER = "bpe"
    MODEL_TYPE = "openai-gpt"
    ANSWERS = ("labels",)
    SIZES = {"tiny": (2, 128), "mini": (4, 256), "base": (12, 768)}  # layers, hidden size
    NETWORK = {
        "afn": "gelu",  # by this name the network has the tanh form, as published
        "layer_norm_epsilon": 1e-5,
    }
    TOKEN_IDS = ()

    @classmethod
    def network_class(cls, loss_terms: tuple[str, ...]) -> type[PreTrainedModel]:
        """One class: there is one head."""
        from transformers import OpenAIGPTLMHeadModel

        return OpenAIGPTLMHeadModel

    @classmethod
    def initialize(cls, model: Any) -> None:
        """Transformers leaves these matrices at N(0, 0.02), whatever ``initializer_range`` is."""
        from torch import nn
        from transformers.pytorch_utils import Conv1D

        for module in model.modules():
            if isinstance(module, Conv1D):
                nn.init.normal_(module.weight, std=model.config.initializer_range)
