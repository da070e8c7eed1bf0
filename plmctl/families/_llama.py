"""Llama's network, which Llama and Qwen3 share.

Rotary positions, RMSNorm before each sublayer, a gated feed-forward, no biases. Keys and values may
have fewer heads than queries (grouped-query attention, arXiv:2305.13245).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from plmctl.families._gpt import EndOfTextFamily, Gpt2Template
from plmctl.families.base import Advice, TokenEmbeddingsConfig


class LlamaConfig(TokenEmbeddingsConfig):
    """Options of Llama's decoder."""

    size: Literal["tiny", "mini", "5m", "15m", "30m", "60m", "125m", "360m"] = "30m"
    """A size; every option below overrides it."""
    num_hidden_layers: int | None = Field(default=None, ge=1)
    """Layers."""
    hidden_size: int | None = Field(default=None, ge=1)
    """Hidden size."""
    num_attention_heads: int | None = Field(default=None, ge=1)
    """Attention heads. Default: the size's; with another hidden_size, hidden_size / 64."""
    num_key_value_heads: int | None = Field(default=None, ge=1)
    """Heads of keys and values, which groups of attention heads share. Default: the size's; with
    other attention heads, as many as they."""
    intermediate_size: int | None = Field(default=None, ge=1)
    """Feed-forward size. Default: the size's; with another hidden_size, 8/3 of it, up to the next
    multiple of 64."""
    max_position_embeddings: int = Field(default=2048, ge=8)
    """The longest input."""
    rope_theta: float = Field(default=10_000.0, gt=0)
    """Base of the rotary positions."""
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of attention weights; there is no other."""
    rms_norm_eps: float = Field(default=1e-5, gt=0)
    """What RMSNorm adds to the mean square."""
    tie_word_embeddings: bool = True
    """Whether the output layer has the weights of the token embeddings. Networks of more than 400 M
    parameters mostly have two tables."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of the initial weights."""


class LlamaTemplate(Gpt2Template):
    """GPT-2's tokenizer, for longer texts."""

    MAX_LENGTH = 2048


class LlamaFamily(EndOfTextFamily):
    """Llama's network."""

    TOKENIZER = LlamaTemplate
    ANSWERS = ("labels", "spans")
    DROPOUT: ClassVar[tuple[str, ...]] = ("attention_dropout",)
    SIZE_FIELDS: ClassVar[tuple[str, ...]] = (
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
    )
    SIZES = {
        "tiny": (2, 128, 2, 2, 384),
        "mini": (4, 256, 4, 2, 704),
        "5m": (8, 192, 3, 3, 512),
        "15m": (8, 384, 6, 2, 1024),
        "30m": (8, 512, 8, 2, 1408),
        "60m": (14, 576, 9, 3, 1536),
        "125m": (30, 576, 9, 3, 1536),
        "360m": (32, 960, 15, 5, 2560),
    }
    WIDTH = ("hidden_size", "num_attention_heads", "")
    POSITIONS = "max_position_embeddings"
    LORA_TARGETS: ClassVar[tuple[str, ...]] = ("q_proj", "v_proj")
    ADVICE = Advice(lr=5e-3, beta2=0.95)

    def network_fields(self, *, vocab_size: int, pad_id: int) -> dict[str, Any]:
        """See the base class; what a size says of its width holds for this width alone."""
        config: Any = self.config
        fields = super().network_fields(vocab_size=vocab_size, pad_id=pad_id)
        size, width, heads = (
            self.size_fields(),
            fields["hidden_size"],
            fields["num_attention_heads"],
        )
        if config.num_key_value_heads is None and heads != size["num_attention_heads"]:
            fields["num_key_value_heads"] = heads
        if config.intermediate_size is None and width != size["hidden_size"]:
            fields["intermediate_size"] = 64 * -(-8 * width // (3 * 64))
        rope = {"rope_type": "default", "rope_theta": fields.pop("rope_theta")}
        return fields | {"rope_parameters": rope}

    @classmethod
    def initialize(cls, model: Any) -> None:
        """The two projections of each layer that add to the residual stream are smaller.

        By 1/sqrt(2 * layers), as the GPT-2 paper says; the rest is transformers' own: weights and
        token embeddings ~ N(0, ``initializer_range``).
        """
        import torch

        with torch.no_grad():
            for layer in model.model.layers:
                for projection in (layer.self_attn.o_proj, layer.mlp.down_proj):
                    projection.weight /= (2 * model.config.num_hidden_layers) ** 0.5
