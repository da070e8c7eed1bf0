"""AdamW without bias correction (BERT), and LAMB: the same with a learning rate per tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from plmctl.optimizers._gpu import Flagged, gradients_of, move, scale, stacks


class Moments(Optimizer):
    """Decoupled weight decay on Adam's direction, optionally scaled tensor by tensor.

    u = m / (sqrt(v) + eps) + weight_decay * p, then p -= lr * ratio * u. The ratio is ``|p| / |u|``
    in groups with ``layerwise`` (1 where either norm is 0; no other bound, as in
    google-research/albert, lamb_optimizer.py), and 1 in the others.

    Args:
        params: Groups, each with ``weight_decay``, and ``layerwise`` for LAMB.
        lr: Learning rate.
        betas: Decay of the running means of the gradient and of its square.
        eps: Added to the root.
        bias_correction: Divide the means by 1 - beta^t; BERT's and ALBERT's code does not. "rate":
            multiply the learning rate by what remains of both, as GPT-1's code does.
    """

    def __init__(
        self,
        params: list[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        bias_correction: bool | Literal["rate"],
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "bias_correction": bias_correction,
                "weight_decay": 0.0,
                "layerwise": False,
            },
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update from the gradients; there is no closure in this project."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self._started(parameter)
                    state["step"] += 1
                    _update(parameter, state, group)

    def _started(self, parameter: Tensor) -> dict[str, Any]:
        """Its state, which may be new."""
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)  # on the CPU, so that reading it waits for no device
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


def _update(parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    gradient = parameter.grad
    assert gradient is not None
    (beta1, beta2), updates = group["betas"], state["step"].item()
    mean = state["exp_avg"].lerp_(gradient, 1 - beta1)
    square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    rate, first, second = group["lr"], 1.0, 1.0
    if group["bias_correction"]:
        first, second = 1 - beta1**updates, 1 - beta2**updates
    if group["bias_correction"] == "rate":
        rate, first, second = rate * second**0.5 / first, 1.0, 1.0
    update = (mean / first) / ((square / second).sqrt() + group["eps"])
    update.add_(parameter, alpha=group["weight_decay"])
    if group["layerwise"]:
        weight, length = parameter.norm(), update.norm()
        # A branch in Python would wait for the device at every tensor.
        ratio = torch.where((weight > 0) & (length > 0), weight / length, 1.0)
        update.mul_(ratio)
    parameter.add_(update, alpha=-rate)


class MomentsOnGpu(Flagged, Moments):
    """The same by PyTorch's fused AdamW, which also makes the directions of LAMB.

    Its kernel corrects for bias by a count, and after 2^23 updates by exactly 1. What a group wants
    of it goes into the numbers: sqrt(1 - beta2^t) / (1 - beta1^t) into the rate, the root alone
    into eps.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """See the base class."""
        self.updated = ()
        for group in self.param_groups:
            for batch in self.batches(group["params"]):
                self._update_batch(batch, group)

    def _update_batch(self, batch: list[Tensor], group: dict[str, Any]) -> None:
        states = [self._started(parameter) for parameter in batch]
        (beta1, beta2), updates = group["betas"], self.count(states)
        factor = root = 1.0
        if group["bias_correction"]:
            root = (1 - beta2**updates) ** 0.5
            factor = root / (1 - beta1**updates)
        rate, decay = group["lr"] * factor, group["weight_decay"]
        if group["bias_correction"] == "rate":
            root = 1.0
        else:
            decay /= factor
        parts: list[Tensor] = []
        if group["layerwise"]:  # 0 - (-factor) * direction
            size = sum(parameter.numel() for parameter in batch)
            parts = stacks(batch[0].new_zeros(size), batch)
            rate, decay = -factor, 0.0
        directions = [part for stack in parts for part in stack.unbind()]
        torch._fused_adamw_(
            directions or batch,
            gradients_of(batch),
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [torch.full((), _MANY, device=batch[0].device)] * len(batch),
            lr=rate,
            beta1=beta1,
            beta2=beta2,
            weight_decay=decay,
            eps=root * group["eps"],
            amsgrad=False,
            maximize=False,
            found_inf=self.found_inf,
        )
        if directions:
            torch._foreach_add_(directions, batch, alpha=group["weight_decay"])
            scale(parts, _ratios(batch, parts))
            move(batch, directions, group["lr"], self.found_inf)


_MANY = 2.0**23


def _ratios(batch: list[Tensor], parts: list[Tensor]) -> Tensor:
    weights = torch.stack(torch._foreach_norm(batch))
    lengths = torch.cat([torch.linalg.vector_norm(part.flatten(1), dim=1) for part in parts])
    return torch.where((weights > 0) & (lengths > 0), weights / lengths, 1.0)
