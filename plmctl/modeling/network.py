"""A transformers model behind one forward: the module that is wrapped for several devices."""

from collections.abc import Callable

from torch import Tensor, nn
from transformers import PreTrainedModel

Forward = Callable[..., dict[str, Tensor]]
"""``forward(model, **inputs)``: the logits of each part of the loss."""


class Network(nn.Module):
    """Calls a family's forward, so that heads run where there is a target and nowhere else.

    The model keeps its own class and weights: what is saved is an ordinary transformers model.
    """

    def __init__(self, model: PreTrainedModel, forward: Forward) -> None:
        super().__init__()
        self.model = model
        self._forward = forward

    def forward(self, **inputs: Tensor) -> dict[str, Tensor]:
        """Logits of each part of the loss."""
        return self._forward(self.model, **inputs)
