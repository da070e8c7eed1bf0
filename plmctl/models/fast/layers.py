"""Single layers replaced by faster ones: dropout and GELU. Each function works in place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers.activations import GELUTanh, NewGELUActivation

from plmctl.models.fast.required import require_attributes

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
    """Give every dropout of a model, in place, the fast draws; weights and their names stay.

    T5's dropout after a ReLU takes it over. T5's layer is known by name: to import it for other
    networks takes time.

    Raises:
        ImportError: T5's layer is not as it was.
    """
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = Dropout
        if type(module).__name__ == "T5DenseActDense":
            require_attributes(module, "act", "dropout")
            layer: Any = module
            if type(layer.act) is nn.ReLU and isinstance(layer.dropout, nn.Dropout):
                layer.act, layer.dropout.__class__ = nn.Identity(), DropoutAfterReLU


class Dropout(nn.Dropout):
    """``nn.Dropout`` with these draws."""

    def forward(self, input: Tensor) -> Tensor:
        """The input, some of it set to 0 while training."""
        return drop(input, self.p) if self.training and self.p else input


class DropoutAfterReLU(nn.Dropout):
    """ReLU, and dropout of its output with these draws."""

    def forward(self, input: Tensor) -> Tensor:
        """The input without what is negative, some of it set to 0 while training."""
        if not (self.training and self.p):
            return torch.relu(input)
        return cast(Tensor, _DropAfterReLU.apply(input, self.p))


def drop(x: Tensor, probability: float) -> Tensor:
    """Elements set to 0 with a probability, the others scaled to the same expectation.

    Args:
        x: On the CPU, any shape.
        probability: In [0, 1).
    """
    return cast(Tensor, _Drop.apply(x, probability))


class _Drop(torch.autograd.Function):
    """Keeps the mask, a byte per element, for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        keep, ctx.scale = draw_kept(x.shape, probability)
        ctx.save_for_backward(keep)
        return torch.mul(x, keep).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return torch.mul(gradients[0], keep).mul_(ctx.scale), None


class _DropAfterReLU(torch.autograd.Function):
    """ReLU and dropout. The gradient needs their output only, which the next layer keeps anyway."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        keep, ctx.scale = draw_kept(x.shape, probability)
        out = torch.relu(x).mul_(keep).mul_(ctx.scale)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (out,) = ctx.saved_tensors
        given: Tensor = torch.ops.aten.threshold_backward(gradients[0], out, 0)
        return given.mul_(ctx.scale), None


def draw_kept(shape: Sequence[int], probability: float) -> tuple[Tensor, float]:
    """Which elements dropout keeps.

    PyTorch compares into booleans, and multiplies with them, element by element: NumPy compares
    eight times as fast, and a product with int8 takes a third to three quarters of the time.

    Args:
        probability: Of an element to be dropped, in [0, 1).

    Returns:
        int8 in this shape, 1 where an element is kept, else 0; and what it is then multiplied by.
    """
    dropped, count = min(round(probability * _LEVELS), _LEVELS - 1), math.prod(shape)
    seed = int(torch.randint(1 << 62, ()))
    drawn = np.random.SFC64(seed).random_raw(-(-count // 4))
    kept = drawn.view(np.int16)[:count] >= dropped - _LEVELS // 2  # from -32,768
    return torch.from_numpy(kept.view(np.int8)).view(*shape), _LEVELS / (_LEVELS - dropped)


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
