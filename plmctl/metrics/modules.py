"""The metrics as ``evaluate`` modules that need no network.

``evaluate.load("accuracy")`` fetches a script from the Hub; ``plmctl.metrics.modules.load``
gives a module of the same use (``add_batch``, ``compute``, ``evaluate.combine``) whose code is
here.
"""

from collections.abc import Callable
from typing import Any

from plmctl.errors import ConfigError
from plmctl.metrics import classification as metrics
from plmctl.metrics import spans
from plmctl.registry import nearest

_TAGS = "tags"  # of a sentence: a list of texts

_FUNCTIONS: dict[str, tuple[Callable[..., float], str]] = {
    "accuracy": (metrics.accuracy, "int64"),
    "precision": (metrics.precision, "int64"),
    "recall": (metrics.recall, "int64"),
    "f1": (metrics.f1, "int64"),
    "matthews_correlation": (metrics.matthews, "int64"),
    "pearsonr": (metrics.pearson, "float64"),
    "spearmanr": (metrics.spearman, "float64"),
    "entity_f1": (spans.f1, _TAGS),
}


def names() -> tuple[str, ...]:
    """The metrics that can be loaded."""
    return tuple(_FUNCTIONS)


def load(name: str) -> Any:
    """An ``evaluate.Metric`` that keeps what it is given in memory.

    Args:
        name: One of ``names()``. ``compute`` takes the options of the function it wraps:
            ``average`` for precision, recall and f1, which is "macro" unless told; ``scheme`` and
            ``strict`` for entity_f1.

    Raises:
        ConfigError: No such metric.
    """
    if name not in _FUNCTIONS:
        raise ConfigError(f"unknown metric {name!r}{nearest(name, _FUNCTIONS)}")
    # Here, since it takes seconds: it pulls in transformers' pipelines.
    import datasets
    import evaluate

    function, kind = _FUNCTIONS[name]

    class Module(evaluate.Metric):  # type: ignore[misc]  # evaluate has no types
        def _info(self) -> Any:
            one = datasets.List(datasets.Value("string")) if kind == _TAGS else datasets.Value(kind)
            features = dict.fromkeys(("predictions", "references"), one)
            return evaluate.MetricInfo(
                description=(function.__doc__ or "").strip(),
                citation="",
                inputs_description="predictions and references of one length",
                features=datasets.Features(features),
            )

        def _compute(self, predictions: Any, references: Any, **options: Any) -> dict[str, float]:
            return {name: function(predictions, references, **options)}

    # Its default is a file in the user's cache, which two runs at a time would share.
    return Module(keep_in_memory=True)
