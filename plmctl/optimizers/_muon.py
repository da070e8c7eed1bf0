"""Muon for hidden matrices and AdamW for the rest, behind one optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from plmctl.optimizers._gpu import Flagged, flattened, gradients_of, mix, move, stacks
from plmctl.optimizers._groups import trained


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
        self._update_by_muon(self.param_groups[: self._num_muon])
        # Accelerate and a restored state replace these objects, so they are handed over each time.
        self._adamw.state = self.state
        self._adamw.param_groups = self.param_groups[self._num_muon :]
        self._adamw.step()

    def _update_by_muon(self, groups: list[dict[str, Any]]) -> None:
        for group in groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    _update(parameter, self._buffer(parameter), group)

    def _buffer(self, parameter: Tensor) -> Tensor:
        """The running mean of its gradients."""
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer: Tensor = state["momentum_buffer"]
        return buffer


_RMS_OF_ADAMW = 0.2  # root mean square of AdamW's updates: Liu et al., 2025, section 2.2


def _update(parameter: Tensor, buffer: Tensor, group: dict[str, Any]) -> None:
    gradient, momentum = parameter.grad, group["momentum"]
    assert gradient is not None
    mean = buffer.lerp_(gradient, 1 - momentum)
    update = gradient.lerp(mean, momentum)  # Nesterov's
    pieces = torch.stack(update.chunk(group["pieces"], dim=1))
    direction = torch.cat(orthogonal(pieces).unbind(), dim=1)
    parameter.mul_(1 - group["lr"] * group["weight_decay"])
    parameter.add_(direction, alpha=-group["lr"] * _size(pieces))


def _size(pieces_NRC: Tensor) -> float:
    root: float = max(pieces_NRC.shape[1:]) ** 0.5
    return _RMS_OF_ADAMW * root


class MuonAndAdamWOnGpu(Flagged, MuonAndAdamW):
    """The same with all matrices of one shape, or of its transposed, in one stack."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """See the base class."""
        self._adamw.found_inf = self.found_inf  # type: ignore[attr-defined]  # its kernel's own flag
        super().step()

    def _update_by_muon(self, groups: list[dict[str, Any]]) -> None:
        updates = [
            (group, parameters, pieces)
            for group in groups
            for batch in self.batches(group["params"])
            for parameters, pieces in self._updates(batch, group)
        ]
        wide: dict[tuple[int, ...], list[Tensor]] = {}
        for *_, pieces in updates:
            tall = pieces.shape[1] > pieces.shape[2]
            wide.setdefault(_sides(pieces), []).append(pieces.mT if tall else pieces)
        directions = {
            sides: iter(orthogonal(torch.cat(same)).split([len(pieces) for pieces in same]))
            for sides, same in wide.items()
        }
        for group, parameters, pieces in updates:
            direction, (_, rows, columns) = next(directions[_sides(pieces)]), pieces.shape
            if rows > columns:
                direction = direction.mT
            parts = direction.view(-1, group["pieces"], rows, columns).transpose(1, 2)
            by = parts.reshape(len(parameters), rows, -1).contiguous().unbind()
            size = _size(pieces)
            rate, decay = group["lr"] * size, group["weight_decay"] / size
            move(parameters, list(by), rate, self.found_inf, decay=decay)

    def _updates(
        self, batch: list[Tensor], group: dict[str, Any]
    ) -> Iterator[tuple[list[Tensor], Tensor]]:
        """Matrices of one shape, and the pieces of their updates before they are orthogonal."""
        momentum, count = group["momentum"], group["pieces"]
        buffers = [self._buffer(parameter) for parameter in batch]
        gradients = gradients_of(batch)
        mix(buffers, gradients, 1 - momentum, self.found_inf)
        update = flattened(gradients).lerp_(flattened(buffers), momentum)  # Nesterov's
        start = 0
        for stack in stacks(update, batch):
            number, rows, columns = stack.shape
            pieces = stack.view(number, rows, count, columns // count).transpose(1, 2)
            yield batch[start : start + number], pieces.reshape(-1, rows, columns // count)
            start += number


def _sides(pieces_NRC: Tensor) -> tuple[int, ...]:
    """The shorter and the longer side."""
    return tuple(sorted(pieces_NRC.shape[1:]))


_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Jordan et al., 2024; five steps


def orthogonal(matrices_NRC: Tensor) -> Tensor:
    """U V^T of each matrix U S V^T, about: singular values between 0.7 and 1.2.

    Five steps of a Newton-Schulz iteration, in bf16 on a GPU and in fp32 on a CPU.

    Args:
        matrices_NRC: N matrices of R rows and C columns.
    """
    a, b, c = _NEWTON_SCHULZ
    in_fp32 = matrices_NRC.device.type in ("cpu", "mps")
    x = matrices_NRC.to(torch.float32 if in_fp32 else torch.bfloat16)
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    if x.shape[2] >= 2 * x.shape[1] and in_fp32:
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
