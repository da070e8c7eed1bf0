"""AdamW whose learning rate falls, tensor by tensor, where a gradient is unusually large."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from plmctl.optimizers._gpu import Flagged


class Stable(Optimizer):
    """StableAdamW (Wortsman et al., 2023, arXiv:2304.13013, algorithm 2).

    With m and v corrected for bias: rms = sqrt(mean(g^2 / max(v, eps^2))), over a tensor;
    p *= 1 - lr / peak * weight_decay; p -= lr / max(1, rms) * m / (sqrt(v) + eps). The decay is
    that of the package torch-optimi with ``decouple_lr``, which ModernBERT's code takes.

    Args:
        params: Groups, each with ``weight_decay``.
        lr: The peak; a schedule changes the groups' own.
        betas: Decay of the running means of the gradient and of its square.
        eps: Added to the root.
    """

    def __init__(
        self, params: list[dict[str, Any]], *, lr: float, betas: tuple[float, float], eps: float
    ) -> None:
        defaults = {"lr": lr, "peak": lr, "betas": betas, "eps": eps, "weight_decay": 0.0}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update from the gradients; there is no closure in this project."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self._started(parameter)
                    state["step"] += 1
                    _update(parameter, state, group, 1.0)

    def _started(self, parameter: Tensor) -> dict[str, Any]:
        """Its state, which may be new."""
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)  # on the CPU, so that reading it waits for no device
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


class StableOnGpu(Flagged, Stable):
    """The same, which a GPU can leave out by itself; a tensor at a time."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """See the base class."""
        self.updated = ()
        applied = 1.0 if self.found_inf is None else 1 - self.found_inf
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self._started(parameter)
                    self.count([state])
                    _update(parameter, state, group, applied)


def _update(
    parameter: Tensor, state: dict[str, Any], group: dict[str, Any], applied: float | Tensor
) -> None:
    """Update a tensor and its state by ``applied``: 1, or 0 to leave both as they are."""
    gradient = parameter.grad
    assert gradient is not None
    if isinstance(applied, Tensor):
        gradient = gradient.where(applied > 0, 0)  # it may not be finite
    (beta1, beta2), updates, eps = group["betas"], state["step"].item(), group["eps"]
    mean = state["exp_avg"].lerp_(gradient, (1 - beta1) * applied) / (1 - beta1**updates)
    square = state["exp_avg_sq"].lerp_(gradient.square(), (1 - beta2) * applied)
    square = square / (1 - beta2**updates)
    # A branch in Python would wait for the device at every tensor.
    rms = (gradient.square() / square.clamp(min=eps**2)).mean().sqrt()
    parameter.mul_(1 - group["lr"] / group["peak"] * group["weight_decay"] * applied)
    direction = mean.div_(square.sqrt_().add_(eps)).div_(rms.clamp(min=1))
    parameter.sub_(direction.mul_(group["lr"] * applied))
