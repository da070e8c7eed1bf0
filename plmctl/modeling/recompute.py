"""Layers whose activations are computed again in the backward pass instead of being kept.

Chen et al., 2016 (arXiv:1604.06174). A layer keeps its input only; the backward runs it once more,
a third of a step's arithmetic. Draws of dropout are the same both times: PyTorch puts its global
generators back for the second run, and every draw here is seeded by them.
"""

from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.albert.modeling_albert import AlbertLayer
from transformers.models.openai.modeling_openai import Block

from plmctl.errors import ConfigError


class _Recomputed:
    """A layer of which transformers does not do it."""

    training: bool

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """As the layer's own."""
        theirs: Any = super()
        if not self.training:
            return theirs.forward(*inputs, **options)
        return checkpoint(theirs.forward, *inputs, use_reentrant=False, **options)


class _AlbertLayer(_Recomputed, AlbertLayer):
    pass


class _Gpt1Block(_Recomputed, Block):
    pass


_FLAG = "gradient_checkpointing"  # of layers, and of what tells them to keep no cache
_CLASSES: dict[type[nn.Module], type[nn.Module]] = {AlbertLayer: _AlbertLayer, Block: _Gpt1Block}


def recompute(model: PreTrainedModel) -> None:
    """Let a model, in place, keep the inputs of its layers only; weights and names stay.

    Raises:
        ConfigError: It has no layers of which that is known.
    """
    if model.supports_gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
        _quieten(model)
        return
    layers = [module for module in model.modules() if type(module) in _CLASSES]
    if not layers:
        raise refusal(type(model).__name__)
    for layer in layers:
        layer.__class__ = _CLASSES[type(layer)]


def refusal(network: str) -> ConfigError:
    """What is said of a network that has no such layers."""
    return ConfigError(
        f"compute.checkpoint_activations: not done for {network}",
        "leave it out; a smaller train.micro_batch_size takes less memory as well",
    )


def _quieten(model: PreTrainedModel) -> None:
    """Let nothing but layers, and networks that keep caches, know that layers are computed again.

    An encoder would warn in every forward that it shall not cache what it never does, and T5's
    attention would mark a tensor for another kind of checkpoint: a compiler breaks its graph there.
    """
    caches = getattr(model.config, "is_decoder", True) or model.config.is_encoder_decoder
    for module in model.modules():
        keeps = isinstance(module, GradientCheckpointingLayer) or (
            caches and isinstance(module, PreTrainedModel)
        )
        if hasattr(module, _FLAG) and not keeps:
            setattr(module, _FLAG, False)
