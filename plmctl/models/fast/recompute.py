"""Activation checkpointing: layers are computed again in the backward pass.

Chen et al., 2016 (arXiv:1604.06174). A layer stores only its input; the backward pass runs it once
more, a third of a step's arithmetic. Dropout draws the same numbers both times: PyTorch restores
its global generators for the second run, and they seed all draws.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.albert.modeling_albert import AlbertLayer
from transformers.models.openai.modeling_openai import Block


class _Recomputed:
    """A layer for which transformers has no activation checkpointing."""

    training: bool

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Run the layer; in training, store only its inputs."""
        layer: Any = super()
        if not self.training:
            return layer.forward(*inputs, **options)
        return checkpoint(layer.forward, *inputs, use_reentrant=False, **options)


class _AlbertLayer(_Recomputed, AlbertLayer):
    pass


class _Gpt1Block(_Recomputed, Block):
    pass


_FLAG = "gradient_checkpointing"  # of layers, and of networks that then keep no cache

_RECOMPUTED: dict[type[nn.Module], type[nn.Module]] = {AlbertLayer: _AlbertLayer, Block: _Gpt1Block}


def recompute_layers(model: PreTrainedModel) -> bool:
    """Let a network, in place, store only the inputs of its layers; weights and names stay.

    Returns:
        Whether it has layers for which this is supported.
    """
    if model.supports_gradient_checkpointing:
        # Older versions have only the other name, of which 5.24 warns.
        name = "activation_checkpointing_enable"
        enable = getattr(model, name, None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
        _clear_other_flags(model)
        return True
    layers = [module for module in model.modules() if type(module) in _RECOMPUTED]
    for layer in layers:
        layer.__class__ = _RECOMPUTED[type(layer)]
    return bool(layers)


def _clear_other_flags(model: PreTrainedModel) -> None:
    """Leave the flag to layers, and to networks that keep caches.

    Otherwise an encoder warns in every forward that it cannot cache, which it never does, and T5's
    attention marks a tensor for another kind of checkpointing, where a compiler breaks its graph.
    """
    caches = getattr(model.config, "is_decoder", True) or model.config.is_encoder_decoder
    for module in model.modules():
        keeps = isinstance(module, GradientCheckpointingLayer) or (
            caches and isinstance(module, PreTrainedModel)
        )
        if hasattr(module, _FLAG) and not keeps:
            setattr(module, _FLAG, False)
