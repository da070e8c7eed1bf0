"""GPT-1 (Radford et al., 2018, "Improving Language Understanding by Generative Pre-Training").

Post-layer-norm decoder without a final layer norm; token and position embeddings, weights ~ N(0,
0.02), biases zero, and no residual scaling. Source: openai/finetune-transformer-lm, train.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from plmctl.config.base import ModelConfig
from plmctl.families.base import Project, project_to_logits

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import OpenAIGPTLMHeadModel, PreTrainedModel

    from plmctl.models.load import NewHeads

OBJECTIVE = "clm"
TOKENIZER = "bpe"
HEADS = ("lm",)
MODEL_TYPE = "openai-gpt"

DROPOUT = ("resid_pdrop", "embd_pdrop", "attn_pdrop")

# Layers and width; heads are width / 64.
SIZES: dict[str, tuple[int, int]] = {"tiny": (2, 128), "mini": (4, 256), "base": (12, 768)}


class Config(ModelConfig):
    """GPT-1: a causal decoder, next-token prediction. tiny and mini have BERT's small sizes."""

    family: Literal["gpt1"] = "gpt1"
    size: Literal["tiny", "mini", "base"] = "base"
    """A size; base is the published one. Every field below overrides it."""
    n_layer: int | None = Field(default=None, ge=1)
    """Layers."""
    n_embd: int | None = Field(default=None, ge=1)
    """Width."""
    n_head: int | None = Field(default=None, ge=1)
    """Default: n_embd / 64."""
    n_positions: int = Field(default=512, ge=8)
    """Rows of the position table: the longest input."""
    resid_pdrop: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of sublayers."""
    embd_pdrop: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of embeddings."""
    attn_pdrop: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of attention weights."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of fresh weights."""


def build(
    config: Config, *, vocab_size: int, pad_id: int, loss_terms: tuple[str, ...]
) -> PreTrainedModel:
    """A network with fresh weights from the global generator.

    Args:
        config: Size and dropout.
        vocab_size: Rows of the embedding table: 40,478 in the published model, with no special
            token but <unk>; finetuning adds its three.
        pad_id: Not used: GPT-1 has neither padding nor an end-of-text token.
        loss_terms: Loss terms; GPT-1 has the one head.
    """
    from torch import nn
    from transformers import OpenAIGPTConfig, OpenAIGPTLMHeadModel
    from transformers.pytorch_utils import Conv1D

    from plmctl.models.fast.gpt import fuse_gpt1_attention

    layers, width = SIZES[config.size]
    width = config.n_embd or width
    network = OpenAIGPTConfig(
        vocab_size=vocab_size,
        n_positions=config.n_positions,
        n_embd=width,
        n_layer=config.n_layer or layers,
        n_head=config.n_head or max(1, width // 64),
        afn="gelu",  # by this name the model has the tanh form, as published
        resid_pdrop=config.resid_pdrop,
        embd_pdrop=config.embd_pdrop,
        attn_pdrop=config.attn_pdrop,
        layer_norm_epsilon=1e-5,
        initializer_range=config.initializer_range,
    )
    model = OpenAIGPTLMHeadModel(network)
    # transformers leaves these matrices at N(0, 0.02) whatever initializer_range says.
    for module in model.modules():
        if isinstance(module, Conv1D):
            nn.init.normal_(module.weight, std=config.initializer_range)
    return fuse_gpt1_attention(model)


def load(
    folder: str, loss_terms: tuple[str, ...], *, new_heads: NewHeads | None = None, **changes: Any
) -> PreTrainedModel:
    """A pretrained model with its language-model head, in float32, its config changed."""
    from transformers import OpenAIGPTLMHeadModel

    from plmctl.models.fast.gpt import fuse_gpt1_attention
    from plmctl.models.load import load_network

    loaded = load_network(OpenAIGPTLMHeadModel, folder, new_heads=new_heads, **changes)
    model: PreTrainedModel = fuse_gpt1_attention(loaded.network)
    return model


def positions(config: Config) -> int:
    """The longest input."""
    return config.n_positions


def forward(
    model: OpenAIGPTLMHeadModel,
    input_ids: Tensor,
    position_ids: Tensor | None = None,
    project: Project = project_to_logits,
) -> dict[str, Tensor]:
    """Logits at every position.

    Args:
        model: OpenAIGPTLMHeadModel with fused attention.
        input_ids: [B, T], rows without padding.
        position_ids: [B, T], beginning again at 0 where attention shall not look back any further;
            None: each row is one text.
        project: What is made of hidden states and output layer: logits.

    Returns:
        lm: [B, T, V].
    """
    from plmctl.models.fast.gpt import hidden_states

    return {"lm": project(hidden_states(model, input_ids, position_ids), model.lm_head)}
