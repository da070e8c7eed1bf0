"""Summed losses: the caller divides by the global count of targets, never by a micro-batch's."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from plmctl.modeling.batch import IGNORE


def cross_entropy_sums(
    logits: Mapping[str, Tensor], targets: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Cross-entropy summed over the targets of each part, in nats and in float32.

    Args:
        logits: A part's logits, [..., classes].
        targets: A part's classes, [...], IGNORE where nothing is asked.

    Returns:
        One scalar a part.
    """
    return {
        part: cross_entropy(
            logits[part].flatten(0, -2).float(),
            target.flatten(),
            ignore_index=IGNORE,
            reduction="sum",
        )
        for part, target in targets.items()
    }


def score_sums(logits: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``cross_entropy_sums``, and ``<part>/correct``: how many targets the largest logit names."""
    sums = cross_entropy_sums(logits, targets)
    for part, target in targets.items():
        hits = (logits[part].argmax(-1) == target) & (target != IGNORE)
        sums[f"{part}/correct"] = hits.sum().to(torch.float32)
    return sums
