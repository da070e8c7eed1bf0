"""The metrics as ``evaluate`` modules that need no network.

``evaluate.load("accuracy")`` fetches a script from the Hub; ``plmctl.metrics.modules.load``
gives a module of the same use (``add_batch``, ``compute``, ``evaluate.combine``) whose code is
here.
"""

from collections.abc import Callable
from typing import Any

from plmctl.errors import ConfigError
from plmctl.metrics import classification as metrics
from plmctl.metrics import text
from plmctl.registry import nearest

_FUNCTIONS: dict[str, tuple[Callable[..., float], str]] = {
    "accuracy": (metrics.accuracy, "int64"),
    "precision": (metrics.precision, "int64"),
    "recall": (metrics.recall, "int64"),
    "f1": (metrics.f1, "int64"),
    "matthews_correlation": (metrics.matthews, "int64"),
    "pearsonr": (metrics.pearson, "float64"),
    "spearmanr": (metrics.spearman, "float64"),
}
_TEXT_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "bleu": text.bleu,
    "chrf": text.chrf,
    "rouge": text.rouge,
    "exact_match": text.exact_match,
    "sequence_accuracy": text.sequence_accuracy,
}
"""Of texts, with a list of one or more references for each."""


def names() -> tuple[str, ...]:
    """The metrics that can be loaded."""
    return (*_FUNCTIONS, *_TEXT_FUNCTIONS)


def load(name: str) -> Any:
    """An ``evaluate.Metric`` that keeps what it is given in memory.

    Args:
        name: One of ``names()``. ``compute`` takes the options of the function it wraps:
            ``average`` for precision, recall and f1, which is "macro" unless told, ``tokens`` for
            bleu and rouge.

    Raises:
        ConfigError: No such metric.
    """
    if name not in names():
        raise ConfigError(f"unknown metric {name!r}{nearest(name, names())}")
    # Here, since it takes seconds: it pulls in transformers' pipelines.
    import datasets
    import evaluate

    function, features = _features(name)

    class Module(evaluate.Metric):  # type: ignore[misc]  # evaluate has no types
        def _info(self) -> Any:
            return evaluate.MetricInfo(
                description=(function.__doc__ or "").strip(),
                citation="",
                inputs_description="predictions and references of one length",
                features=datasets.Features(features),
            )

        def _compute(self, predictions: Any, references: Any, **options: Any) -> dict[str, float]:
            found = function(predictions, references, **options)
            return found if isinstance(found, dict) else {name: found}

    # Its default is a file in the user's cache, which two runs at a time would share.
    return Module(keep_in_memory=True)


def _features(name: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A metric's function, and the types of its two sides."""
    from datasets import List, Value

    if name in _TEXT_FUNCTIONS:
        sides = {"predictions": Value("string"), "references": List(Value("string"))}
        return _TEXT_FUNCTIONS[name], sides
    function, kind = _FUNCTIONS[name]
    return function, {"predictions": Value(kind), "references": Value(kind)}
