"""transformers' Adafactor with the original's rule for what is factored.

It has its own file because transformers' optimizers import half a second of other things.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.optimization import Adafactor

from plmctl.models.sharding import cut_like, gathered, is_split

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
