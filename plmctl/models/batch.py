"""What a step hands to a network: inputs, and targets that carry their own counts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plmctl.models.base import IGNORE as IGNORE  # where PyTorch is not imported


@dataclass(frozen=True)
class Rows:
    """The rows of a micro-batch: [first, stop) of the rows of a step, and the step's number."""

    first: int
    stop: int
    of: int
    window: int


@dataclass(frozen=True)
class Batch:
    """One micro-batch.

    Attributes:
        inputs: Arguments of the network's forward.
        targets: One tensor per loss term, IGNORE at positions without a target.
        tokens: Input tokens that are not padding.
        padded_tokens: Input positions, padding included.
        rows: Its rows in the step, if they continue the step before (``Examples.streamed``).
    """

    inputs: dict[str, Tensor]
    targets: dict[str, Tensor]
    tokens: int
    padded_tokens: int
    rows: Rows | None = None

    def counts(self) -> dict[str, int]:
        """Number of targets of each loss term: what its summed loss is divided by."""
        return {term: int((target != IGNORE).sum()) for term, target in self.targets.items()}

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        return Batch(
            {name: tensor.to(device, non_blocking=True) for name, tensor in self.inputs.items()},
            {term: tensor.to(device, non_blocking=True) for term, tensor in self.targets.items()},
            self.tokens,
            self.padded_tokens,
            self.rows,
        )
