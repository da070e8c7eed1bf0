"""Recurrent state that goes on from one step's window to the next, one slot a row of the step."""

from collections.abc import Callable

import torch
from torch import Tensor

from plmctl.modeling.batch import Rows


class Carried:
    """The state of every row of a step.

    A process writes the rows that it computes; ``share`` brings all of them together. It is no
    buffer of the network, since those are copied from the first process to the others.

    Attributes:
        slots: [rows, ...], or None before the first window.
    """

    def __init__(self, slots: Tensor | None = None) -> None:
        self.slots = slots
        self._mine: tuple[int, int] | None = None

    def take(self, rows: Rows) -> Tensor | None:
        """A copy of the rows' state; None where nothing was put yet: the network begins anew."""
        if self.slots is None or len(self.slots) != rows.of:
            return None
        return self.slots[rows.first : rows.stop].clone()

    def put(self, rows: Rows, state: Tensor) -> None:
        """Keep a state [rows, ...]; gradients stop here (truncated backpropagation)."""
        if self.slots is None or len(self.slots) != rows.of:
            shape = (rows.of, *state.shape[1:])
            self.slots = torch.zeros(shape, dtype=torch.float32, device=state.device)
            self._mine = None
        self.slots[rows.first : rows.stop] = state.detach()
        first, stop = self._mine or (rows.first, rows.stop)
        self._mine = min(first, rows.first), max(stop, rows.stop)

    def marked(self) -> Tensor | None:
        """A copy of all that is here, for ``rewind``."""
        return None if self.slots is None else self.slots.clone()

    def rewind(self, mark: Tensor | None) -> None:
        """Go back to a ``marked`` state: a step that was not applied leaves nothing behind."""
        self.slots = mark

    def share(self, reduce: Callable[[Tensor], Tensor]) -> None:
        """Give every process all rows.

        Args:
            reduce: The sum over processes; called by all of them.
        """
        if self.slots is None or self._mine is None:
            return
        mine = torch.zeros_like(self.slots)
        mine[slice(*self._mine)] = self.slots[slice(*self._mine)]
        self.slots = reduce(mine)
