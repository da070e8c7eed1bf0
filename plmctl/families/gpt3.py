"""GPT-3 (Brown et al., 2020, arXiv:2005.14165): GPT-2's network at 2,048 positions.

Every layer attends densely. The paper alternates dense layers with locally banded sparse ones (as
the Sparse Transformer has them); their pattern was never published, they have no parameters of
their own, and leaving them out costs time and memory at length 2,048, not accuracy.

A trained model is saved as a GPT-2 folder (``model_type: gpt2``), which every tool loads. Two rows
of the paper's table 2.1 contradict themselves. XL has "24 heads of 128" at width 2,048: 16 heads of
128 make that width and its 1.3 B parameters. 13B has width 5,140 with 40 heads of 128: 5,120 is
their product.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from plmctl.families import _gpt
from plmctl.families._gpt import DROPOUT, forward, load, positions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["DROPOUT", "HEADS", "OBJECTIVE", "TOKENIZER", "build", "forward", "load", "positions"]

OBJECTIVE = "clm"
TOKENIZER = "byte_bpe"
HEADS = ("lm",)

# Layers, width and heads.
SIZES: dict[str, tuple[int, int, int]] = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (12, 768, 12),
    "medium": (24, 1024, 16),
    "large": (24, 1536, 16),
    "xl": (24, 2048, 16),
    "2.7b": (32, 2560, 32),
    "6.7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "175b": (96, 12288, 96),
}


class Config(_gpt.DecoderConfig):
    """GPT-3: GPT-2's decoder in the sizes of GPT-3, dense attention in every layer."""

    family: Literal["gpt3"] = "gpt3"
    size: Literal[
        "tiny", "mini", "small", "medium", "large", "xl", "2.7b", "6.7b", "13b", "175b"
    ] = "small"
    """A size, small being the paper's 125M; every field below overrides it."""
    n_head: int | None = Field(default=None, ge=1)
    """Default: the size's; with another n_embd, n_embd / 64."""
    n_positions: int = Field(default=2048, ge=8)
    """Rows of the position table: the longest input."""
    resid_pdrop: float = Field(default=0.0, ge=0, lt=1)
    """The paper names no dropout; nor do the next two."""
    embd_pdrop: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of embeddings."""
    attn_pdrop: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of attention weights."""


def build(
    config: Config, *, vocab_size: int, pad_id: int, loss_terms: tuple[str, ...]
) -> PreTrainedModel:
    """A network with fresh weights from the global generator.

    Args:
        config: Size and dropout.
        vocab_size: Rows of the embedding table.
        pad_id: Id that ends a document; GPT-3 has no padding token of its own.
        loss_terms: Loss terms; GPT-3 has the one head.
    """
    layers, width, heads = SIZES[config.size]
    if config.n_embd not in (None, width):
        width = config.n_embd or width
        heads = max(1, width // 64)
    shape = (config.n_layer or layers, width, config.n_head or heads)
    return _gpt.build(config, shape, vocab_size=vocab_size, end_of_text=pad_id)
