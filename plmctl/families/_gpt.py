"""GPT-2's network, which GPT-3 shares: how it is built, loaded and run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from plmctl.config.base import ModelConfig
from plmctl.families.base import Project, project_to_logits

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import GPT2LMHeadModel, PreTrainedModel

    from plmctl.models.load import NewHeads

DROPOUT = ("resid_pdrop", "embd_pdrop", "attn_pdrop")


class DecoderConfig(ModelConfig):
    """What both families let a user set."""

    n_layer: int | None = Field(default=None, ge=1)
    """Layers."""
    n_embd: int | None = Field(default=None, ge=1)
    """Width."""
    n_head: int | None = Field(default=None, ge=1)
    """Heads of attention."""
    n_positions: int = Field(default=1024, ge=8)
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
    config: DecoderConfig, shape: tuple[int, int, int], *, vocab_size: int, end_of_text: int
) -> PreTrainedModel:
    """A ``GPT2LMHeadModel`` with fresh weights from the global generator.

    Weights and token embeddings ~ N(0, ``initializer_range``); the two projections of each layer
    that add to the residual stream are smaller by 1/sqrt(2 * layers), as the GPT-2 paper says; both
    are transformers' own initialisation. Position embeddings ~ N(0, ``initializer_range`` / 2):
    0.01 for the published 0.02. Source: openai/gpt-2, src/model.py.

    Args:
        config: Dropout, positions and the deviation of the weights.
        shape: Layers, width and heads; the feed-forward width is 4 times the width.
        vocab_size: Rows of the embedding table.
        end_of_text: Id of the end-of-text token.
    """
    from torch import nn
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, width, heads = shape
    network = GPT2Config(
        vocab_size=vocab_size,
        n_positions=config.n_positions,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        # The same function as the published gelu_new, in one fused kernel.
        activation_function="gelu_pytorch_tanh",
        resid_pdrop=config.resid_pdrop,
        embd_pdrop=config.embd_pdrop,
        attn_pdrop=config.attn_pdrop,
        layer_norm_epsilon=1e-5,
        initializer_range=config.initializer_range,
        bos_token_id=end_of_text,
        eos_token_id=end_of_text,
    )
    model = GPT2LMHeadModel(network)
    nn.init.normal_(model.transformer.wpe.weight, std=config.initializer_range / 2)
    return model


def load(
    folder: str, loss_terms: tuple[str, ...], *, new_heads: NewHeads | None = None, **changes: Any
) -> PreTrainedModel:
    """A pretrained model with its language-model head, in float32, its config changed."""
    from transformers import GPT2LMHeadModel

    from plmctl.models.load import load_network

    loaded = load_network(GPT2LMHeadModel, folder, new_heads=new_heads, **changes)
    model: PreTrainedModel = loaded.network
    return model


def positions(config: DecoderConfig) -> int:
    """The longest input."""
    return config.n_positions


def forward(
    model: GPT2LMHeadModel,
    input_ids: Tensor,
    position_ids: Tensor | None = None,
    project: Project = project_to_logits,
) -> dict[str, Tensor]:
    """Logits at every position.

    Args:
        model: GPT2LMHeadModel.
        input_ids: [B, T], rows without padding.
        position_ids: [B, T], beginning again at 0 where attention shall not look back any further;
            None: each row is one text.
        project: What is made of hidden states and output layer: logits.

    Returns:
        lm: [B, T, V].
    """
    from plmctl.models.fast.gpt import hidden_states

    return {"lm": project(hidden_states(model, input_ids, position_ids), model.lm_head)}
