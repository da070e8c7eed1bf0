"""StableAdamW (Wortsman et al., 2023, arXiv:2304.13013): AdamW without spikes, without clipping."""

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
    """StableAdamW: AdamW whose rate falls for a tensor with an unusually large gradient."""

    name: Literal["stable_adamw"] = "stable_adamw"
    """StableAdamW (Wortsman et al., 2023, arXiv:2304.13013), as ModernBERT trains."""
    lr: float = Field(default=8e-4, gt=0)
    """Peak learning rate; the default is ModernBERT-base's."""
    clip: float | None = Field(default=None, gt=0)
    """Largest norm of the gradient; empty: not clipped, for which this optimizer is made."""
    betas: tuple[Beta, Beta] = (0.9, 0.98)
    """Decay of the running means of the gradient and of its square."""
    eps: float = Field(default=1e-6, gt=0)
    """Added to the square root of the mean of the squares."""
    weight_decay: float = Field(default=1e-5, ge=0)
    """What a matrix loses in a step at the peak rate: it is not multiplied by ``lr``, only by the
    schedule. AdamW's weight decay times its rate."""


class StableAdamW(Optimizer[Config], config=Config):
    """AdamW with Adafactor's clipping of updates, as ModernBERT's code has it."""

    def make(self, network: nn.Module, *, fused: bool) -> torch.optim.Optimizer:
        """See the base class."""
        from plmctl.models.sharding import is_sharded
        from plmctl.optimizers._groups import decay_groups
        from plmctl.optimizers._stable import Stable, StableOnGpu

        config = self.config
        kind = StableOnGpu if fused and not is_sharded(network) else Stable
        return kind(
            decay_groups(network, config.weight_decay),
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
        )
