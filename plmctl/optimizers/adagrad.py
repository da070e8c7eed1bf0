"""Adagrad (Duchi et al., 2011) as ELMo uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from plmctl.config.base import OptimizerConfig

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class Config(OptimizerConfig):
    """Adagrad: the rate of each weight falls with the sum of its squared gradients."""

    name: Literal["adagrad"] = "adagrad"
    """Adagrad (Duchi et al., 2011)."""
    lr: float = Field(default=0.2, gt=0)
    """Peak learning rate; the default is ELMo's."""
    clip: float | None = Field(default=10.0, gt=0)
    """Largest global norm of the gradient; empty: no clipping."""
    initial_accumulator: float = Field(default=1.0, gt=0)
    """The sum of squares to begin with."""
    eps: float = Field(default=0.0, ge=0)
    """Added to the root of the sum; TensorFlow's Adagrad, which ELMo used, has none."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Added to the gradient of matrices and embeddings (L2, not decoupled)."""


def make(config: Config, network: nn.Module, *, fused: bool) -> Optimizer:
    """PyTorch's Adagrad."""
    from torch.optim import Adagrad

    from plmctl.optimizers._updates import decay_groups

    return Adagrad(
        decay_groups(network, config.weight_decay),
        lr=config.lr,
        initial_accumulator_value=config.initial_accumulator,
        eps=config.eps,
    )
