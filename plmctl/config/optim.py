"""The optimizer and its learning rate."""

from typing import Literal

from pydantic import Field

from plmctl.config.base import Model
from plmctl.config.units import StepsOrShare


class OptimConfig(Model):
    """The optimizer."""

    name: Literal["adamw"] = "adamw"
    lr: float = Field(default=1e-4, gt=0)
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(default=1e-6, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    """Of matrices and embeddings; biases and LayerNorm are never decayed."""
    clip: float | None = Field(default=1.0, gt=0)
    """Largest global norm of the gradient."""


class ScheduleConfig(Model):
    """The learning rate over the steps."""

    name: Literal["linear", "cosine", "constant", "inverse_sqrt", "wsd"] = "linear"
    warmup: StepsOrShare = StepsOrShare(value=0)
    """Steps (1000) or share of all steps (6%) of linear rise."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """The schedule ends at this share of the peak."""
    decay: StepsOrShare = StepsOrShare(value=0.1)
    """wsd only: the last steps, which fall linearly."""
