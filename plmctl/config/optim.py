"""The optimizer and its learning rate."""

from typing import Annotated, Literal

from pydantic import Field

from plmctl.config.base import Model
from plmctl.config.units import StepsOrShare

Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimConfig(Model):
    """The optimizer."""

    name: Literal["adamw"] = "adamw"
    """AdamW (Loshchilov and Hutter, 2019, arXiv:1711.05101)."""
    lr: float = Field(default=1e-4, gt=0)
    """Peak learning rate."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay of the running means of the gradient and of its square."""
    eps: float = Field(default=1e-6, gt=0)
    """Added to the root of the squares' mean."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Of matrices and embeddings; biases and LayerNorm are never decayed."""
    clip: float | None = Field(default=1.0, gt=0)
    """Largest global norm of the gradient; empty: no clipping."""


class ScheduleConfig(Model):
    """The learning rate over the steps."""

    name: Literal["linear", "cosine", "constant", "inverse_sqrt", "wsd"] = "linear"
    """How it falls after the warmup; wsd: it stays, then falls (warmup, stable, decay)."""
    warmup: StepsOrShare = StepsOrShare(0)
    """Steps (1000) or share of all steps (6%) of linear rise."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """The schedule ends at this share of the peak."""
    decay: StepsOrShare = StepsOrShare(0.1)
    """wsd only: the last steps, which fall linearly."""
