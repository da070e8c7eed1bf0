"""AdamW (Loshchilov and Hutter, 2019, arXiv:1711.05101), or as BERT's code has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plmctl.config.sections import OptimConfig

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

Config = OptimConfig


def make(config: OptimConfig, network: nn.Module, *, fused: bool) -> Optimizer:
    """AdamW; with ``bias_correction: false`` google-research/bert's (optimization.py).

    Biases and LayerNorm parameters, everything with one dimension, are not decayed: the usual
    exclusion, which for BERT's names is exactly the original's.
    """
    from torch.optim import AdamW

    from plmctl.optimizers._updates import Moments, decay_groups, trained

    groups = decay_groups(network, config.weight_decay)
    if config.decay == "all":
        groups = [{"params": trained(network), "weight_decay": config.weight_decay}]
    if not config.bias_correction:
        return Moments(groups, config.lr, betas=config.betas, eps=config.eps, bias_correction=False)
    return AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=fused)
