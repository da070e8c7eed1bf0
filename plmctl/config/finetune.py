"""The config of ``plmctl finetune``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from plmctl.config.base import (
    AnyOptimizer,
    AnyTask,
    Model,
    OptimizerConfig,
    Text,
)
from plmctl.config.sections import (
    CheckpointConfig,
    ComputeConfig,
    DivergenceConfig,
    LaunchConfig,
    LogConfig,
    OptimConfig,
    PositiveOrAuto,
    ScheduleConfig,
    TableConfig,
)
from plmctl.config.units import StepsOrShare

Value = str | int | float | bool | None

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
    group_by_length: bool = True
    """Steps of rows that are alike in length, which saves most of the padding; false: any rows, as
    in the papers and the recipes in their names."""
    keep: Literal["last", "best"] = "last"
    """The weights that are saved: those after the last step, or the best by `metric`."""
    patience: int | None = Field(default=None, ge=1)
    """End early after this many validations without a better `metric`; empty: never."""
    metric: Text | None = None
    """What `keep`, `patience` and the choice from a grid go by: a figure of the task on the
    validation rows, or loss; empty: the task's own (accuracy, F1, Spearman's correlation ...)."""
    validate_every: int | None = Field(default=None, ge=1)
    """Steps between the validations that `keep` and `patience` go by; empty: an epoch."""
    freeze: Literal["embeddings", "all"] | Annotated[int, Field(ge=0)] | None = None
    """What is not trained: the embeddings; them and this many of the lowest layers; or them and all
    layers."""
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    """Each layer learns at this share of the rate of the layer above it, the embeddings slowest."""
    reinit_layers: int = Field(default=0, ge=0)
    """Top layers, and the pooler or norm above them, that begin from fresh weights."""


class LoraConfig(Model):
    """Low-rank adapters (LoRA, arXiv:2106.09685) in place of training the layers' own weights."""

    rank: int = Field(default=8, ge=1)
    """Of the update of each matrix."""
    alpha: int = Field(default=16, ge=1)
    """The update counts alpha / rank times."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Of the adapter's input."""
    targets: tuple[Text, ...] = ()
    """Names of the linear layers that get one; empty: query and value, or what holds them."""


# A class, not another default of the same one: who sets min_lr_ratio alone keeps the warmup.
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
    lora: LoraConfig | None = None
    """Train adapters, the head, and what stands above the layers; they are merged into the saved
    model. Needs `pip install 'plmctl[peft]'`."""
    grid: dict[str, Annotated[tuple[Value, ...], Field(min_length=1)]] = {}
    """With `--grid`: keys and the values to try, as in `optim.lr: [5e-5, 3e-5]`; every combination
    is a run, and the best is chosen on the validation rows."""
    optim: AnyOptimizer = OptimConfig(lr=_LR)
    """The optimizer; its learning rate is 3e-5 if none is given."""
    schedule: FinetuneScheduleConfig = FinetuneScheduleConfig()
    compute: ComputeConfig = ComputeConfig()
    launch: LaunchConfig = LaunchConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()
    divergence: DivergenceConfig = DivergenceConfig()

    @field_validator("optim")
    @classmethod
    def _smaller_rate(cls, optim: OptimizerConfig) -> OptimizerConfig:
        """The rate of finetuning where none is given: the optimizers' own is for pretraining."""
        given = "lr" in optim.model_fields_set
        return optim if given else optim.model_copy(update={"lr": _LR})

    @field_validator("launch")
    @classmethod
    def _whole(cls, launch: LaunchConfig) -> LaunchConfig:
        if launch.strategy != "ddp":
            raise ValueError(f"expected strategy ddp: {launch.strategy} is for pretraining only")
        return launch

    @model_validator(mode="after")
    def _one_way_to_spare(self) -> FinetuneConfig:
        if self.lora is not None and (self.train.freeze is not None or self.train.reinit_layers):
            raise ValueError("expected `lora`, or `train.freeze` and `train.reinit_layers`")
        if self.train.layer_decay < 1 and self.optim.name == "muon":
            raise ValueError("expected an optimizer other than muon with `train.layer_decay`")
        return self
