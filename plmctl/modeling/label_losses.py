"""Summed losses of labelled texts; the caller divides by the global count of targets."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy


def single_label_sum(
    logits: Tensor, targets: Tensor, weights: Tensor | None = None, smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy of one class a row, in nats.

    Args:
        logits: [B, C].
        targets: [B] classes.
        weights: [C] what a target of each class counts for. They multiply losses and leave the
            count of targets alone.
        smoothing: Share of the target that is spread evenly over all classes.
    """
    losses = cross_entropy(logits.float(), targets, reduction="none", label_smoothing=smoothing)
    return (losses if weights is None else losses * weights[targets]).sum()


def multi_label_sum(
    logits: Tensor, targets: Tensor, weights: Tensor | None = None, smoothing: float = 0.0
) -> Tensor:
    """Binary cross-entropy of every label, in nats; each label of each row is a target.

    Args:
        logits: [B, C].
        targets: [B, C], 1.0 where a row has the label.
        weights: [C, 2] what a target counts for: the label is absent, it is there.
        smoothing: As in ``single_label_sum``, of two classes.
    """
    soft = targets * (1 - smoothing) + smoothing / 2
    losses = binary_cross_entropy_with_logits(logits.float(), soft, reduction="none")
    if weights is not None:
        losses = losses * torch.where(targets > 0.5, weights[:, 1], weights[:, 0])
    return losses.sum()


def squared_error_sum(logits: Tensor, targets: Tensor) -> Tensor:
    """Squared differences of logits [B, 1] to targets [B]."""
    return (logits.float().squeeze(-1) - targets).square().sum()


def next_token_sums(
    logits: Tensor, ids: Tensor, cells: Tensor, counts: Tensor
) -> tuple[Tensor, Tensor]:
    """The language model of texts: a text's mean over its own tokens, summed over texts.

    So GPT-1's loss is averaged: a long text counts for as much as a short one.

    Args:
        logits: [K, V] at every token that has a next one.
        ids: [S, L].
        cells: [K] where these tokens stand in the flattened ids.
        counts: [S] how many of them a text has.

    Returns:
        The cross-entropies in nats, and the shares of right first guesses.
    """
    targets, text = ids.flatten()[cells + 1], cells // ids.shape[1]
    losses = cross_entropy(logits.float(), targets, reduction="none")
    hits = (logits.argmax(-1) == targets).float()
    return (losses / counts[text]).sum(), (hits / counts[text]).sum()
