"""BERT's encoder as RoBERTa and SpanBERT share it: what a config may set, and what follows."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from plmctl.config.members import ModelConfig

ENCODER_DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")


class EncoderConfig(ModelConfig):
    """Fields over a size."""

    num_hidden_layers: int | None = Field(default=None, ge=1)
    """Layers."""
    hidden_size: int | None = Field(default=None, ge=1)
    """Width."""
    num_attention_heads: int | None = Field(default=None, ge=1)
    """Default: hidden_size / 64."""
    intermediate_size: int | None = Field(default=None, ge=1)
    """Default: 4 * hidden_size."""
    max_position_embeddings: int = Field(default=512, ge=8)
    """Rows of the position table: the longest input."""
    hidden_dropout_prob: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of embeddings and sublayers."""
    attention_probs_dropout_prob: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of attention weights."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of fresh weights."""


def fields(
    config: EncoderConfig, size: tuple[int, int], *, vocab_size: int, pad_id: int
) -> dict[str, Any]:
    """Arguments of transformers' configs: BERT's, and those that have its fields.

    Args:
        config: Its fields are over the size.
        size: Layers and width; heads are width / 64 and the feed-forward width is 4 times the
            width.
        vocab_size: Rows of the embedding table.
        pad_id: Id of the padding token.
    """
    layers, width = size
    width = config.hidden_size or width
    return {
        "vocab_size": vocab_size,
        "pad_token_id": pad_id,
        "hidden_size": width,
        "num_hidden_layers": config.num_hidden_layers or layers,
        "num_attention_heads": config.num_attention_heads or max(1, width // 64),
        "intermediate_size": config.intermediate_size or 4 * width,
        "hidden_dropout_prob": config.hidden_dropout_prob,
        "attention_probs_dropout_prob": config.attention_probs_dropout_prob,
        "max_position_embeddings": config.max_position_embeddings,
        "initializer_range": config.initializer_range,
    }
