"""The config of ``plmctl eval``."""

from typing import TYPE_CHECKING

from pydantic import Field

from plmctl.config.base import Model
from plmctl.config.members import MeasureConfig
from plmctl.config.run import ComputeConfig
from plmctl.config.union import union_of

if TYPE_CHECKING:
    AnyMeasure = MeasureConfig
else:
    AnyMeasure = union_of("evaluation.measures", "name")


class EvalConfig(Model):
    """Evaluate a model folder."""

    run: str
    """The folder for the results."""
    seed: int = Field(default=42, ge=0)
    model: str
    """A model folder or Hub id."""
    measures: tuple[AnyMeasure, ...] = Field(min_length=1)
    batch_size: int = Field(default=32, ge=1)
    compute: ComputeConfig = ComputeConfig()
