"""AdamW without bias correction (BERT) and LAMB: one update, with or without a rate a tensor."""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


class Moments(Optimizer):
    """Decoupled weight decay on Adam's direction, optionally scaled tensor by tensor.

    u = m / (sqrt(v) + eps) + weight_decay * p, then p -= lr * ratio * u. The ratio is ``|p| / |u|``
    in groups with ``layerwise`` (1 where either norm is 0; no other bound, as in
    google-research/albert, lamb_optimizer.py), and 1 in the others.

    Args:
        params: Groups, each with ``weight_decay``, and ``layerwise`` for LAMB.
        lr: Learning rate.
        betas: Decay of the means of the gradient and of its square.
        eps: Added to the root.
        bias_correction: Divide the means by 1 - beta^t; BERT's and ALBERT's code does not.
    """

    def __init__(
        self,
        params: list[dict[str, Any]],
        lr: float,
        *,
        betas: tuple[float, float],
        eps: float,
        bias_correction: bool,
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
                    _update(parameter, self.state[parameter], group)


def _update(parameter: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    gradient = parameter.grad
    assert gradient is not None
    if not state:
        state["step"] = torch.tensor(0.0)  # on the CPU, so that reading it waits for no device
        state["exp_avg"] = torch.zeros_like(parameter)
        state["exp_avg_sq"] = torch.zeros_like(parameter)
    state["step"] += 1
    (beta1, beta2), done = group["betas"], state["step"].item()
    mean = state["exp_avg"].lerp_(gradient, 1 - beta1)
    square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    first, second = 1.0, 1.0
    if group["bias_correction"]:
        first, second = 1 - beta1**done, 1 - beta2**done
    update = (mean / first) / ((square / second).sqrt() + group["eps"])
    update.add_(parameter, alpha=group["weight_decay"])
    if group["layerwise"]:
        weight, length = parameter.norm(), update.norm()
        # Without a branch in Python: that would wait for the device at every tensor.
        ratio = torch.where((weight > 0) & (length > 0), weight / length, 1.0)
        update.mul_(ratio)
    parameter.add_(update, alpha=-group["lr"])
