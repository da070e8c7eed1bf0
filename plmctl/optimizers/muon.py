"""Muon (Jordan et al., 2024) for the hidden matrices, AdamW for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

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
    """Peak learning rate: Muon's update has the root mean square of AdamW's."""
    adamw_lr: float | None = Field(default=None, gt=0)
    """Peak learning rate of embeddings, norms and heads; empty: `lr`."""
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Muon's Nesterov momentum."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """AdamW's decay of the running means of the gradient and of its square."""
    eps: float = Field(default=1e-8, gt=0)
    """AdamW: added to the root of the mean of squares."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Weight decay of matrices and embeddings; biases and norms have none."""


class Muon(Optimizer[Config], config=Config):
    """Muon and PyTorch's AdamW as one optimizer.

    GPT's fused matrix of query, key and value counts as three. A matrix that layers share (ALBERT)
    has one update, from the sum of their gradients. ELMo's LSTM weights have three dimensions, and
    are left to AdamW.
    """

    STATE_BYTES = 4
    SHARDS = False  # an update needs the whole matrix
    LAYER_DECAY = False

    def make(self, network: nn.Module, *, fused: bool) -> torch.optim.Optimizer:
        """See the base class."""
        from plmctl.optimizers._groups import decay_groups
        from plmctl.optimizers._muon import (
            MuonAndAdamW,
            MuonAndAdamWOnGpu,
            fused_matrices,
            hidden_matrices,
        )

        config, hidden = self.config, hidden_matrices(network)
        fused_ids = {id(p) for p in fused_matrices(network)}
        settings: dict[str, Any] = {
            "lr": config.lr,
            "momentum": config.momentum,
            "weight_decay": config.weight_decay,
        }
        groups: list[dict[str, Any]] = [
            {**settings, "params": [p for p in hidden if id(p) not in fused_ids], "pieces": 1},
            {**settings, "params": [p for p in hidden if id(p) in fused_ids], "pieces": 3},
        ]
        # The loop multiplies the schedule's learning rate, of which `lr` is the peak, by a scale.
        scale = 1.0 if config.adamw_lr is None else config.adamw_lr / config.lr
        rest = decay_groups(network, config.weight_decay, without=hidden)
        kind = MuonAndAdamWOnGpu if fused else MuonAndAdamW
        return kind(
            [group for group in groups if group["params"]],
            [{**group, "lr": scale * config.lr, "scale": scale} for group in rest],
            {"lr": config.lr, "betas": config.betas, "eps": config.eps, "fused": fused},
        )
