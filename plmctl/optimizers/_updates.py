"""Parameter groups, and the updates that PyTorch does not have.

The optimizers import it when they make one, so that reading a config needs no PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Muon, Optimizer
from transformers.optimization import Adafactor

from plmctl.models.sharding import cut_like, gathered

# --- Parameter groups ---


def trained(network: nn.Module) -> list[nn.Parameter]:
    """The parameters that require gradients, tied ones once."""
    return [p for p in network.parameters() if p.requires_grad]


def decay_groups(
    network: nn.Module, weight_decay: float, *, without: Iterable[nn.Parameter] = ()
) -> list[dict[str, Any]]:
    """Two groups: matrices and embeddings, with weight decay; biases and norms, without.

    Args:
        network: Its parameters that require gradients.
        weight_decay: The first group's.
        without: Parameters of another optimizer.
    """
    others = {id(p) for p in without}
    left = [p for p in trained(network) if id(p) not in others]
    groups = [
        {"params": [p for p in left if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in left if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


# --- AdamW without bias correction (BERT), and LAMB: the same with a learning rate per tensor ---


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
    (beta1, beta2), updates = group["betas"], state["step"].item()
    mean = state["exp_avg"].lerp_(gradient, 1 - beta1)
    square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    first, second = 1.0, 1.0
    if group["bias_correction"]:
        first, second = 1 - beta1**updates, 1 - beta2**updates
    update = (mean / first) / ((square / second).sqrt() + group["eps"])
    update.add_(parameter, alpha=group["weight_decay"])
    if group["layerwise"]:
        weight, length = parameter.norm(), update.norm()
        # A branch in Python would wait for the device at every tensor.
        ratio = torch.where((weight > 0) & (length > 0), weight / length, 1.0)
        update.mul_(ratio)
    parameter.add_(update, alpha=-group["lr"])


# --- transformers' Adafactor with the original's rule for what is factored ---


# mesh_tensorflow/optimize.py, AdafactorOptimizer: ``min_dim_size_to_factor``
_SMALLEST = 128


class AdafactorOfT5(Adafactor):
    """Factored if both of the last two dimensions are 128 or more, as T5's."""

    @staticmethod
    def _get_options(group: dict[str, Any], shape: tuple[int, ...]) -> tuple[bool, bool]:
        factored = len(shape) >= 2 and min(shape[-2:]) >= _SMALLEST
        return factored, group["beta1"] is not None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update; there is no closure in this project.

        Sums over rows and columns need whole tensors. Those of a sharded network are gathered one
        at a time, which costs as much communication as the step's other gathers; the state is one
        vector per dimension.
        """
        groups = self.param_groups
        if not any(isinstance(p, DTensor) for group in groups for p in group["params"]):
            super().step()  # type: ignore[no-untyped-call]
            return
        try:
            for group in groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._step_whole(group, parameter)
        finally:
            self.param_groups = groups

    def _step_whole(self, group: dict[str, Any], parameter: Tensor) -> None:
        whole = gathered(parameter).detach().clone()
        whole.grad = gathered(parameter.grad)  # type: ignore[arg-type]  # there is one
        state = self.state.pop(parameter, {})
        self.state[whole] = {field: _map(gathered, value) for field, value in state.items()}
        self.param_groups = [{**group, "params": [whole]}]
        super().step()  # type: ignore[no-untyped-call]
        parameter.copy_(cut_like(whole, parameter))
        after = self.state.pop(whole).items()
        own_part = {field: _map(lambda whole: cut_like(whole, parameter), v) for field, v in after}
        self.state[parameter] = own_part


def _map(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A tensor put through a function; a number as it is."""
    return function(value) if isinstance(value, Tensor) else value


# --- PyTorch's Muon and AdamW behind one optimizer ---


def hidden_matrices(network: nn.Module) -> list[nn.Parameter]:
    """Matrices between the embeddings and the heads.

    Left out: embedding tables (with tied output matrices), a separate output matrix, and the heads:
    everything outside the base model.
    """
    model: Any = getattr(network, "model", network)
    base: nn.Module = getattr(model, "base_model", model)
    outside = {id(m.weight) for m in network.modules() if isinstance(m, nn.Embedding)}
    output = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if output is not None:
        outside.add(id(output.weight))
    return [p for p in trained(base) if p.ndim == 2 and id(p) not in outside]


class MuonAndAdamW(Optimizer):
    """Muon on one group, AdamW on the others: one state, one list of groups.

    Args:
        muon: The group of Muon, with its settings.
        adamw: The groups of AdamW.
        settings: AdamW's for all its groups.
    """

    def __init__(
        self, muon: dict[str, Any], adamw: list[dict[str, Any]], settings: dict[str, Any]
    ) -> None:
        self._muon, self._adamw = Muon([muon]), AdamW(adamw, **settings)
        super().__init__([*self._muon.param_groups, *self._adamw.param_groups], {})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of both; there is no closure in this project."""
        # Accelerate and a restored state replace these objects, so they are handed over each time.
        self._muon.state = self._adamw.state = self.state
        self._muon.param_groups = self.param_groups[:1]
        self._adamw.param_groups = self.param_groups[1:]
        self._muon.step()  # type: ignore[no-untyped-call]
        self._adamw.step()
