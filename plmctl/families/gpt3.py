"""GPT-3 (Brown et al., 2020, arXiv:2005.14165): GPT-2's network at 2,048 positions.

Every layer attends densely. The paper alternates dense layers with locally banded sparse ones (as
in the Sparse Transformer); their pattern was never published, they have no extra parameters, and
leaving them out costs time and memory at length 2,048, not accuracy.

A trained model is saved as a GPT-2 folder (``model_type: gpt2``), which every tool loads. Two rows
of the paper's table 2.1 contradict themselves. XL has "24 heads of 128" at hidden size 2,048: 16
heads of 128 make that size and its 1.3 B parameters. 13B has hidden size 5,140 with 40 heads of
128: 5,120 is their product.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plmctl.families._gpt import DecoderConfig, Gpt2Family


class Config(DecoderConfig):
    """GPT-3: GPT-2's decoder in the sizes of GPT-3, dense attention in every layer."""

    family: Literal["gpt3"] = "gpt3"
    size: Literal[
        "tiny", "mini", "small", "medium", "large", "xl", "2.7b", "6.7b", "13b", "175b"
    ] = "small"
    """A size; small is the paper's 125M. Every option below overrides it."""
    n_head: int | None = Field(default=None, ge=1)
    """Attention heads. Default: the size's; with another n_embd, n_embd / 64."""
    n_positions: int = Field(default=2048, ge=8)
    """Number of positions: the longest input."""
    resid_pdrop: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of sublayers. The paper names no dropout, neither this nor the next two."""
    embd_pdrop: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of embeddings."""
    attn_pdrop: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of attention weights."""


class Gpt3(Gpt2Family, config=Config):
    """GPT-3."""

    PAPER = "GPT-3"
    SIZE_FIELDS = ("n_layer", "n_embd", "n_head")
    SIZES = {
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
