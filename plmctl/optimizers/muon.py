"""Muon (Jordan et al., 2024) for the hidden matrices, AdamW for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from plmctl.config.base import OptimizerConfig
from plmctl.config.sections import Beta

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class Config(OptimizerConfig):
    """Muon: orthogonalized momentum for hidden matrices; AdamW for embeddings, norms and heads."""

    name: Literal["muon"] = "muon"
    """Muon (Jordan et al., 2024), scaled to AdamW's rate (Liu et al., 2025, arXiv:2502.16982)."""
    lr: float = Field(default=6e-4, gt=0)
    """Peak learning rate of both: Muon's update has the root mean square of AdamW's."""
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Of Muon, Nesterov's."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Of AdamW: decay of the running means of the gradient and of its square."""
    eps: float = Field(default=1e-8, gt=0)
    """Of AdamW: added to the root of the squares' mean."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Of matrices and embeddings; biases and norms are not decayed."""


def make(config: Config, network: nn.Module, *, fused: bool) -> Optimizer:
    """PyTorch's Muon and AdamW as one optimizer."""
    from plmctl.optimizers._updates import MuonAndAdamW, decay_groups, hidden_matrices

    hidden = hidden_matrices(network)
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
