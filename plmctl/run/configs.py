"""The configs of the four kinds of command: tokenizer, pretraining, finetuning, evaluation.

Here the fields that name a family, an objective, an optimizer, a task or a measure get their type:
the configs of all members of a folder. Everything in ``plmctl/config`` works without members.
``load`` reads a config of a kind from a file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, overload

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails

from plmctl import registry
from plmctl.config import tokenizer
from plmctl.config.base import (
    AnyFolder,
    MeasureConfig,
    MembersOf,
    Model,
    ModelConfig,
    NewPath,
    ObjectiveConfig,
    OptimizerConfig,
    TaskConfig,
    Text,
)
from plmctl.config.load import KINDS, Kind, parse, schema_of
from plmctl.config.sections import (
    CheckpointConfig,
    ComputeConfig,
    DataConfig,
    DivergenceConfig,
    LaunchConfig,
    LogConfig,
    LoraConfig,
    OptimConfig,
    PositiveOrAuto,
    PrepareConfig,
    PretrainLogConfig,
    ScheduleConfig,
    TableConfig,
    TrainConfig,
)
from plmctl.config.units import Mark, StepsOrShare
from plmctl.errors import ConfigError, nearest
from plmctl.families.base import get_family, make_family
from plmctl.optimizers.base import get_optimizer

# --- The fields that name a member ---


def configs_of(folder: str) -> dict[str, type[BaseModel]]:
    """The config model of each member of a folder, by its name."""
    return {name: registry.load(folder, name).Config for name in registry.names(folder)}


AnyModel = Annotated[ModelConfig, MembersOf(partial(configs_of, "families"), "family")]
AnyObjective = Annotated[ObjectiveConfig, MembersOf(partial(configs_of, "objectives"), "name")]
AnyOptimizer = Annotated[
    OptimizerConfig, MembersOf(partial(configs_of, "optimizers"), "name", "adamw")
]
AnyTask = Annotated[TaskConfig, MembersOf(partial(configs_of, "tasks"), "name")]
AnyMeasure = Annotated[MeasureConfig, MembersOf(partial(configs_of, "measures"), "name")]


class KindConfig(Model):
    """A whole config. Its validator is built when it is first used, which imports the members."""

    model_config = ConfigDict(defer_build=True)


# --- Tokenizers ---


if TYPE_CHECKING:
    FamilyName = str
else:
    FamilyName = Literal[registry.names("families")]


class TokenizerConfig(tokenizer.TokenizerConfig):
    """Train a tokenizer on raw text."""

    family: FamilyName
    """The model family, which sets normalisation, special tokens and template."""

    @field_validator("family")
    @classmethod
    def _fits(cls, family: str, info: ValidationInfo) -> str:
        algorithm = info.data.get("algorithm", "")
        if algorithm and algorithm != get_family(family).TOKENIZER.ALGORITHM:
            fitting = [
                name
                for name in registry.names("families")
                if algorithm == get_family(name).TOKENIZER.ALGORITHM
            ]
            raise ValueError(f"expected {' or '.join(fitting)} with algorithm {algorithm}")
        return family

    @field_validator("pretokenized", "sentinels")
    @classmethod
    def _applies(cls, value: object, info: ValidationInfo) -> object:
        key, family = str(info.field_name), info.data.get("family")
        if family is None or value == cls.model_fields[key].default:
            return value
        if key not in get_family(family).TOKENIZER.OPTIONS:
            having = [
                name
                for name in registry.names("families")
                if key in get_family(name).TOKENIZER.OPTIONS
            ]
            raise ValueError(
                f"{key} is only supported with family {' or '.join(having)}; leave it out"
            )
        return value


# --- Pretraining ---


def _published_objective(before: dict[str, Any]) -> Any:
    """The objective of the family's paper, with its defaults."""
    model = before.get("model")
    if model is None:  # the mistake in `model` is reported already
        return None
    name = make_family(model).OBJECTIVE
    try:
        return registry.load("objectives", name).Config(name=name)
    except ValidationError:  # a key has no default, such as a teacher
        needed = InitErrorDetails(type="missing", loc=("objective",), input=before)
        raise ValidationError.from_exception_data("PretrainConfig", [needed]) from None


