"""A transformers model behind one forward: the module that is wrapped for several devices."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from plmctl.modeling.batch import Rows
from plmctl.modeling.carried import Carried
from plmctl.modeling.losses import cross_entropy_sums, sums_with_penalty
from plmctl.modeling.projection import Projection

Forward = Callable[..., dict[str, Tensor]]
"""``forward(model, **inputs)``: the logits of each part of the loss.

A language model's takes ``project``, a function of hidden states and output layer that gives what
stands for the logits.
"""


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
        self._compiled: Callable[..., dict[str, Tensor]] | None = None
        self.carried = Carried()

    @property
    def compiled(self) -> bool:
        """Whether it is compiled, or will be at the next forward that trains."""
        return self._compiled is not None

    def compile(self, **options: Any) -> None:
        """Let ``torch.compile`` have what is between inputs and losses, while training.

        Wrappers, autocast, the state of rows and the seeds of draws stay outside, so that nothing
        in it changes from step to step but tensors. Module names stay as they are.

        Args:
            **options: Of ``torch.compile``.
        """
        self._compiled = torch.compile(self._run, **options)

    def forward(
        self,
        *,
        rows: Rows | None = None,
        loss_on: Mapping[str, Tensor] | None = None,
        z_loss: float = 0.0,
        **inputs: Tensor,
    ) -> dict[str, Tensor]:
        """Logits of each part of the loss, or with ``loss_on`` the summed losses themselves.

        The loss is computed in here because a wrapper for several devices may have the output layer
        whole only meanwhile, and because all logits at once would be the largest tensor of a step.

        Args:
            rows: Whose state to go on from, and to keep; None: every row begins anew.
            loss_on: The targets of each part, of a language model without a state; see
                ``cross_entropy_sums``.
            z_loss: With them: weight of the penalty that is the part "z_loss".
            **inputs: As the family's forward takes them. A recurrent one takes ``state`` and gives
                it back among its logits.
        """
        run = self._compiled if self._compiled is not None and self.training else self._run
        if loss_on is not None:
            return run(inputs, loss_on, z_loss)
        if rows is not None and (state := self.carried.take(rows)) is not None:
            inputs["state"] = state
        logits = run(inputs)
        after = logits.pop("state", None)
        if rows is not None and after is not None:
            self.carried.put(rows, after)
        return logits

    def _run(
        self,
        inputs: Mapping[str, Tensor],
        targets: Mapping[str, Tensor] | None = None,
        z_loss: float = 0.0,
    ) -> dict[str, Tensor]:
        """Logits, or losses where there are targets."""
        if targets is None:
            return self._forward(self.model, **inputs)
        made = self._forward(self.model, project=Projection, **inputs)
        if not z_loss:
            return cross_entropy_sums(made, targets)
        entropy, penalty = sums_with_penalty(made["lm"], targets["lm"], z_loss)
        return {"lm": entropy, "z_loss": penalty}

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Run another text meanwhile (validation), without touching the state of this one.

        A compiled network runs as it was before: other shapes would be compiled for one text.
        """
        kept, compiled = self.carried, self._compiled
        self.carried, self._compiled = Carried(), None
        try:
            yield
        finally:
            self.carried, self._compiled = kept, compiled
