"""The metrics as ``evaluate`` modules that need no network.

``evaluate.load("accuracy")`` fetches a script; ``plmctl.evaluation.modules.load("accuracy")`` gives
a module of the same use whose code is here.
"""

from typing import Any

from plmctl.errors import ConfigError
from plmctl.evaluation import metrics
from plmctl.registry import nearest

_FUNCTIONS = {
    "accuracy": (metrics.accuracy, "int64"),
    "f1": (metrics.f1, "int64"),
    "matthews_correlation": (metrics.matthews, "int64"),
    "pearsonr": (metrics.pearson, "float64"),
    "spearmanr": (metrics.spearman, "float64"),
}


def names() -> tuple[str, ...]:
    """The metrics that can be loaded."""
    return tuple(_FUNCTIONS)


def load(name: str) -> Any:
    """An ``evaluate.Metric`` with ``add_batch`` and ``compute``.

    Raises:
        ConfigError: No such metric.
    """
    if name not in _FUNCTIONS:
        raise ConfigError(f"unknown metric {name!r}{nearest(name, _FUNCTIONS)}")
    # Six seconds: it pulls in transformers' pipelines.
    import datasets
    import evaluate

    function, kind = _FUNCTIONS[name]

    class Module(evaluate.Metric):  # type: ignore[misc]  # evaluate has no types
        def _info(self) -> Any:
            features = {side: datasets.Value(kind) for side in ("predictions", "references")}
            return evaluate.MetricInfo(
                description=(function.__doc__ or "").strip(),
                citation="",
                inputs_description="predictions and references of one length",
                features=datasets.Features(features),
            )

        def _compute(self, predictions: Any, references: Any, **options: Any) -> dict[str, float]:
            return {name: function(predictions, references, **options)}

    return Module()