class PretrainConfig(KindConfig):
    """Pretrain a model on raw text."""

    run: NewPath
    """The run folder."""
    seed: int = Field(default=42, ge=0)
    """Seed of the weights, the order of the text, pairs, masks and dropout."""
    tokenizer: AnyFolder
    """A tokenizer folder or Hub id."""
    model: AnyModel
    """The network: a family, a size, and any of its fields."""
    data: DataConfig
    prepare: PrepareConfig = PrepareConfig()
    objective: AnyObjective = Field(default_factory=_published_objective)
    """The training objective; if left out, the objective of the family's paper."""
    train: TrainConfig
    optim: AnyOptimizer = OptimConfig()
    """The optimizer; without a name, AdamW."""
    schedule: ScheduleConfig = ScheduleConfig()
    compute: ComputeConfig = ComputeConfig()
    launch: LaunchConfig = LaunchConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: PretrainLogConfig = PretrainLogConfig()
    divergence: DivergenceConfig = DivergenceConfig()

    @property
    def plans_in_words(self) -> bool:
        """Whether a budget, a cap or a checkpoint is in words, which must be counted then."""
        budget, at = self.train.budget, self.checkpoint.at
        marks = () if isinstance(at, str) else at
        return (
            (budget is not None and budget.unit == "words")
            or self.train.max_words is not None
            or at == "babylm"
            or any(mark.unit == "words" for mark in marks)
        )

    def with_steps(self, steps: Sequence[int]) -> Self:
        """The same with a number of steps for each phase in place of a budget."""
        return self.model_copy(update={"train": self.train.with_steps(steps)})


# --- Finetuning ---


Value = str | int | float | bool | None

_LR = 3e-5  # of AdamW


class FinetuneTrainConfig(Model):
    """How much is trained."""

    epochs: float = Field(default=3, gt=0, le=1_000_000)
    """Passes over the training rows; 0.5 is half a pass."""
    batch_size: int = Field(default=32, ge=1)
    """Rows per step, over all devices and micro-batches."""
    micro_batch_size: PositiveOrAuto = "auto"
    """Rows per device and forward pass; never changes the result."""
    max_length: int = Field(default=128, ge=8)
    """Maximum length in tokens; longer rows are truncated."""
    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout while finetuning; empty: as in pretraining."""
    group_by_length: bool = True
    """Group rows of similar length in a step, which saves most of the padding; false: any rows, as
    in the papers and in the recipes named after them."""
    keep: Literal["last", "best"] = "last"
    """Which weights are saved: those of the last step, or the best by `metric`."""
    patience: int | None = Field(default=None, ge=1)
    """Stop early after this many validations without a better `metric`; empty: never."""
    metric: Text | None = None
    """The metric that decides `keep`, `patience` and the choice from a grid: a metric of the task
    on the validation rows, or loss; empty: the task's main metric (accuracy, F1, Spearman's
    correlation ...)."""
    validate_every: int | None = Field(default=None, ge=1)
    """Steps between validations for `keep` and `patience`; empty: one epoch."""
    freeze: Literal["embeddings", "all"] | Annotated[int, Field(ge=0)] | None = None
    """Weights that are not trained: the embeddings; a number: also that many of the lowest layers;
    all: the embeddings and all layers."""
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    """Ratio of each layer's learning rate to that of the layer above; lowest for the embeddings."""
    head_lr: float | None = Field(default=None, gt=0)
    """Learning rate of the task's head, where the network learns at `optim.lr`; empty: the same."""
    reinit_layers: int = Field(default=0, ge=0)
    """Number of top layers, with the pooler or norm above them, that start from new weights."""


# A subclass, so that the warmup keeps its default if only min_lr_ratio is set.
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


class FinetuneConfig(KindConfig):
    """Finetune a pretrained model on labelled rows."""

    run: NewPath
    """The run folder."""
    seed: int = Field(default=42, ge=0)
    """Seed of the new head's weights, the order of the rows and dropout."""
    model: AnyFolder
    """A model folder, a run folder with one, or a Hub id."""
    init: Literal["pretrained", "random"] = "pretrained"
    """random: the same network with random weights, to measure the effect of pretraining."""
    both_sides: bool = False
    """Decoders that were pretrained with `mntp`: each token sees those after it too, as GPT-BERT is
    finetuned. The saved folder says so (`is_causal: false`), and transformers reads it."""
    task: AnyTask
    """The task."""
    data: TableConfig
    train: FinetuneTrainConfig = FinetuneTrainConfig()
    lora: LoraConfig | None = None
    """Train adapters, the head, and everything above the layers; the adapters are merged into the
    saved model. Requires `pip install 'plmctl[peft]'`."""
    grid: dict[str, Annotated[tuple[Value, ...], Field(min_length=1)]] = {}
    """With `--grid`: keys and the values to try, as in `optim.lr: [5e-5, 3e-5]`; each combination
    is a run, and the validation rows decide the best."""
    optim: AnyOptimizer = OptimConfig(lr=_LR)
    """The optimizer; its learning rate is 3e-5 by default."""
    schedule: FinetuneScheduleConfig = FinetuneScheduleConfig()
    compute: ComputeConfig = ComputeConfig()
    launch: LaunchConfig = LaunchConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()
    divergence: DivergenceConfig = DivergenceConfig()

    @field_validator("optim")
    @classmethod
    def _smaller_rate(cls, optim: OptimizerConfig) -> OptimizerConfig:
        """The default learning rate of finetuning; the optimizers' default is for pretraining."""
        has_lr = "lr" in optim.model_fields_set
        return optim if has_lr else optim.model_copy(update={"lr": _LR})

    @field_validator("checkpoint")
    @classmethod
    def _at_steps(cls, checkpoint: CheckpointConfig) -> CheckpointConfig:
        at = checkpoint.at
        if at == "babylm" or any(mark.unit != "steps" for mark in at if isinstance(mark, Mark)):
            raise ValueError("`at` counts tokens and words in pretraining only; give steps, or log")
        return checkpoint

    @model_validator(mode="after")
    def _one_way_to_spare(self) -> FinetuneConfig:
        if self.lora is not None and (self.train.freeze is not None or self.train.reinit_layers):
            raise ValueError("expected `lora`, or `train.freeze` and `train.reinit_layers`")
        own_rates = self.train.layer_decay < 1 or self.train.head_lr is not None
        if own_rates and not get_optimizer(self.optim.name).LAYER_DECAY:
            raise ValueError(
                f"expected an optimizer other than {self.optim.name} with `train.layer_decay` and "
                "`train.head_lr`"
            )
        return self


