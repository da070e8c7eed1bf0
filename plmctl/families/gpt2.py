"""GPT-2 (Radford et al., 2019, "Language Models are Unsupervised Multitask Learners")."""

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

# Layers and width; heads are width / 64.
SIZES: dict[str, tuple[int, int]] = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (12, 768),
    "medium": (24, 1024),
    "large": (36, 1280),
    "xl": (48, 1600),
}


class Config(_gpt.DecoderConfig):
    """GPT-2: a causal decoder, next-token prediction. tiny and mini have BERT's small sizes."""

    family: Literal["gpt2"] = "gpt2"
    size: Literal["tiny", "mini", "small", "medium", "large", "xl"] = "small"
    """A size; every field below overrides it."""
    n_head: int | None = Field(default=None, ge=1)
    """Default: n_embd / 64."""


def build(
    config: Config, *, vocab_size: int, pad_id: int, loss_terms: tuple[str, ...]
) -> PreTrainedModel:
    """A network with fresh weights from the global generator.

    Args:
        config: Size and dropout.
        vocab_size: Rows of the embedding table.
        pad_id: Id that ends a document; GPT-2 has no padding token of its own.
        loss_terms: Loss terms; GPT-2 has the one head.
    """
    layers, width = SIZES[config.size]
    width = config.n_embd or width
    shape = (config.n_layer or layers, width, config.n_head or max(1, width // 64))
    return _gpt.build(config, shape, vocab_size=vocab_size, end_of_text=pad_id)
