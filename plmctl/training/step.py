"""All that the loop knows of an objective or a task."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from plmctl.modeling.batch import Batch
from plmctl.modeling.network import Network


class Step(Protocol):
    """Examples in, summed losses out.

    An example is named by its epoch and its sample number and by nothing else, so that any process
    can make it at any time.
    """

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts of the loss; each is averaged over its own targets, then summed."""

    def __len__(self) -> int:
        """Samples in an epoch."""

    def collate(self, epochs: NDArray[np.int64], samples: NDArray[np.int64]) -> Batch:
        """The examples [B] named by epochs [B] and samples [B], as CPU tensors."""

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The loss of each part, summed over the batch's targets."""

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """As ``loss``, with ``<part>/correct``: nan where right and wrong are not defined."""


def streamed(step: Step) -> bool:
    """Whether row r of a step goes on where row r of the step before ended (biLM).

    A step says so by an attribute ``streamed``; others have none, and their order is shuffled.
    """
    return bool(getattr(step, "streamed", False))


def weight(step: Step, part: str) -> float:
    """What a part's mean counts for in the loss: 1 unless the step's ``weights`` say otherwise."""
    weights: Mapping[str, float] = getattr(step, "weights", {})
    return weights.get(part, 1.0)
