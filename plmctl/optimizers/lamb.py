"""LAMB (You et al., 2020, arXiv:1904.00962): AdamW with a trust ratio per matrix."""

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
    """LAMB: AdamW whose update of each matrix has the length of the matrix."""

    name: Literal["lamb"] = "lamb"
    """LAMB (You et al., 2020, arXiv:1904.00962)."""
    lr: float = Field(default=1.76e-3, gt=0)
    """Peak learning rate; the default is ALBERT's for batches of 4,096."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay of the running means of the gradient and of its square."""
    eps: float = Field(default=1e-6, gt=0)
    """Added to the root of the mean of squares."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Weight decay of matrices and embeddings; others have neither it nor a trust ratio."""
    bias_correction: bool = False
    """false: as ALBERT's code; true: as the paper."""


class Lamb(Optimizer[Config], config=Config):
    """LAMB: a learning rate for each tensor with weight decay, as in google-research/albert."""

    def make(self, network: nn.Module, *, fused: bool) -> torch.optim.Optimizer:
        """See the base class."""
        from plmctl.models.sharding import is_sharded
        from plmctl.optimizers._groups import decay_groups
        from plmctl.optimizers._moments import Moments, MomentsOnGpu

        matrices, *rest = decay_groups(network, self.config.weight_decay)
        kind = MomentsOnGpu if fused and not is_sharded(network) else Moments
        return kind(
            [{**matrices, "layerwise": True}, *rest],
            lr=self.config.lr,
            betas=self.config.betas,
            eps=self.config.eps,
            bias_correction=self.config.bias_correction,
        )
