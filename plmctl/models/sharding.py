"""Tensors that are split over processes (FSDP), and the same tensors whole."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def gathered(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be split; called by all processes."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def cut_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """A whole tensor as a parameter is kept: this process's part of it if that is split."""
    if not isinstance(parameter, DTensor) or tensor.shape != parameter.shape:
        return tensor.to(parameter.device)
    return distribute_tensor(
        tensor.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
    )
