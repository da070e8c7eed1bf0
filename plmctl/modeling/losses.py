"""Summed losses: the caller divides by the global count of targets, never by a micro-batch's."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from plmctl.modeling.batch import IGNORE
from plmctl.modeling.projection import Projection
from plmctl.modeling.z_loss import cross_entropy_and_z


def cross_entropy_sums(
    logits: Mapping[str, Tensor | Projection], targets: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Cross-entropy summed over the targets of each part, in nats and in float32.

    Args:
        logits: A part's logits, [..., classes], or what they would be made of.
        targets: A part's classes, [...], IGNORE where nothing is asked.

    Returns:
        One scalar a part.
    """
    return {part: _cross_entropy_sum(logits[part], target) for part, target in targets.items()}


def sums_with_penalty(
    logits: Tensor | Projection, targets: Tensor, z_loss: float
) -> tuple[Tensor, Tensor]:
    """As ``z_loss.cross_entropy_and_z``, also of logits that are not computed as a whole."""
    if isinstance(logits, Projection):
        if logits.is_large:
            return logits.losses(targets, z_loss)
        logits = logits.logits()
    return cross_entropy_and_z(logits, targets, z_loss)


def _cross_entropy_sum(logits: Tensor | Projection, targets: Tensor) -> Tensor:
    if isinstance(logits, Projection):
        if logits.is_large:
            return logits.losses(targets)[0]
        logits = logits.logits()
    return cross_entropy(
        logits.flatten(0, -2).float(), targets.flatten(), ignore_index=IGNORE, reduction="sum"
    )


def score_sums(logits: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``cross_entropy_sums``, and ``<part>/correct``: how many targets the largest logit names."""
    sums = cross_entropy_sums(logits, targets)
    for part, target in targets.items():
        hits = (logits[part].argmax(-1) == target) & (target != IGNORE)
        sums[f"{part}/correct"] = hits.sum().to(torch.float32)
    return sums
