"""Adafactor (Shazeer and Stern, 2018, arXiv:1804.04235) as T5 uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from plmctl.config.base import OptimizerConfig
from plmctl.optimizers.base import Optimizer

if TYPE_CHECKING:
    import torch
    from torch import nn


class Config(OptimizerConfig):
    """Adafactor: squares kept by rows and columns, no momentum, updates relative to the weights."""

    name: Literal["adafactor"] = "adafactor"
    """Adafactor (Shazeer and Stern, 2018, arXiv:1804.04235)."""
    lr: float = Field(default=0.01, gt=0)
    """Peak relative step; with schedule inverse_sqrt and plateau 10k that of T5."""
    clip: float | None = Field(default=None, gt=0)
    """Largest global norm of the gradient; T5 has none: clip_threshold bounds each update."""
    eps: tuple[float, float] = (1e-30, 1e-3)
    """Added to the squared gradient; smallest root mean square that scales a step."""
    clip_threshold: float = Field(default=1.0, gt=0)
    """Largest root mean square of a tensor's update, before the step size."""
    decay_rate: float = Field(default=0.8, gt=0)
    """The squares' mean decays by 1 - t^-decay_rate at update t."""
    scale_parameter: bool = True
    """Multiply the step by the root mean square of the tensor."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of matrices and embeddings; T5 has none."""


class Adafactor(Optimizer[Config], config=Config):
    """transformers' Adafactor, its step size from our schedule.

    PyTorch's own differs from the paper: the learning rate is capped at 1/sqrt(t), and the small
    constant bounds the squares from below instead of being added.
    """

    STATE_BYTES = 0  # sums of rows and columns alone

    def make(self, network: nn.Module, *, fused: bool) -> torch.optim.Optimizer:
        """See the base class."""
        from plmctl.models.sharding import is_sharded
        from plmctl.optimizers._adafactor import AdafactorOfT5, AdafactorOnGpu
        from plmctl.optimizers._groups import decay_groups

        kind = AdafactorOnGpu if fused and not is_sharded(network) else AdafactorOfT5
        return kind(
            decay_groups(network, self.config.weight_decay),
            lr=self.config.lr,
            eps=self.config.eps,
            clip_threshold=self.config.clip_threshold,
            decay_rate=-self.config.decay_rate,
            scale_parameter=self.config.scale_parameter,
            relative_step=False,
        )
