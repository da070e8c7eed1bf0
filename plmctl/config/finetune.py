"""The config of ``plmctl finetune``."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from plmctl.config.base import Model
from plmctl.config.data import TableConfig
from plmctl.config.members import TaskConfig
from plmctl.config.optim import OptimConfig, ScheduleConfig
from plmctl.config.run import CheckpointConfig, ComputeConfig, LaunchConfig, LogConfig
from plmctl.config.union import union_of
from plmctl.config.units import StepsOrShare

if TYPE_CHECKING:
    AnyTask = TaskConfig
else:
    AnyTask = union_of("tasks", "name")


class FinetuneTrainConfig(Model):
    """How much is trained."""

    epochs: float = Field(default=3, gt=0)
    batch_size: int = Field(default=32, ge=1)
    """Rows a step, over all devices and micro-batches."""
    micro_batch_size: int | Literal["auto"] = "auto"
    """Rows a device a forward; never changes the result."""
    max_length: int = Field(default=128, ge=8)
    """Longer rows are cut."""


class FinetuneConfig(Model):
    """Finetune a pretrained model on labelled rows."""

    run: str
    """The run folder."""
    seed: int = Field(default=42, ge=0)
    model: str
    """A model folder or Hub id."""
    init: Literal["pretrained", "random"] = "pretrained"
    """random: the same network from random weights, to see what pretraining bought."""
    task: AnyTask
    data: TableConfig
    train: FinetuneTrainConfig = FinetuneTrainConfig()
    optim: OptimConfig = OptimConfig(lr=3e-5)
    schedule: ScheduleConfig = ScheduleConfig(warmup=StepsOrShare(value=0.1))
    compute: ComputeConfig = ComputeConfig()
    launch: LaunchConfig = LaunchConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()
