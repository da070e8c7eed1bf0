"""GPT-2 (Radford et al., 2019, "Language Models are Unsupervised Multitask Learners")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from plmctl.config.members import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import GPT2LMHeadModel, PreTrainedModel

OBJECTIVE = "clm"
TOKENIZER = "byte_bpe"
HEADS = ("lm",)

DROPOUT = ("resid_pdrop", "embd_pdrop", "attn_pdrop")

# Layers and width; heads are width / 64.
SIZES: dict[str, tuple[int, int]] = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (12, 768),
    "medium": (24, 1024),
    "large": (36, 1280),
    "xl": (48, 1600),
}


class Config(ModelConfig):
    """GPT-2: a causal decoder, next-token prediction. tiny and mini have BERT's small sizes."""

    family: Literal["gpt2"] = "gpt2"
    size: Literal["tiny", "mini", "small", "medium", "large", "xl"] = "small"
    """A size; every field below overrides it."""
    n_layer: int | None = Field(default=None, ge=1)
    n_embd: int | None = Field(default=None, ge=1)
    n_head: int | None = Field(default=None, ge=1)
    """Default: n_embd / 64."""
    n_positions: int = Field(default=1024, ge=8)
    resid_pdrop: float = Field(default=0.1, ge=0, lt=1)
    embd_pdrop: float = Field(default=0.1, ge=0, lt=1)
    attn_pdrop: float = Field(default=0.1, ge=0, lt=1)
    initializer_range: float = Field(default=0.02, gt=0)


def build(
    config: Config, *, vocab_size: int, pad_id: int, parts: tuple[str, ...]
) -> PreTrainedModel:
    """A network with fresh weights from the global generator.

    Args:
        config: Size and dropout.
        vocab_size: Rows of the embedding table.
        pad_id: Id that ends a document; GPT-2 has no padding token of its own.
        parts: Parts of the loss; GPT-2 has the one head.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, width = SIZES[config.size]
    width = config.n_embd or width
    network = GPT2Config(
        vocab_size=vocab_size,
        n_positions=config.n_positions,
        n_embd=width,
        n_layer=config.n_layer or layers,
        n_head=config.n_head or max(1, width // 64),
        # The same function as the published gelu_new, in one fused kernel.
        activation_function="gelu_pytorch_tanh",
        resid_pdrop=config.resid_pdrop,
        embd_pdrop=config.embd_pdrop,
        attn_pdrop=config.attn_pdrop,
        layer_norm_epsilon=1e-5,
        initializer_range=config.initializer_range,
        bos_token_id=pad_id,
        eos_token_id=pad_id,
    )
    return GPT2LMHeadModel(network)


def load(folder: str, parts: tuple[str, ...]) -> PreTrainedModel:
    """A pretrained model with its language-model head, in float32."""
    import torch
    from transformers import GPT2LMHeadModel

    return GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32)


def positions(config: Config) -> int:
    """The longest input."""
    return config.n_positions


def forward(model: GPT2LMHeadModel, input_ids: Tensor) -> dict[str, Tensor]:
    """Logits at every position: lm [B, T, V] from input_ids [B, T], rows without padding."""
    # A cache would cost memory, and switches transformers' own handling of packed rows off.
    hidden_BTH = model.transformer(input_ids, use_cache=False).last_hidden_state
    return {"lm": model.lm_head(hidden_BTH)}
