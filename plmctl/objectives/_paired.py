"""Masked sentence pairs with a label: what the objectives on pairs share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from plmctl.errors import DataError
from plmctl.objectives._masked import Masker
from plmctl.shaping.pairing import Pairs
from plmctl.shaping.rows import layout

if TYPE_CHECKING:
    from torch import Tensor

    from plmctl.corpus.store import TokenStore
    from plmctl.modeling.batch import Batch
    from plmctl.modeling.network import Network

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class MaskedPairs:
    """The pairs of one store at one sequence length."""

    masker: Masker
    pairs: Callable[[int], Pairs]
    """The pairs of a pass over the corpus."""
    parts: tuple[str, ...]
    """The part of the masked tokens, and that of the pairs' labels."""

    def __len__(self) -> int:
        """Pairs in an epoch.

        Passes differ by a few pairs, since their lengths are drawn. Every epoch has as many samples
        as pass 0 has pairs, so that the epoch of a step is plain division and seeking needs no
        history; the odd pairs of a longer pass are left out, those of a shorter one come twice.
        """
        return len(self.pairs(0))

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The pairs ``samples`` of their epochs, masked.

        Args:
            epochs: [B].
            samples: [B], each below ``len(self)``.

        Returns:
            As ``Masker.batch``, and the labels [B] as the target of the second part.
        """
        import torch

        passes = np.array([self.masker.config.pass_of(int(epoch)) for epoch in epochs])
        columns = np.empty((5, len(samples)), dtype=np.int64)
        for pass_ in np.unique(passes):
            rows = np.flatnonzero(passes == pass_)
            pairs = self.pairs(int(pass_))
            at = samples[rows] % len(pairs)
            columns[:, rows] = (
                pairs.a_start[at],
                pairs.a_end[at],
                pairs.b_start[at],
                pairs.b_end[at],
                pairs.label[at],
            )
        a_start, a_end, b_start, b_end, label = columns
        batch = self.masker.batch(layout([a_start, b_start], [a_end, b_end]), passes, samples)
        batch.targets[self.parts[1]] = torch.from_numpy(label)
        return batch

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Summed cross-entropy of the masked tokens and of the pairs' labels, in nats."""
        from plmctl.modeling.losses import cross_entropy_sums

        return cross_entropy_sums(network(**batch.inputs), batch.targets)

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The losses, and the number of right first guesses of each."""
        from plmctl.modeling.losses import score_sums

        return score_sums(network(**batch.inputs), batch.targets)


def remembered(pairs: Callable[[int], Pairs]) -> Callable[[int], Pairs]:
    """``pairs`` without doing a pass twice: a batch that straddles two epochs needs both."""
    return lru_cache(maxsize=2)(pairs)


def check_documents(name: str, store: TokenStore, hint: str) -> None:
    """Refuse a corpus in which no sentence of another document can be drawn.

    Raises:
        DataError: Fewer than two documents.
    """
    if store.num_documents < 2:
        raise DataError(
            f"the objective {name!r} needs two documents or more, and there is one",
            f"put a blank line between documents, or {hint}",
        )
