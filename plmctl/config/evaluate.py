"""The config of ``plmctl eval``."""

from typing import Annotated, Literal

from pydantic import Field

from plmctl.config.base import Model, Text
from plmctl.config.members import MeasureConfig
from plmctl.config.run import ComputeConfig
from plmctl.config.union import MembersOf

AnyMeasure = Annotated[MeasureConfig, MembersOf("evaluation.measures", "name")]


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
