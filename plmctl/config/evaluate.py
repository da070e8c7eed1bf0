"""The config of ``plmctl eval``."""

from typing import Annotated

from pydantic import Field

from plmctl.config.base import Model, Text
from plmctl.config.members import MeasureConfig
from plmctl.config.run import ComputeConfig
from plmctl.config.union import MembersOf

AnyMeasure = Annotated[MeasureConfig, MembersOf("evaluation.measures", "name")]


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
    compute: ComputeConfig = ComputeConfig()
