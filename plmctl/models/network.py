"""A transformers model behind one forward: the module that is wrapped for several devices.

``Network`` calls a family's forward, so that heads run where there is a target and nowhere else.
``RecurrentState`` is what a network with a state (ELMo) keeps from one step to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from plmctl.models.batch import UNPADDED, Rows
from plmctl.models.encoder import PartialEncoder
from plmctl.models.losses import Projection, cross_entropy_sums, sums_with_penalty

Forward = Callable[..., dict[str, Tensor]]
"""``forward(model, **inputs)``: the logits of each loss term.

A language model's takes ``project``, a function of hidden states and output layer that gives what
stands for the logits.
"""


class Network(nn.Module):
    """Calls a family's forward, so that heads run where there is a target and nowhere else.

    The model keeps its own class and weights: what is saved is an ordinary transformers model.

    Attributes:
        records: Whether a GPU replays the kernels that it has recorded, in the same memory.
        recurrent_state: The state of a recurrent network's rows between steps; empty for others.
    """

    def __init__(self, model: PreTrainedModel, forward: Forward) -> None:
        super().__init__()
        self.model = model
        self._forward = forward
        self._compiled: Callable[..., dict[str, Tensor]] | None = None
        self._layers_compiled = False
        self.records = False
        self.recurrent_state = RecurrentState()

    @property
    def compiled(self) -> bool:
        """Whether it is compiled, or will be at the next forward that trains."""
        return self._compiled is not None or self._layers_compiled

    def compile(self, *, records: bool = False, **options: Any) -> None:
        """Compile what is between inputs and losses, for training.

        Wrappers, autocast, the state of rows and the seeds of draws stay outside, so that nothing
        in it changes from step to step but tensors. Module names stay as they are.

        Args:
            records: Let a GPU replay whole graphs of kernels (PyTorch's "reduce-overhead"). What a
                replay has written the next one overwrites: the outputs are copied, and gradients
                are added to tensors that are there before the first one, and stay.
        """
        self.records = records
        if records:
            options["mode"] = "reduce-overhead"
            for parameter in self.parameters():
                if parameter.requires_grad:
                    parameter.grad = torch.zeros_like(parameter)
        self._compiled = torch.compile(self._run, **options)

    def compile_layers(self, layers: Iterable[nn.Module], **options: Any) -> None:
        """Compile each layer by itself; what is between them is not compiled.

        With FSDP that is inside the hooks that gather a layer's weights.
        """
        for layer in layers:
            layer.forward = _while_training(layer, **options)
            self._layers_compiled = True

    def forward(
        self,
        *,
        rows: Rows | None = None,
        loss_on: Mapping[str, Tensor] | None = None,
        z_loss: float = 0.0,
        **inputs: Tensor,
    ) -> dict[str, Tensor]:
        """Logits of each loss term, or with ``loss_on`` the summed losses themselves.

        The loss is computed in here because a wrapper for several devices may have the whole output
        layer only during the forward, and because all logits at once would be the largest tensor of
        a step.

        Args:
            rows: Whose state to continue, and to keep; None: every row starts from zeros.
            loss_on: The targets of each loss term, of a language model; see
                ``cross_entropy_sums``.
            z_loss: With them: weight of the penalty, the loss term "z_loss".
            **inputs: As the family's forward takes them. A recurrent one takes ``state`` and gives
                it back among its logits.
        """
        run = self._compiled if self._compiled is not None and self.training else self._run
        if UNPADDED[0] in inputs:
            with self._unpadded(inputs.pop(UNPADDED[0]), inputs.pop(UNPADDED[1])):
                return self.forward(rows=rows, loss_on=loss_on, z_loss=z_loss, **inputs)
        if rows is not None and (state := self.recurrent_state.take(rows)) is not None:
            inputs["state"] = state
        if self.records and run is self._compiled:
            torch.compiler.cudagraph_mark_step_begin()
            outputs = {name: out.clone() for name, out in run(inputs, loss_on, z_loss).items()}
        else:
            outputs = run(inputs, loss_on, z_loss)
        after = outputs.pop("state", None)
        if rows is not None and after is not None:
            self.recurrent_state.put(rows, after)
        return outputs

    def _run(
        self,
        inputs: Mapping[str, Tensor],
        targets: Mapping[str, Tensor] | None = None,
        z_loss: float = 0.0,
    ) -> dict[str, Tensor]:
        """Logits, or losses where there are targets; and the state of a network that has one."""
        if targets is None:
            return self._forward(self.model, **inputs)
        projections = self._forward(self.model, project=Projection, **inputs)
        if not z_loss:
            state = {name: projections[name] for name in ("state",) if name in projections}
            return cross_entropy_sums(projections, targets) | state
        entropy, penalty = sums_with_penalty(projections["lm"], targets["lm"], z_loss)
        return {"lm": entropy, "z_loss": penalty}

    @contextmanager
    def _unpadded(self, positions: Tensor, starts: Tensor) -> Iterator[None]:
        """Tell the layers what is not padding, outside of what is compiled."""
        stacks = [module for module in self.modules() if isinstance(module, PartialEncoder)]
        try:
            for stack in stacks:
                stack.unpadded = positions, starts
            yield
        finally:
            for stack in stacks:
                stack.unpadded = None

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Run another text meanwhile (validation), without touching the state of this one.

        A compiled network runs as it was before: other shapes would be compiled for one text.
        """
        kept, compiled = self.recurrent_state, self._compiled
        self.recurrent_state, self._compiled = RecurrentState(), None
        try:
            yield
        finally:
            self.recurrent_state, self._compiled = kept, compiled


def _while_training(layer: nn.Module, **options: Any) -> Callable[..., Any]:
    """A layer's forward, compiled for training and as it is otherwise."""
    forward: Callable[..., Any] = layer.forward
    compiled = torch.compile(forward, **options)

    @wraps(forward)
    def run(*arguments: Any, **named: Any) -> Any:
        return (compiled if layer.training else forward)(*arguments, **named)

    return run


# --- Recurrent state from one step's window to the next, one slot per row of the step ---


class RecurrentState:
    """The state of every row of a step.

    A process writes the rows that it computes; ``share`` brings all of them together. It is no
    buffer of the network, since those are copied from the first process to the others.

    Attributes:
        slots: [rows, ...], or None before the first window.
    """

    def __init__(self, slots: Tensor | None = None) -> None:
        self.slots = slots
        self._own_rows: tuple[int, int] | None = None

    def take(self, rows: Rows) -> Tensor | None:
        """A copy of the rows' state; None if there is none yet: the network starts from zeros."""
        if self.slots is None or len(self.slots) != rows.of:
            return None
        return self.slots[rows.first : rows.stop].clone()

    def put(self, rows: Rows, state: Tensor) -> None:
        """Keep a state [rows, ...]; gradients stop here (truncated backpropagation)."""
        if self.slots is None or len(self.slots) != rows.of:
            shape = (rows.of, *state.shape[1:])
            self.slots = torch.zeros(shape, dtype=torch.float32, device=state.device)
            self._own_rows = None
        self.slots[rows.first : rows.stop] = state.detach()
        first, stop = self._own_rows or (rows.first, rows.stop)
        self._own_rows = min(first, rows.first), max(stop, rows.stop)

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
        if self.slots is None or self._own_rows is None:
            return
        own = torch.zeros_like(self.slots)
        own[slice(*self._own_rows)] = self.slots[slice(*self._own_rows)]
        self.slots = reduce(own)
