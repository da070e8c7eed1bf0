"""Tensors that are split over processes (FSDP), and the same tensors whole."""

from __future__ import annotations

import sys

from torch import Tensor, nn

_MODULE = "torch.distributed.tensor"  # half a second to import; FSDP does, other runs need not


def is_split(tensor: Tensor) -> bool:
    """Whether this process has only a part of a tensor."""
    return _MODULE in sys.modules and isinstance(tensor, sys.modules[_MODULE].DTensor)


def is_sharded(network: nn.Module) -> bool:
    """Whether the weights of a network are split."""
    return is_split(next(network.parameters()))


def gathered(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be split; called by all processes."""
    if not is_split(tensor):
        return tensor
    whole: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
    return whole


def own_part(tensor: Tensor) -> Tensor:
    """What this process has of a tensor that may be split."""
    if not is_split(tensor):
        return tensor
    part: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return part


def cut_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """A whole tensor as a parameter is kept: this process's part of it if that is split.

    A single number gets the axis that FSDP has given to the parameter, or loses it.
    """
    if {tensor.shape, parameter.shape} == {(), (1,)}:
        tensor = tensor.reshape(parameter.shape)
    if not is_split(parameter) or tensor.shape != parameter.shape:
        return tensor.to(parameter.device)
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    return distribute_tensor(
        tensor.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
    )
