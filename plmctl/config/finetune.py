"""The config of ``plmctl finetune``."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from plmctl.config.base import Model, Text
from plmctl.config.data import TableConfig
from plmctl.config.divergence import DivergenceConfig
from plmctl.config.members import TaskConfig
from plmctl.config.optim import OptimConfig, OptimizerConfig, ScheduleConfig
from plmctl.config.run import (
    CheckpointConfig,
    ComputeConfig,
    LaunchConfig,
    LogConfig,
    PositiveOrAuto,
)
from plmctl.config.union import MembersOf
from plmctl.config.units import StepsOrShare

AnyOptimizer = Annotated[OptimizerConfig, MembersOf("optimizers", "name", "adamw")]
AnyTask = Annotated[TaskConfig, MembersOf("tasks", "name")]

_LR = 3e-5  # of AdamW


class FinetuneTrainConfig(Model):
    """How much is trained."""

    epochs: float = Field(default=3, gt=0)
    """Passes over the training rows; 0.5 is half of one."""
    batch_size: int = Field(default=32, ge=1)
    """Rows a step, over all devices and micro-batches."""
    micro_batch_size: PositiveOrAuto = "auto"
    """Rows a device a forward; never changes the result."""
    max_length: int = Field(default=128, ge=8)
    """In tokens; longer rows are cut."""
    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout while finetuning; empty: what the model was pretrained with."""


# Classes, not other defaults of the same ones: who sets weight_decay alone keeps these.
class FinetuneScheduleConfig(ScheduleConfig):
    """The learning rate over the steps."""

    warmup: StepsOrShare = StepsOrShare(0.1)
    """Steps (1000) or share of all steps (6%) of linear rise."""

    @field_validator("warmup", "decay")
    @classmethod
    def _no_tokens(cls, mark: StepsOrShare) -> StepsOrShare:
        if mark.tokens is not None:
            raise ValueError("expected steps such as 1000, or a share such as 6%")
        return mark


class FinetuneConfig(Model):
    """Finetune a pretrained model on labelled rows."""

    run: Text
    """The run folder."""
    seed: int = Field(default=42, ge=0)
    """Decides the new head's weights, the order of the rows and dropout."""
    model: Text
    """A model folder or Hub id."""
    init: Literal["pretrained", "random"] = "pretrained"
    """random: the same network from random weights, to see what pretraining bought."""
    task: AnyTask
    """What the rows ask for."""
    data: TableConfig
    train: FinetuneTrainConfig = FinetuneTrainConfig()
    optim: AnyOptimizer = OptimConfig(lr=_LR)
    """The optimizer; without a name AdamW, whose lr is 3e-5 here."""
    schedule: FinetuneScheduleConfig = FinetuneScheduleConfig()
    compute: ComputeConfig = ComputeConfig()
    launch: LaunchConfig = LaunchConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()
    divergence: DivergenceConfig = DivergenceConfig()

    @field_validator("optim")
    @classmethod
    def _rate(cls, optim: OptimizerConfig) -> OptimizerConfig:
        """A rate for finetuning, where AdamW is given none."""
        if isinstance(optim, OptimConfig) and "lr" not in optim.model_fields_set:
            return optim.model_copy(update={"lr": _LR})
        return optim
