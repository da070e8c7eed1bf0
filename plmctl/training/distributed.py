"""Several processes: sums over all of them, and sharded weights.

PyTorch's FSDP2 shards the weights, and with them the gradients and the optimizer's state, so that
each process keeps a part of all three; a layer's weights are gathered while the layer before it
computes. Rajbhandari et al., 2020 (arXiv:1910.02054), stage 3. The mathematics is that of whole
weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
import torch.distributed
from torch import Tensor, nn

from plmctl.models.network import Network
from plmctl.models.parameters import layer_stacks
from plmctl.models.sharding import is_sharded

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.distributed import ProcessGroup


# --- Sums over processes ---


def reduce(accelerator: Accelerator, values: Tensor) -> Tensor:
    """The sum over processes; with one process, the values themselves."""
    if accelerator.num_processes == 1:
        return values
    reduced: Tensor = accelerator.reduce(values.to(accelerator.device), reduction="sum")
    return reduced


def summed(accelerator: Accelerator, numbers: list[float]) -> list[float]:
    """The sums over processes of numbers on the host, in float64.

    Apple's GPUs have no float64: between processes numbers travel as their bits.
    """
    if accelerator.num_processes == 1:
        return numbers
    bits = torch.tensor(numbers, dtype=torch.float64).view(torch.int64)
    each: Tensor = accelerator.gather(bits.to(accelerator.device))
    return each.cpu().view(torch.float64).view(-1, len(numbers)).sum(0).tolist()


def summed_facts(
    hosts: ProcessGroup | None, accelerator: Accelerator, facts: list[int]
) -> list[int]:
    """The sums over processes of numbers on the host; with ``hosts`` they wait for no GPU."""
    if hosts is None:
        sums: list[int] = reduce(accelerator, torch.tensor(facts)).tolist()
        return sums
    values = torch.tensor(facts)
    torch.distributed.all_reduce(values, group=hosts)
    return values.tolist()


# --- Sharded weights ---


def shard(network: Network, device: torch.device, processes: int, gather: torch.dtype) -> None:
    """Shard every weight in place; names stay.

    Embeddings and heads, tied ones included, are one unit, which is whole from the first layer's
    forward to its backward; so are layers that share their weights (ALBERT). Every other layer is a
    separate unit.

    Args:
        network: The same weights in every process.
        gather: What the weights of a unit are, while it has them whole.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    for module in network.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.ndim == 0:  # the factor of a mix of layers: FSDP takes no single numbers
                vector = nn.Parameter(parameter.detach()[None], parameter.requires_grad)
                module.register_parameter(name, vector)
    mesh = init_device_mesh(device.type, (processes,))
    policy = MixedPrecisionPolicy(
        param_dtype=gather, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    for stack in layer_stacks(network.model).values():
        layers = list(stack) if len(stack) > 1 else []
        units = [fully_shard(layer, mesh=mesh, mp_policy=policy) for layer in layers]
        for unit, after in pairwise(units):
            unit.set_modules_to_forward_prefetch([after])
    fully_shard(network, mesh=mesh, mp_policy=policy)


def forgets_forwards() -> bool:
    """Whether this PyTorch can forget the order of forwards; versions before 2.13 may not."""
    from torch.distributed.fsdp import FSDPModule

    return hasattr(FSDPModule, "reset_iter_state")


@contextmanager
def gathered_weights(network: nn.Module) -> Iterator[None]:
    """Every process has all weights within the block, and its forwards wait for no other process.

    It costs the memory of the weights. Called by all processes; without sharding it does nothing.
    PyTorch remembers the order of forwards, to gather weights early in the next backward. Here each
    process has its own, and so it is forgotten: else each would gather other weights, and wait for
    ever.
    """
    if not is_sharded(network):
        yield
        return
    from torch.distributed.fsdp import FSDPModule

    units = [module for module in network.modules() if isinstance(module, FSDPModule)]
    for unit in units:
        unit.set_reshard_after_forward(reshard_after_forward=False, recurse=False)
        unit.unshard()
    try:
        yield
    finally:
        for unit in units:
            unit.reshard()
            unit.set_reshard_after_forward(unit is not network, recurse=False)
        if forgets_forwards() and isinstance(network, FSDPModule):
            network.reset_iter_state()
