"""LAMB (You et al., 2020, arXiv:1904.00962): AdamW with a rate a matrix, for large batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from plmctl.config.base import OptimizerConfig
from plmctl.config.sections import Beta

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class Config(OptimizerConfig):
    """LAMB: AdamW whose update of each matrix has the length of the matrix."""

    name: Literal["lamb"] = "lamb"
    """LAMB (You et al., 2020, arXiv:1904.00962)."""
    lr: float = Field(default=1.76e-3, gt=0)
    """Peak learning rate; the default is ALBERT's for batches of 4,096."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay of the running means of the gradient and of its square."""
    eps: float = Field(default=1e-6, gt=0)
    """Added to the root of the squares' mean."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Of matrices and embeddings; biases and norms have no decay and no rate of their own."""
    bias_correction: bool = False
    """false: as ALBERT's code; true: as the paper."""


def make(config: Config, network: nn.Module, *, fused: bool) -> Optimizer:
    """LAMB, the layerwise rate on what is decayed, as google-research/albert (lamb_optimizer)."""
    from plmctl.optimizers._updates import Moments, decay_groups

    matrices, *rest = decay_groups(network, config.weight_decay)
    return Moments(
        [{**matrices, "layerwise": True}, *rest],
        config.lr,
        betas=config.betas,
        eps=config.eps,
        bias_correction=config.bias_correction,
    )
