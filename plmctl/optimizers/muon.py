"""Muon (Jordan et al., 2024) for the hidden matrices, AdamW for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from plmctl.config.base import OptimizerConfig
from plmctl.config.sections import Beta
from plmctl.optimizers.base import Optimizer

if TYPE_CHECKING:
    import torch
    from torch import nn


class Config(OptimizerConfig):
    """Muon: orthogonalized momentum for hidden matrices; AdamW for embeddings, norms and heads."""

    name: Literal["muon"] = "muon"
    """Muon (Jordan et al., 2024), scaled as AdamW (Liu et al., 2025, arXiv:2502.16982)."""
    lr: float = Field(default=6e-4, gt=0)
    """Peak learning rate of both: Muon's update has the root mean square of AdamW's."""
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Muon's Nesterov momentum."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """AdamW's decay of the running means of the gradient and of its square."""
    eps: float = Field(default=1e-8, gt=0)
    """AdamW: added to the root of the mean of squares."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Weight decay of matrices and embeddings; biases and norms have none."""


class Muon(Optimizer[Config], config=Config):
    """PyTorch's Muon and AdamW as one optimizer."""

    def make(self, network: nn.Module, *, fused: bool) -> torch.optim.Optimizer:
        """See the base class; AdamW has a fused kernel."""
        from plmctl.optimizers._updates import MuonAndAdamW, decay_groups, hidden_matrices

        config, hidden = self.config, hidden_matrices(network)
        return MuonAndAdamW(
            {
                "params": hidden,
                "lr": config.lr,
                "momentum": config.momentum,
                "weight_decay": config.weight_decay,
                "adjust_lr_fn": "match_rms_adamw",
            },
            decay_groups(network, config.weight_decay, without=hidden),
            {"lr": config.lr, "betas": config.betas, "eps": config.eps, "fused": fused},
        )
