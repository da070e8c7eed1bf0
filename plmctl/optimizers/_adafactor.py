"""transformers' Adafactor with the original's rule for what is factored, and its form for a GPU.

It has its own file because transformers' optimizers import half a second of other things.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.optimization import Adafactor

from plmctl.models.sharding import cut_like, gathered, is_split
from plmctl.optimizers._gpu import Flagged, flattened, gradients_of, mix, move, scale, stacks

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
        if not any(is_split(p) for group in groups for p in group["params"]):
            super().step()
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
        super().step()
        parameter.copy_(cut_like(whole, parameter))
        after = self.state.pop(whole).items()
        own_part = {field: _map(lambda whole: cut_like(whole, parameter), v) for field, v in after}
        self.state[parameter] = own_part


def _map(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A tensor put through a function; a number as it is."""
    return function(value) if isinstance(value, Tensor) else value


class AdafactorOnGpu(Flagged, AdafactorOfT5):
    """The same update of all tensors at once; neither momentum nor relative steps."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """See the base class."""
        self.updated = ()
        for decay in dict.fromkeys(group["weight_decay"] for group in self.param_groups):
            groups = [group for group in self.param_groups if group["weight_decay"] == decay]
            parameters = [parameter for group in groups for parameter in group["params"]]
            for batch in self.batches(parameters, last=lambda p: not self._factors(p)):
                self._update_batch(batch, groups[0])

    def _factors(self, parameter: Tensor) -> bool:
        return self._get_options(self.param_groups[0], parameter.shape)[0]

    def _started(self, parameter: Tensor) -> dict[str, Any]:
        """Its state, which may be new."""
        state: dict[str, Any] = self.state[parameter]
        shape = parameter.shape
        if not state:
            state["step"] = 0
            if self._factors(parameter):
                state["exp_avg_sq_row"] = parameter.new_zeros(shape[:-1])
                state["exp_avg_sq_col"] = parameter.new_zeros(shape[:-2] + shape[-1:])
            else:
                state["exp_avg_sq"] = torch.zeros_like(parameter)
            state["RMS"] = parameter.new_zeros(())
        return state

    def _update_batch(self, batch: list[Tensor], group: dict[str, Any]) -> None:
        states, gradients = [self._started(p) for p in batch], gradients_of(batch)
        share = self.count(states) ** group["decay_rate"]
        vector = flattened(gradients).square_().add_(group["eps"][0])
        parts = stacks(vector, batch)
        self._take_roots(vector, parts, states, share)
        directions = [direction for part in parts for direction in part.unbind()]
        torch._foreach_mul_(directions, gradients)

        norms = list(torch._foreach_norm([*batch, *directions]))
        torch._foreach_div_(norms, [p.numel() ** 0.5 for p in [*batch, *batch]])
        weights, lengths = torch.stack(norms).chunk(2)
        mix([state["RMS"] for state in states], norms[: len(batch)], 1.0, self.found_inf)
        shrink = (lengths / group["clip_threshold"]).clamp_(min=1.0).reciprocal_()
        if group["weight_decay"]:
            scale(parts, shrink)
            torch._foreach_add_(directions, batch, alpha=group["weight_decay"])
            shrink = torch.ones_like(shrink)
        if group["scale_parameter"]:
            shrink *= weights.clamp(min=group["eps"][1])
        scale(parts, shrink)
        move(batch, directions, group["lr"], self.found_inf)

    def _take_roots(
        self, vector: Tensor, parts: list[Tensor], states: list[dict[str, Any]], share: float
    ) -> None:
        """Count squares in the running means, and put 1 / root of these in their place.

        Args:
            vector: The squares.
            parts: Its parts; those that are factored come first.
            share: The weight of these squares.
        """
        factored = [part for part in parts if self._factors(part[0])]
        kept: list[Tensor] = []
        means: list[Tensor] = []
        first = 0
        for part in factored:
            own = states[first : first + len(part)]
            first += len(part)
            kept += [state["exp_avg_sq_row"] for state in own]
            kept += [state["exp_avg_sq_col"] for state in own]
            means += [*part.mean(-1).unbind(), *part.mean(-2).unbind()]
        whole = [state["exp_avg_sq"] for state in states[first:]]
        squares = [square for part in parts[len(factored) :] for square in part.unbind()]
        mix([*kept, *whole], [*means, *squares], share, self.found_inf)
        if kept:
            _fill(factored, flattened(kept))
        if whole:
            rest = vector[-sum(square.numel() for square in whole) :]
            torch.cat([square.reshape(-1) for square in whole], out=rest).rsqrt_()


def _fill(parts: list[Tensor], sums: Tensor) -> None:
    """1 / root of the squares that the means by rows and by columns stand for, in each part."""
    shapes = [
        shape for part in parts for shape in (part.shape[:-1], part.shape[:-2] + part.shape[-1:])
    ]
    pieces = sums.split([shape.numel() for shape in shapes])
    means = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
    for rows in means[::2]:
        rows.div_(rows.mean(-1, keepdim=True))
    sums.rsqrt_()
    for part, rows, columns in zip(parts, means[::2], means[1::2], strict=True):
        torch.mul(rows.unsqueeze(-1), columns.unsqueeze(-2), out=part)