# --- Evaluation ---


RunConfig = PretrainConfig | FinetuneConfig


class EvalComputeConfig(ComputeConfig):
    """The device, and how it computes."""

    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "fp32"
    """fp32 by default, so that scores do not depend on the device and rounding does not decide near
    ties; auto: bf16 on a CUDA device that supports it, otherwise fp32."""


class EvalConfig(KindConfig):
    """Evaluate a model folder."""

    run: NewPath
    """The folder for the results."""
    seed: int = Field(default=42, ge=0)
    """Seed of masks and pairs."""
    model: AnyFolder
    """A model folder, a run folder with one, or a Hub id."""
    measures: tuple[AnyMeasure, ...] = Field(min_length=1)
    """The measures, each with its own data."""
    batch_size: int = Field(default=32, ge=1)
    """Rows per forward pass; never changes a result."""
    both_sides: bool = False
    """Decoders that were pretrained with `mntp`: each token sees those after it too, and text is
    scored as by a masked model, one position earlier."""
    compute: EvalComputeConfig = EvalComputeConfig()


class SuiteConfig(Model):
    """A suite of finetunings: the arguments of ``plmctl suite MODEL NAME``.

    Without tasks and seeds: more of them can be added to the same folder.
    """

    run: NewPath
    """The folder of all its runs and of its table."""
    suite: Text
    """Its name."""
    model: Text
    """The pretrained folder or Hub id."""
    data: Text | None = None
    """The data directory; empty: the recipes' own, from the Hub."""
    settings: tuple[Text, ...] = ()
    """Overrides of the recipes, as KEY=VALUE or TASK.KEY=VALUE."""
    grid: bool = False
    """Whether the recipes' grids were tried."""


# --- Reading a config of a kind ---


_MODELS: dict[Kind, type[Model]] = {
    "tokenizer": TokenizerConfig,
    "pretrain": PretrainConfig,
    "finetune": FinetuneConfig,
    "eval": EvalConfig,
}


def model_of(kind: Kind) -> type[Model]:
    """The config model of a kind."""
    return _MODELS[kind]


@overload
def load(
    kind: Literal["tokenizer"], path: str | Path, overrides: Sequence[str] = ()
) -> TokenizerConfig: ...
@overload
def load(
    kind: Literal["pretrain"], path: str | Path, overrides: Sequence[str] = ()
) -> PretrainConfig: ...
@overload
def load(
    kind: Literal["finetune"], path: str | Path, overrides: Sequence[str] = ()
) -> FinetuneConfig: ...
@overload
def load(kind: Literal["eval"], path: str | Path, overrides: Sequence[str] = ()) -> EvalConfig: ...
@overload
def load(kind: Kind, path: str | Path, overrides: Sequence[str] = ()) -> Model: ...
def load(kind: Kind, path: str | Path, overrides: Sequence[str] = ()) -> Model:
    """The config of a kind in a file, with ``KEY=VALUE`` overrides; errors as ``parse``."""
    return parse(model_of(kind), path, overrides, kind)


def json_schema(kind: str) -> str:
    """The JSON Schema of a kind of config.

    Raises:
        ConfigError: No such kind.
    """
    for known in KINDS:
        if kind == known:
            return json.dumps(schema_of(model_of(known)), indent=2, ensure_ascii=False)
    raise ConfigError(f"no kind of config {kind!r}{nearest(kind, KINDS)}")
