"""transformers' Adafactor with the original's rule of what is factored."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers.optimization import Adafactor as _Adafactor

from plmctl.training.sharding import cut_like, gathered

# mesh_tensorflow/optimize.py, AdafactorOptimizer: ``min_dim_size_to_factor``
_SMALLEST = 128


class Adafactor(_Adafactor):
    """Factored where both of the last two dimensions are 128 or more, as T5's."""

    @staticmethod
    def _get_options(group: dict[str, Any], shape: tuple[int, ...]) -> tuple[bool, bool]:
        factored = len(shape) >= 2 and min(shape[-2:]) >= _SMALLEST
        return factored, group["beta1"] is not None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update; there is no closure in this project.

        Sums over rows and columns need whole tensors. Of a sharded network they are brought
        together one at a time, which costs as much communication as the step's other gathers; what
        is kept is a vector a dimension.
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
        kept = {field: _map(lambda whole: cut_like(whole, parameter), v) for field, v in after}
        self.state[parameter] = kept


def _map(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A tensor put through a function; a number as it is."""
    return function(value) if isinstance(value, Tensor) else value
