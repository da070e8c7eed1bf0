"""transformers' Adafactor with the original's rule of what is factored."""

from typing import Any

from transformers.optimization import Adafactor as _Adafactor

# mesh_tensorflow/optimize.py, AdafactorOptimizer: ``min_dim_size_to_factor``
_SMALLEST = 128


class Adafactor(_Adafactor):
    """Factored where both of the last two dimensions are 128 or more, as T5's."""

    @staticmethod
    def _get_options(group: dict[str, Any], shape: tuple[int, ...]) -> tuple[bool, bool]:
        factored = len(shape) >= 2 and min(shape[-2:]) >= _SMALLEST
        return factored, group["beta1"] is not None
