"""The config of ``plmctl pretrain``."""

from __future__ import annotations

from abc import ABC
from typing import Any

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import InitErrorDetails

from plmctl import registry
from plmctl.config.base import (
    AnyModel,
    AnyObjective,
    AnyOptimizer,
    Model,
    Text,
)
from plmctl.config.sections import (
    CheckpointConfig,
    ComputeConfig,
    DataConfig,
    DivergenceConfig,
    LaunchConfig,
    LogConfig,
    OptimConfig,
    PositiveOrAuto,
    ScheduleConfig,
)
from plmctl.config.units import Count


def _published_objective(before: dict[str, Any]) -> Any:
    """The objective of the family's paper, with its defaults."""
    model = before.get("model")
    if model is None:  # the model's own mistake is reported; nothing to add here
        return None
    name: str = registry.member("families", model.family, ABC).OBJECTIVE  # type: ignore[attr-defined]  # of a Family, which stands above configs
    try:
        return registry.load("objectives", name).Config(name=name)
    except ValidationError:  # it has a key without a default, such as a teacher
        needed = InitErrorDetails(type="missing", loc=("objective",), input=before)
        raise ValidationError.from_exception_data("PretrainConfig", [needed]) from None


class Phase(Model):
    """Steps at one sequence length."""

    seq_len: int = Field(ge=8)
    """Tokens a sequence, special ones included."""
    steps: Count = Field(ge=1)
    """Updates of the weights."""


class BatchRamp(Model):
    """A batch that grows from step to step, linearly in the tokens seen (GPT-3)."""

    start: int = Field(ge=1)
    """Sequences of the first step; GPT-3's 32k tokens are 16 of length 2,048."""
    tokens: Count = Field(ge=1)
    """Tokens until the batch is `batch_size`; GPT-3's: 4 to 12 billion by size."""


class TrainConfig(Model):
    """How much is trained."""

    batch_size: int = Field(default=256, ge=1)
    """Sequences a step, over all devices and micro-batches."""
    micro_batch_size: PositiveOrAuto = "auto"
    """Sequences a device a forward; never changes the result."""
    batch_ramp: BatchRamp | None = None
    """Begin with a smaller batch; empty: every step has `batch_size`."""
    phases: tuple[Phase, ...] = Field(min_length=1)
    """One after the other, as BERT's 90 % of the steps at length 128, then 10 % at 512."""

    @field_validator("batch_ramp")
    @classmethod
    def _grows(cls, ramp: BatchRamp | None, info: ValidationInfo) -> BatchRamp | None:
        full = info.data.get("batch_size")
        if ramp is not None and full is not None and ramp.start > full:
            raise ValueError(f"expected a start of at most the batch size, {full}")
        return ramp

    @property
    def steps(self) -> int:
        """Steps of all phases."""
        return sum(phase.steps for phase in self.phases)


class PretrainConfig(Model):
    """Pretrain a model on raw text."""

    run: Text
    """The run folder."""
    seed: int = Field(default=42, ge=0)
    """Decides the weights, the order of the text, pairs, masks and dropout."""
    tokenizer: Text
    """A tokenizer folder or Hub id."""
    model: AnyModel
    """The network: a family, a size, and any field of it."""
    data: DataConfig
    objective: AnyObjective = Field(default_factory=_published_objective)
    """What it learns from; left out: the objective of the family's paper."""
    train: TrainConfig
    optim: AnyOptimizer = OptimConfig()
    """The optimizer; without a name AdamW."""
    schedule: ScheduleConfig = ScheduleConfig()
    compute: ComputeConfig = ComputeConfig()
    launch: LaunchConfig = LaunchConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()
    divergence: DivergenceConfig = DivergenceConfig()
