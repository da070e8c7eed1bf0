"""The optimizer and its learning rate."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from plmctl.config.base import Model
from plmctl.config.units import StepsOrShare

Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Model):
    """What every optimizer has (``plmctl/optimizers``)."""

    name: str
    lr: float = Field(default=1e-4, gt=0)
    """Peak learning rate."""
    clip: float | None = Field(default=1.0, gt=0)
    """Largest global norm of the gradient; empty: no clipping."""


class OptimConfig(OptimizerConfig):
    """AdamW, the default."""

    name: Literal["adamw"] = "adamw"
    """AdamW (Loshchilov and Hutter, 2019, arXiv:1711.05101)."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay of the running means of the gradient and of its square."""
    eps: float = Field(default=1e-6, gt=0)
    """Added to the root of the squares' mean."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Times the weights and the learning rate, taken off the weights (decoupled)."""
    decay: Literal["matrices", "all"] = "matrices"
    """matrices: no decay of biases and norms (BERT); all: of everything (RoBERTa in fairseq)."""
    bias_correction: bool = True
    """false: as the code of BERT, whose first updates are larger (3.2 times Adam's at step 1)."""


class ScheduleConfig(Model):
    """The learning rate over the steps."""

    name: Literal["linear", "cosine", "constant", "inverse_sqrt", "wsd", "polynomial"] = "linear"
    """How it falls after the warmup; wsd: it stays, then falls (warmup, stable, decay); polynomial:
    (1 - step/steps)^power from step 0, which the warmup replaces (the code of BERT and ALBERT)."""
    warmup: StepsOrShare = StepsOrShare(0)
    """Steps (1000) or share of all steps (6%) of linear rise."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """The schedule ends at this share of the peak."""
    decay: StepsOrShare = StepsOrShare(0.1)
    """wsd only: the last steps, which fall linearly."""
    decay_until: StepsOrShare = StepsOrShare(1.0)
    """linear, cosine, polynomial: where the end is reached, and kept from there on: a step, a share
    of all steps, or tokens (GPT-3: 260B tokens of 300B). Where a mark of the schedule is in tokens,
    it goes by the tokens seen (sequences times their length), else by steps."""
    plateau: StepsOrShare = StepsOrShare(0)
    """inverse_sqrt only: 1/sqrt(max(step, plateau)), which is the peak until then (T5: 10k)."""
    power: float = Field(default=1.0, gt=0)
    """polynomial only: 1 is a straight line."""

    @field_validator("decay_until")
    @classmethod
    def _ends(cls, until: StepsOrShare) -> StepsOrShare:
        if until.tokens == 0 or until.root == 0:
            raise ValueError("expected more than 0")
        return until
