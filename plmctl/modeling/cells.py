"""The cells of a padded batch that are no padding, and the way there and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Of a batch's cells: with less padding, going there and back costs what it saves.
_WORTH_IT = 0.04


@dataclass(frozen=True)
class Cells:
    """Real cells of a batch [B, L], each of them once.

    Attributes:
        index: [T] their places in the flattened batch.
        rows: B.
        length: L.
    """

    index: Tensor
    rows: int
    length: int

    @classmethod
    def of(cls, mask: Tensor) -> Cells | None:
        """Those where a mask [B, L] is not 0; None: they are so many that it is not worth while.

        It waits for a GPU.
        """
        index = mask.flatten().nonzero().squeeze(1)
        if len(index) > (1 - _WORTH_IT) * mask.numel():
            return None
        return cls(index, mask.shape[0], mask.shape[1])

    def flat(self, x: Tensor) -> Tensor:
        """[B, L, ...] to one row of what is real, [1, T, ...]."""
        apply: Any = _Taken.apply
        taken: Tensor = apply(x.flatten(0, 1), self.index)
        return taken[None]

    def padded(self, x: Tensor) -> Tensor:
        """[1, T, ...] to [B, L, ...], 0 at padding."""
        apply: Any = _Put.apply
        put: Tensor = apply(x[0], self.index, self.rows * self.length)
        return put.view(self.rows, self.length, *x.shape[2:])


# Each is the other's backward. PyTorch's own would add where cells can only be set, row by row.


class _Taken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.index, ctx.size = index, len(x)
        return x[index]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _put(gradient, ctx.index, ctx.size), None


class _Put(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, size: int) -> Tensor:
        ctx.index = index
        return _put(x, index, size)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[ctx.index], None, None


def _put(x: Tensor, index: Tensor, size: int) -> Tensor:
    out = x.new_zeros(size, *x.shape[1:])
    out[index] = x
    return out
