"""Parameter groups, and the updates that PyTorch does not have.

The optimizers import it when they make one, so that reading a config needs no PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

# --- Parameter groups ---


def trained(network: nn.Module) -> list[nn.Parameter]:
    """The parameters that require gradients, tied ones once."""
    return [p for p in network.parameters() if p.requires_grad]


def decay_groups(
    network: nn.Module, weight_decay: float, *, without: Iterable[nn.Parameter] = ()
) -> list[dict[str, Any]]:
    """Two groups: matrices and embeddings, with weight decay; biases and norms, without.

    Args:
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
        betas: Decay of the running means of the gradient and of its square.
        eps: Added to the root.
        bias_correction: Divide the means by 1 - beta^t; BERT's and ALBERT's code does not. "rate":
            multiply the learning rate by what remains of both, as GPT-1's code does.
    """

    def __init__(
        self,
        params: list[dict[str, Any]],
        lr: float,
        *,
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


# --- Muon for hidden matrices and AdamW for the rest, behind one optimizer ---


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


def fused_matrices(network: nn.Module) -> list[nn.Parameter]:
    """GPT's matrices [H, 3 H] of query, key and value, side by side."""
    return [p for name, p in network.named_parameters() if name.endswith(".c_attn.weight")]


class MuonAndAdamW(Optimizer):
    """Muon on some groups, AdamW on the others: one state, one list of groups.

    PyTorch's Muon computes in bf16 on every device, which a CPU without instructions for it does
    more slowly and less exactly than fp32; and it takes a fused matrix as one.

    Args:
        muon: The groups of Muon, each with ``lr``, ``momentum``, ``weight_decay``, and ``pieces``:
            as how many matrices of equal width each of its matrices counts.
        settings: AdamW's for all its groups.
    """

    def __init__(
        self, muon: list[dict[str, Any]], adamw: list[dict[str, Any]], settings: dict[str, Any]
    ) -> None:
        self._adamw, self._num_muon = AdamW(adamw, **settings), len(muon)
        super().__init__([*muon, *self._adamw.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of both; there is no closure in this project."""
        for group in self.param_groups[: self._num_muon]:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    _update_by_muon(parameter, self.state[parameter], group)
        # Accelerate and a restored state replace these objects, so they are handed over each time.
        self._adamw.state = self.state
        self._adamw.param_groups = self.param_groups[self._num_muon :]
        self._adamw.step()


_RMS_OF_ADAMW = 0.2  # root mean square of AdamW's updates: Liu et al., 2025, section 2.2


def _update_by_muon(parameter: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    gradient, momentum = parameter.grad, group["momentum"]
    assert gradient is not None
    if not state:
        state["momentum_buffer"] = torch.zeros_like(parameter)
    mean = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
    update = gradient.lerp(mean, momentum)  # Nesterov's
    pieces = torch.stack(update.chunk(group["pieces"], dim=1))
    size = _RMS_OF_ADAMW * max(pieces.shape[1:]) ** 0.5
    direction = torch.cat(orthogonal(pieces).unbind(), dim=1)
    parameter.mul_(1 - group["lr"] * group["weight_decay"])
    parameter.add_(direction, alpha=-group["lr"] * size)


_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Jordan et al., 2024; five steps


def orthogonal(matrices_NRC: Tensor) -> Tensor:
    """U V^T of each matrix U S V^T, about: singular values between 0.7 and 1.2.

    Five steps of a Newton-Schulz iteration, in bf16 on a GPU and in fp32 on a CPU.

    Args:
        matrices_NRC: N matrices of R rows and C columns.
    """
    a, b, c = _NEWTON_SCHULZ
    on_gpu = matrices_NRC.device.type == "cuda"
    x = matrices_NRC.to(torch.bfloat16 if on_gpu else torch.float32)
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    if x.shape[2] >= 2 * x.shape[1] and not on_gpu:
        x = _five_steps(x @ x.mT) @ x
    else:
        for _ in range(5):
            square = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices_NRC.dtype)


def _five_steps(square_NRR: Tensor) -> Tensor:
    """What five Newton-Schulz steps multiply X from the left with, given X X^T.

    A step multiplies X with P = a + b X X^T + c (X X^T)^2, and so X X^T with P from both sides: X,
    the larger matrix, is not needed until the end. For a matrix of 128 x 512 it takes three fifths
    of the time. In bf16 the products would be too rough.
    """
    step = product = _one_step(square_NRR)
    for _ in range(4):
        square_NRR = step @ square_NRR @ step
        step = _one_step(square_NRR)
        product = step @ product
    return product


def _one_step(square_NRR: Tensor) -> Tensor:
    a, b, c = _NEWTON_SCHULZ
    step = torch.baddbmm(square_NRR, square_NRR, square_NRR, beta=b, alpha=c)
    step.diagonal(dim1=1, dim2=2).add_(a)
    return step
