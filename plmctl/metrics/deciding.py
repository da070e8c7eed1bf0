"""Which of the metrics of a task decides, and whether more of it is better."""

from collections.abc import Mapping
from typing import Any

from plmctl.errors import ConfigError, nearest

# The metric that decides if the config names none: the first of these that the task has.
_DEFAULT_METRICS = (
    "accuracy", "f1", "spearman", "bleu", "exact_match", "f1_micro", "f1_macro", "las",
)  # fmt: skip


_SMALLER_IS_BETTER = ("loss", "perplexity", "mse", "mae", "mean_squared_error")


def metric_of(requested: str | None, metrics: Mapping[str, Any]) -> str:
    """The name of the metric that decides.

    Args:
        requested: In the config; None: the task's usual one.

    Raises:
        ConfigError: There is no such metric.
    """
    numbers = [name for name, value in metrics.items() if isinstance(value, int | float)]
    if requested is None:
        return next((name for name in _DEFAULT_METRICS if name in numbers), numbers[0])
    if requested not in numbers:
        raise ConfigError(
            f"train.metric: no metric {requested!r}{nearest(requested, numbers)}",
            f"the task has: {', '.join(numbers)}",
        )
    return requested


def counted_metric(requested: str | None, metrics: Mapping[str, Any]) -> str:
    """The metric by which counting is shown: that of the config, if it is one of the answers.

    Else the usual one of the task; of entities F1, since most words are in none.
    """
    if requested in metrics:
        return str(requested)
    return "f1" if "entities" in metrics else metric_of(None, metrics)


def larger_is_better(metric: str) -> bool:
    """Whether a larger value of a metric is better."""
    return metric not in _SMALLER_IS_BETTER
