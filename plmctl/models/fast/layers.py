"""Single layers replaced by faster or smaller ones: dropout, GELU, recomputed layers.

Each function changes a model in place. The mathematics stays, and so do the weights and their
names: what is saved is an ordinary transformers model.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.activations import GELUTanh, NewGELUActivation
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.albert.modeling_albert import AlbertLayer
from transformers.models.openai.modeling_openai import Block

from plmctl.errors import ConfigError

# --- Dropout whose random numbers cost next to nothing on a CPU ---
#
# PyTorch draws one Bernoulli variable per element from one Mersenne twister, an eighth to a quarter
# of a small model's training step. Here an element has 16 bits of a fast generator (NumPy's SFC64),
# four elements per draw. The generator is seeded by PyTorch's, so that ``torch.manual_seed`` still
# decides every draw and no state is kept from step to step.
#
# A probability is rounded to a multiple of 1/65536, and what is kept is scaled by that very
# probability: the expectation is exact.


_LEVELS = 1 << 16


def use_fast_dropout(model: nn.Module) -> None:
    """Give every dropout of a model, in place, the fast draws; weights and their names stay."""
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = Dropout


class Dropout(nn.Dropout):
    """``nn.Dropout`` with these draws."""

    def forward(self, input: Tensor) -> Tensor:
        """The input, some of it set to 0 while training."""
        return drop(input, self.p) if self.training and self.p else input


def drop(x: Tensor, probability: float) -> Tensor:
    """Elements set to 0 with a probability, the others scaled to the same expectation.

    Args:
        x: On the CPU, any shape.
        probability: In [0, 1).
    """
    return cast(Tensor, _Drop.apply(x, probability))  # type: ignore[no-untyped-call]  # PyTorch's


class _Drop(torch.autograd.Function):
    """Keeps the mask, a byte an element, for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        dropped = min(round(probability * _LEVELS), _LEVELS - 1)
        ctx.scale = _LEVELS / (_LEVELS - dropped)
        keep = _bits(x.numel()).view(x.shape) >= dropped - _LEVELS // 2
        ctx.save_for_backward(keep)
        return torch.mul(x, keep).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return torch.mul(gradients[0], keep).mul_(ctx.scale), None


def _bits(count: int) -> Tensor:
    """[count] uniform 16-bit integers, from -32768."""
    seed = int(torch.randint(1 << 62, ()))
    drawn = np.random.SFC64(seed).random_raw(-(-count // 4))
    return torch.from_numpy(drawn.view(np.int16)[:count])


# --- The tanh form of GELU in one kernel, in place of transformers' eight ---


def fuse_gelu(model: nn.Module) -> None:
    """Let a model, in place, compute ``gelu_new`` as ``gelu_pytorch_tanh``: the same function.

    GPT-1, GPT-2, T5 1.1 and ALBERT's second version have it by the first name, which their configs,
    and so the folders that are saved, keep.
    """
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is NewGELUActivation:
                setattr(module, name, GELUTanh())


# --- Activation checkpointing: layers are computed again in the backward pass ---
#
# Chen et al., 2016 (arXiv:1604.06174). A layer keeps its input only; the backward runs it once
# more, a third of a step's arithmetic. Draws of dropout are the same both times: PyTorch puts its
# global generators back for the second run, and every draw here is seeded by them.


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

_RECOMPUTED: dict[type[nn.Module], type[nn.Module]] = {AlbertLayer: _AlbertLayer, Block: _Gpt1Block}


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Let a model, in place, keep the inputs of its layers only; weights and names stay.

    Raises:
        ConfigError: It has no layers of which that is known.
    """
    if model.supports_gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
        _quieten(model)
        return
    layers = [module for module in model.modules() if type(module) in _RECOMPUTED]
    if not layers:
        raise no_checkpointing(type(model).__name__)
    for layer in layers:
        layer.__class__ = _RECOMPUTED[type(layer)]


def no_checkpointing(network: str) -> ConfigError:
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
