"""Adagrad (Duchi et al., 2011) as ELMo uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from plmctl.config.base import OptimizerConfig
from plmctl.optimizers.base import Optimizer

if TYPE_CHECKING:
    import torch
    from torch import nn


class Config(OptimizerConfig):
    """Adagrad: each weight's learning rate falls with the sum of its squared gradients."""

    name: Literal["adagrad"] = "adagrad"
    """Adagrad (Duchi et al., 2011)."""
    lr: float = Field(default=0.2, gt=0)
    """Peak learning rate; the default is ELMo's."""
    clip: float | None = Field(default=10.0, gt=0)
    """Largest global norm of the gradient; empty: no clipping."""
    initial_accumulator: float = Field(default=1.0, gt=0)
    """Initial value of the sum of squares."""
    eps: float = Field(default=0.0, ge=0)
    """Added to the root of the sum; TensorFlow's Adagrad, which ELMo used, has none."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Added to the gradient of matrices and embeddings (L2, not decoupled)."""


class Adagrad(Optimizer[Config], config=Config):
    """PyTorch's Adagrad."""

    STATE_BYTES = 4

    def make(self, network: nn.Module, *, fused: bool) -> torch.optim.Optimizer:
        """See the base class."""
        import torch

        from plmctl.models.sharding import is_sharded
        from plmctl.optimizers._adagrad import AdagradOnGpu
        from plmctl.optimizers._groups import decay_groups

        kind = AdagradOnGpu if fused and not is_sharded(network) else torch.optim.Adagrad
        return kind(
            decay_groups(network, self.config.weight_decay),
            lr=self.config.lr,
            initial_accumulator_value=self.config.initial_accumulator,
            eps=self.config.eps,
        )
