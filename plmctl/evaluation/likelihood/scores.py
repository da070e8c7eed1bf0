"""Sums over the tokens of texts, and what follows from the logits of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from plmctl.arrays import Floats, Ints

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Scores:
    """Of each of N texts.

    Attributes:
        nll: [N] negative log-likelihood in nats, summed over the scored tokens.
        scored: [N] their number.
        first: [N] tokens without a prediction: the first of a text of a model that has no begin
            token.
    """

    nll: Floats
    scored: Ints
    first: Ints

    @classmethod
    def empty(cls, texts: int) -> Scores:
        """Nothing scored yet."""
        return cls(np.zeros(texts), np.zeros(texts, np.int64), np.zeros(texts, np.int64))

    def add(self, text: Ints, nll: Floats) -> None:
        """Add the tokens' ``nll`` [K] to the texts [K] that they are of."""
        np.add.at(self.nll, text, nll)
        np.add.at(self.scored, text, 1)


def token_nll(logits: Tensor, targets: Ints) -> Floats:
    """Negative log-likelihood of each target in nats, unreduced.

    Args:
        logits: [K, V].
        targets: [K].

    Returns:
        [K], from a softmax in float32.
    """
    import torch
    from torch.nn.functional import cross_entropy

    wanted = torch.from_numpy(targets).to(logits.device)
    found = cross_entropy(logits.float(), wanted, reduction="none")
    return found.double().cpu().numpy()
