"""The metrics as ``evaluate`` modules that need no network.

``evaluate.load("accuracy")`` fetches a script from the Hub; ``plmctl.metrics.modules.load``
gives a module of the same use (``add_batch``, ``compute``, ``evaluate.combine``) whose code is
here.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from plmctl.errors import ConfigError, nearest
from plmctl.metrics import spans, squad, text
from plmctl.metrics.classification import (
    accuracy,
    f1,
    matthews,
    pearson,
    precision,
    recall,
    spearman,
)

_ANSWERS = "answers"  # texts, and lists of the right ones
_TAGS = "tags"  # of a sentence: a list of texts

_FUNCTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "accuracy": (accuracy, "int64"),
    "precision": (precision, "int64"),
    "recall": (recall, "int64"),
    "f1": (f1, "int64"),
    "matthews_correlation": (matthews, "int64"),
    "pearsonr": (pearson, "float64"),
    "spearmanr": (spearman, "float64"),
    "squad": (partial(squad.figures, metric="squad"), _ANSWERS),
    "squad_v2": (partial(squad.figures, metric="squad2"), _ANSWERS),
    "cmrc2018": (partial(squad.figures, metric="cmrc"), _ANSWERS),
    "bleu": (text.bleu, _ANSWERS),
    "chrf": (text.chrf, _ANSWERS),
    "rouge": (text.rouge, _ANSWERS),
    "exact_match": (text.exact_match, _ANSWERS),
    "sequence_accuracy": (text.sequence_accuracy, _ANSWERS),
    "entity_f1": (spans.f1, _TAGS),
}


def names() -> tuple[str, ...]:
    """The metrics that can be loaded."""
    return tuple(_FUNCTIONS)


def load(name: str) -> Any:
    """An ``evaluate.Metric`` that keeps what it is given in memory.

    Args:
        name: One of ``names()``. ``compute`` takes the options of the function it wraps:
            ``average`` for precision, recall and f1, which is "macro" unless told, ``tokens`` for
            bleu and rouge, ``scheme`` and ``strict`` for entity_f1.

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
            predicted, right = _sides(kind)
            features = {"predictions": predicted, "references": right}
            described = getattr(function, "func", function).__doc__
            return evaluate.MetricInfo(
                description=(described or "").strip(),
                citation="",
                inputs_description="predictions and references of one length",
                features=datasets.Features(features),
            )

        def _compute(self, predictions: Any, references: Any, **options: Any) -> dict[str, float]:
            result = function(predictions, references, **options)
            return result if isinstance(result, dict) else {name: result}

    # Its default is a file in the user's cache, which two runs at a time would share.
    return Module(keep_in_memory=True)


def _sides(kind: str) -> tuple[Any, Any]:
    """The types of one prediction and of its reference."""
    from datasets import List, Value

    if kind == _ANSWERS:
        return Value("string"), List(Value("string"))
    one = List(Value("string")) if kind == _TAGS else Value(kind)
    return one, one
