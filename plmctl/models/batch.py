"""What a step hands to a network: inputs, and targets that carry their own counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from plmctl.arrays import IGNORE

UNPADDED = ("unpadded_positions", "unpadded_starts")
"""Inputs that the layers get and no forward does; see ``training.shapes.unpadded``."""


@dataclass(frozen=True)
class Rows:
    """The rows of a micro-batch: [first, stop) of the rows of a step, and the step's number."""

    first: int
    stop: int
    of: int
    window: int


@dataclass(frozen=True)
class TargetList:
    """Tensors [K, ...] with an entry per target, in one order, which more entries may follow.

    Attributes:
        positions: Names of the inputs that are positions in the flattened rows.
        targets: The loss terms whose targets they are.
        inputs: Names of other inputs with as many entries.
    """

    positions: tuple[str, ...]
    targets: tuple[str, ...]
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Batch:
    """One micro-batch.

    Rows are [B, L], those of ``attention_mask`` if there is one. An encoder-decoder's inputs whose
    names begin with ``decoder_``, and its targets, have the rows of ``decoder_input_ids``.

    Attributes:
        inputs: Arguments of the network's forward.
        targets: One tensor per loss term, IGNORE at positions without a target.
        tokens: Input tokens that are not padding.
        padded_tokens: Input positions, padding included.
        rows: Its rows in the step, if they continue the step before (``Examples.streamed``).
        lists: What it has besides rows and a value per row; with it, a network that is compiled may
            get it padded (``training.shapes``). None: unknown; it is not padded.
    """

    inputs: dict[str, Tensor]
    targets: dict[str, Tensor]
    tokens: int
    padded_tokens: int
    rows: Rows | None = None
    lists: tuple[TargetList, ...] | None = None

    def counts(self) -> dict[str, int]:
        """Number of targets of each loss term: what its summed loss is divided by."""
        return {term: int((target != IGNORE).sum()) for term, target in self.targets.items()}

    def listed(self) -> Iterator[Tensor]:
        """The tensors of its lists, [K, ...]."""
        for one in self.lists or ():
            yield from (self.inputs[name] for name in (*one.positions, *one.inputs))
            yield from (self.targets[term] for term in one.targets)

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device; the host does not wait for the copies."""
        pinned = device.type == "cuda"  # a copy from other memory waits for what the GPU has to do

        def moved(tensor: Tensor) -> Tensor:
            tensor = tensor.pin_memory() if pinned else tensor
            return tensor.to(device, non_blocking=True)

        return Batch(
            {name: moved(tensor) for name, tensor in self.inputs.items()},
            {term: moved(tensor) for term, tensor in self.targets.items()},
            self.tokens,
            self.padded_tokens,
            self.rows,
            self.lists,
        )
