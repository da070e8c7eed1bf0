"""GPT-2 (Radford et al., 2019, "Language Models are Unsupervised Multitask Learners")."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plmctl.families._gpt import DecoderConfig, Gpt2Family


class Config(DecoderConfig):
    """GPT-2: a causal decoder, next-token prediction. tiny and mini have BERT's small sizes."""

    family: Literal["gpt2"] = "gpt2"
    size: Literal["tiny", "mini", "small", "medium", "large", "xl"] = "small"
    """A size; every option below overrides it."""
    n_head: int | None = Field(default=None, ge=1)
    """Attention heads. Default: n_embd / 64."""


class Gpt2(Gpt2Family, config=Config):
    """GPT-2."""

    MODEL_TYPE = "gpt2"
    PAPER = "GPT-2"
    SIZES = {  # layers, hidden size
        "tiny": (2, 128),
        "mini": (4, 256),
        "small": (12, 768),
        "medium": (24, 1024),
        "large": (36, 1280),
        "xl": (48, 1600),
    }
