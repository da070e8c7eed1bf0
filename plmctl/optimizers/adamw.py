"""AdamW (Loshchilov and Hutter, 2019, arXiv:1711.05101), or as BERT's code has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plmctl.config.sections import OptimConfig
from plmctl.optimizers.base import Optimizer

if TYPE_CHECKING:
    import torch
    from torch import nn

Config = OptimConfig


class AdamW(Optimizer[OptimConfig], config=OptimConfig):
    """AdamW; with ``bias_correction: false`` google-research/bert's (optimization.py).

    With ``bias_correction: rate`` it is openai/finetune-transformer-lm's (opt.py).

    Biases and LayerNorm parameters, everything with one dimension, have no weight decay: the usual
    exclusion, which for BERT's names is exactly the original's.
    """

    def make(self, network: nn.Module, *, fused: bool) -> torch.optim.Optimizer:
        """See the base class."""
        import torch

        from plmctl.models.sharding import is_sharded
        from plmctl.optimizers._groups import decay_groups, trained
        from plmctl.optimizers._moments import Moments, MomentsOnGpu

        config = self.config
        groups = decay_groups(network, config.weight_decay)
        if config.decay == "all":
            groups = [{"params": trained(network), "weight_decay": config.weight_decay}]
        if config.bias_correction is True:
            return torch.optim.AdamW(
                groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=fused
            )
        kind = MomentsOnGpu if fused and not is_sharded(network) else Moments
        return kind(
            groups,
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            bias_correction=config.bias_correction,
        )
