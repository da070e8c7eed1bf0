"""What the training loop knows of an objective or a task: ``Examples``.

No PyTorch is imported here, because reading a config imports every objective.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

from plmctl.arrays import Ints

if TYPE_CHECKING:
    from torch import Tensor

    from plmctl.examples.inspection import Example, Tallies
    from plmctl.models.batch import Batch
    from plmctl.models.network import Network


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

    @property
    def counted_terms(self) -> tuple[str, ...]:
        """The loss terms that are the cross-entropy of their targets, as most are."""
        return self.loss_terms

    def at_step(self, step: int, steps: int) -> Self:
        """The examples as a step has them: for an objective that changes over the run.

        Args:
            step: From 0, below ``steps``, those of the run.
        """
        return self

    def alternatives(self) -> dict[str, Self]:
        """The examples of each objective of a mixture by its name; else these, without a name."""
        return {"": self}

    @abstractmethod
    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The examples [B] named by epochs [B] and samples [B], as CPU tensors."""

    @abstractmethod
    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The loss of each term, summed over the batch's targets."""

    @abstractmethod
    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The losses, with ``<term>/correct``: nan where right and wrong are not defined."""

    def lengths(self) -> Ints | None:
        """[N] tokens of each sample; None if they are all about as long."""
        return None


class StoreExamples(Examples):
    """Examples made from token stores: an objective or a mixture; ``plmctl preview`` shows them."""

    @abstractmethod
    def tally(self, epochs: Ints, samples: Ints) -> Tallies:
        """Statistics of the examples [B] named by epochs [B] and samples [B]."""

    @abstractmethod
    def expected(self) -> dict[str, float]:
        """The expected values of those statistics that have one."""

    @abstractmethod
    def example(self, epoch: int, sample: int) -> Example:
        """One example for reading."""
