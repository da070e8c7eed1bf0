"""Updates of many tensors in few kernels, which a GPU can leave out by itself.

A GPU has done its part of an update of one tensor before the host has launched the next kernel. So
the optimizers have a second form for it, with the same formula and the same state: tensors of one
shape are a stack, all stacks are one long vector, and what is left goes through PyTorch's fused
kernels, which take lists of tensors. A CPU keeps the first form: it has nothing to launch, and a
tensor at a time stays in its cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_LARGEST = 2**28  # elements of a batch: 1 GB of float32, a copy of which an update needs


class Flagged(Optimizer):
    """An optimizer that reads a flag on the device: the host need not know whether to call it.

    Attributes:
        found_inf: Named as PyTorch's; 1: the update changes neither weights nor states. None: every
            update is made.
        updated: The states of the last update whose ``step`` the host counts.
    """

    found_inf: Tensor | None = None
    updated: tuple[dict[str, Any], ...] = ()

    def count(self, states: list[dict[str, Any]]) -> float:
        """Count one more update of states that had as many; how many they have now."""
        for state in states:
            state["step"] += 1
        self.updated += tuple(states)
        return float(states[0]["step"])

    def uncount(self, updates: int) -> None:
        """Take back from the counts of the host the updates that the device has left out."""
        for state in self.updated:
            state["step"] -= updates

    def batches(
        self, parameters: Iterable[Tensor], last: Callable[[Tensor], bool] = lambda _: False
    ) -> list[list[Tensor]]:
        """Those with a gradient, in lists of one type and one count of updates.

        Tensors of one shape are side by side. Large ones come first, so that most have an even
        place in the long vector.

        Args:
            last: Which tensors come after all others of their batch.
        """

        def kind(p: Tensor) -> tuple[int, int]:
            return p.dtype.itemsize, int(self.state[p].get("step", 0))

        ready = [p for p in parameters if p.grad is not None]
        ready.sort(key=lambda p: (kind(p), last(p), -p.numel(), p.shape))
        lists: list[list[Tensor]] = []
        for _, same in groupby(ready, key=kind):
            room = 0
            for p in same:
                if p.numel() > room:
                    lists.append([])
                    room = _LARGEST
                lists[-1].append(p)
                room -= p.numel()
        return lists


def gradients_of(parameters: list[Tensor]) -> list[Tensor]:
    """All of them; each has one."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def flattened(tensors: Iterable[Tensor]) -> Tensor:
    """A copy of all, one behind the other."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def stacks(vector: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """The parts of a long vector as [N, *shape], for every N neighbours of one shape."""
    parts, start = [], 0
    for shape, same in groupby(tensors, key=lambda tensor: tensor.shape):
        number = sum(1 for _ in same)
        size = number * shape.numel()
        parts.append(vector[start : start + size].view(number, *shape))
        start += size
    return parts


def scale(parts: list[Tensor], numbers: Tensor) -> None:
    """Multiply the tensors of stacks, each by its number."""
    for part, own in zip(parts, numbers.split([len(part) for part in parts]), strict=True):
        part.mul_(own.view(-1, *[1] * (part.ndim - 1)))


def move(
    tensors: list[Tensor], by: list[Tensor], rate: float, flag: Tensor | None, *, decay: float = 0
) -> None:
    """Do x -= rate * (by + decay * x) for each tensor, unless the flag is 1."""
    _sgd(tensors, by, flag, lr=rate, weight_decay=decay, maximize=False)


def mix(tensors: list[Tensor], others: list[Tensor], share: float, flag: Tensor | None) -> None:
    """Do x += share * (other - x) for each tensor, as ``lerp_``, unless the flag is 1."""
    _sgd(tensors, others, flag, lr=share, weight_decay=1.0, maximize=True)


def _sgd(tensors: list[Tensor], by: list[Tensor], flag: Tensor | None, **settings: Any) -> None:
    torch._fused_sgd_(  # of all fused kernels the one with the least in it
        tensors, by, [], momentum=0.0, dampening=0.0, nesterov=False, is_first_step=False,
        found_inf=flag, **settings,
    )  # fmt: skip
