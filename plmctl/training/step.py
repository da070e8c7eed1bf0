"""All that the loop knows of an objective or a task."""

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
