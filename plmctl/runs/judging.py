"""What a finetuning run is judged by, and the validations that tell it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl.config.finetune import FinetuneConfig
from plmctl.errors import ConfigError, nearest

if TYPE_CHECKING:
    from plmctl.training.checkpoint import Watch
    from plmctl.training.engine import Engine
    from plmctl.training.loop import Plan
    from plmctl.training.stop import StopRequest

# The figures that tasks are judged by where the config names none: the first that a task has.
_OWN = ("accuracy", "f1", "spearman", "bleu", "exact_match", "f1_micro", "f1_macro")
_SMALLER = ("loss", "perplexity", "mse", "mae")


def metric_of(asked: str | None, figures: Mapping[str, Any]) -> str:
    """The name of the figure that counts.

    Args:
        asked: By the config; None: the task's own.
        figures: Of the task.

    Raises:
        ConfigError: There is no such figure.
    """
    numbers = [name for name, value in figures.items() if isinstance(value, int | float)]
    if asked is None:
        return next((name for name in _OWN if name in numbers), numbers[0])
    if asked not in numbers:
        raise ConfigError(
            f"train.metric: no figure {asked!r}{nearest(asked, numbers)}",
            f"the task has: {', '.join(numbers)}",
        )
    return asked


def with_further(
    results: Mapping[str, Any], name: str, figures: Mapping[str, Any]
) -> dict[str, Any]:
    """Results with the numbers of a further validation set, as ``mismatched/accuracy``."""
    numbers = {key: value for key, value in figures.items() if isinstance(value, int | float)}
    return {**results, **{f"{name}/{key}": value for key, value in numbers.items()}}


def larger(metric: str) -> bool:
    """Whether more of a figure is better."""
    return metric not in _SMALLER


def watch_of(config: FinetuneConfig, folder: Path) -> Watch | None:
    """What the config asks to be kept and waited for; None: the last weights, to the end."""
    from plmctl.training.checkpoint import Watch

    train = config.train
    if train.keep == "last" and train.patience is None:
        return None
    kept = folder if train.keep == "best" else None
    smaller = train.metric is not None and not larger(train.metric)
    return Watch("valid/judged", larger=not smaller, patience=train.patience, folder=kept)


def every(config: FinetuneConfig, rows: int) -> int | None:
    """Steps between validations: where weights are judged, the config of that; else of the log."""
    if config.train.keep == "last" and config.train.patience is None:
        return config.log.validate_every
    return config.train.validate_every or math.ceil(rows / config.train.batch_size)


def check_metric(engine: Engine, config: FinetuneConfig, few: Any) -> None:
    """Refuse a metric that the task does not have before the first step: the names need few rows.

    Args:
        engine: Network and processes.
        config: The run's.
        few: Some validation rows as examples.

    Raises:
        ConfigError: With the metrics that there are.
    """
    if config.train.metric is not None:
        metric_of(config.train.metric, {**_figures(engine, few), "loss": 0.0})


def validate(
    engine: Engine,
    step: Any,
    plan: Plan,
    judged: FinetuneConfig | None,
    *,
    stop: StopRequest | None = None,
) -> dict[str, float]:
    """Losses over all processes; where weights are judged, the task's figures too.

    Args:
        engine: Network and processes.
        step: The validation rows as examples.
        plan: How they are cut up.
        judged: The config that says by what, where weights are judged.
        stop: A request to stop, which ends it.

    Raises:
        StopAsked: Some process was asked to stop meanwhile.
    """
    from plmctl.evaluation.scoring import score
    from plmctl.training.data import scoring_batches

    batches = scoring_batches(step, plan.phases[0].slicing)
    bare = engine.accelerator.unwrap_model(engine.network)
    scores = score(engine.accelerator, bare, step, batches, stop)
    if judged is not None:
        figures = {**_figures(engine, step), "loss": scores["loss"]}
        name = metric_of(judged.train.metric, figures)
        scores |= {name: figures[name], "judged": figures[name]}
    return {f"valid/{name}": value for name, value in scores.items()}


def _figures(engine: Engine, step: Any) -> dict[str, Any]:
    """The task's figures, made by the main process and told to the others."""
    from accelerate.utils import broadcast_object_list

    from plmctl.evaluation.predict import answers

    accelerator = engine.accelerator
    told: list[Any] = [None]
    if accelerator.is_main_process:
        bare = accelerator.unwrap_model(engine.network)
        told = [step.figures(answers(bare, step, accelerator.device))]
    return dict(broadcast_object_list(told)[0])
