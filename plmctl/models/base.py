"""What the training loop knows of an objective or a task: ``Examples``.

No PyTorch is imported here, because reading a config imports every objective.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from plmctl.arrays import Ints

if TYPE_CHECKING:
    from torch import Tensor

    from plmctl.models.batch import Batch
    from plmctl.models.network import Network


IGNORE = -100
"""The target at positions without one; the index that PyTorch's losses ignore by default."""


class Examples(ABC):
    """Examples in, summed losses out: an objective over a store, or a task's rows.

    An example is named by its epoch and its sample number and by nothing else, so that any process
    can make it at any time.

    Attributes:
        streamed: Whether row r of a step continues where row r of the step before ended (biLM).
            Otherwise the order of the samples is shuffled.
    """

    streamed: bool = False

    @property
    @abstractmethod
    def loss_terms(self) -> tuple[str, ...]:
        """Names of the terms of the loss; each is averaged over its own targets."""

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of the mean of each loss term in the loss."""
        return dict.fromkeys(self.loss_terms, 1.0)

    @abstractmethod
    def __len__(self) -> int:
        """Samples in an epoch."""

    @abstractmethod
    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The examples [B] named by epochs [B] and samples [B], as CPU tensors."""

    @abstractmethod
    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The loss of each term, summed over the batch's targets."""

    @abstractmethod
    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """As ``loss``, with ``<term>/correct``: nan where right and wrong are not defined."""

    def lengths(self) -> Ints | None:
        """[N] tokens of each sample; None if they are all about as long."""
        return None
