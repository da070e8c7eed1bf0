"""A transformers model behind one forward: the module that is wrapped for several devices."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from transformers import PreTrainedModel

from plmctl.modeling.batch import Rows
from plmctl.modeling.carried import Carried

Forward = Callable[..., dict[str, Tensor]]
"""``forward(model, **inputs)``: the logits of each part of the loss."""


class Network(nn.Module):
    """Calls a family's forward, so that heads run where there is a target and nowhere else.

    The model keeps its own class and weights: what is saved is an ordinary transformers model.

    Attributes:
        carried: The state of a recurrent network's rows between steps; empty for others.
    """

    def __init__(self, model: PreTrainedModel, forward: Forward) -> None:
        super().__init__()
        self.model = model
        self._forward = forward
        self.carried = Carried()

    def forward(self, *, rows: Rows | None = None, **inputs: Tensor) -> dict[str, Tensor]:
        """Logits of each part of the loss.

        Args:
            rows: Whose state to go on from, and to keep; None: every row begins anew.
            **inputs: As the family's forward takes them. A recurrent one takes ``state`` and gives
                it back among its logits.
        """
        if rows is not None and (state := self.carried.take(rows)) is not None:
            inputs["state"] = state
        logits = self._forward(self.model, **inputs)
        after = logits.pop("state", None)
        if rows is not None and after is not None:
            self.carried.put(rows, after)
        return logits

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Run another text meanwhile (validation), without touching the state of this one."""
        kept, self.carried = self.carried, Carried()
        try:
            yield
        finally:
            self.carried = kept
