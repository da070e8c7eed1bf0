"""Sampled softmax: the loss over the true word and a sample of others (Jean et al., 2015)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def sampled_logits(
    hidden_NH: Tensor, head: nn.Linear, targets_N: Tensor, candidates_S: Tensor, tries: Tensor
) -> Tensor:
    """Logits whose class 0 is the true word, the others the candidates.

    As TensorFlow's ``sampled_softmax_loss``: from every logit the log of the count that the sampler
    is expected to give is taken away, and a candidate that is the true word is left out.

    Args:
        hidden_NH: What the head takes.
        head: [V, H]; ids sorted by frequency.
        targets_N: True words.
        candidates_S: Distinct words of ``shaping.candidates.log_uniform``.
        tries: How many draws it took, a scalar.

    Returns:
        [N, 1 + S] in float32.
    """
    log_count_N, log_count_S = (
        _log_expected(ids, tries, head.out_features) for ids in (targets_N, candidates_S)
    )
    true_N = (hidden_NH * head.weight[targets_N]).sum(-1) + head.bias[targets_N]
    other_NS = nn.functional.linear(hidden_NH, head.weight[candidates_S], head.bias[candidates_S])
    hit_NS = candidates_S == targets_N[:, None]
    other_NS = (other_NS.float() - log_count_S).masked_fill(hit_NS, -math.inf)
    return torch.cat([(true_N.float() - log_count_N)[:, None], other_NS], dim=-1)


def _log_expected(ids: Tensor, tries: Tensor, size: int) -> Tensor:
    """Log of the chance that a word is among the candidates after so many draws."""
    ids = ids.double()
    chance = ((ids + 2) / (ids + 1)).log() / math.log(size + 1)
    return (-torch.expm1(tries.double() * torch.log1p(-chance))).log().float()
