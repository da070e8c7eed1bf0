"""The configs of ``plmctl eval``: of an evaluation, and of a suite of finetunings."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plmctl.config.base import AnyMeasure, Model, Text
from plmctl.config.sections import ComputeConfig


class EvalComputeConfig(ComputeConfig):
    """The device and how it computes."""

    precision: Literal["auto", "fp32", "bf16", "fp16"] = "fp32"
    """fp32 whatever the device and the model folder, so that scores do not depend on the card and
    near ties are not decided by rounding; auto: bf16 on a CUDA device that has it, else fp32."""


class EvalConfig(Model):
    """Evaluate a model folder."""

    run: Text
    """The folder for the results."""
    seed: int = Field(default=42, ge=0)
    """Decides masks and pairs."""
    model: Text
    """A model folder or Hub id."""
    measures: tuple[AnyMeasure, ...] = Field(min_length=1)
    """What is asked of the model, each with its own data."""
    batch_size: int = Field(default=32, ge=1)
    """Rows at once; changes no figure."""
    compute: EvalComputeConfig = EvalComputeConfig()


class SuiteConfig(Model):
    """A suite of finetunings, as ``plmctl eval MODEL --suite NAME`` was asked for it.

    Tasks and seeds are not among it: the same folder takes more of them.
    """

    run: Text
    """The folder of all its runs and of its table."""
    suite: Text
    """Its name."""
    model: Text
    """The pretrained folder or Hub id."""
    data: Text | None = None
    """The data directory; empty: the recipes' own, from the Hub."""
    settings: tuple[Text, ...] = ()
    """What was set otherwise than in the recipes, as KEY=VALUE or TASK.KEY=VALUE."""
    grid: bool = False
    """Whether the recipes' grids were tried."""
