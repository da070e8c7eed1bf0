"""Metrics as modules of ``evaluate``: plmctl's own, which need no network, and a user's.

``load`` takes the name of one of plmctl's metrics, the path of a Python file that defines a
subclass of ``evaluate.Metric``, or ``hf:NAME`` for a metric of the Hub.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Collection, Mapping
from functools import partial
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np

from plmctl import hub
from plmctl.errors import ConfigError, PlmError, did_you_mean, near_names
from plmctl.metrics import dependencies, spans, squad, text
from plmctl.metrics.classification import (
    accuracy,
    classification_metrics,
    f1,
    majority,
    matthews,
    multi_label_metrics,
    pearson,
    precision,
    recall,
    regression_metrics,
    spearman,
)

Kind = Literal["label", "label set", "number", "text", "tags", "tree"]
"""What a prediction is: the number of a label, a 0 or 1 per label, a number, a text (its reference
is a list of right texts), a list of one tag per word, or of one arc (``dependencies.arc``)."""

_METRICS: dict[str, tuple[Callable[..., Any], Kind]] = {
    "accuracy": (accuracy, "label"),
    "precision": (precision, "label"),
    "recall": (recall, "label"),
    "f1": (f1, "label"),
    "matthews_correlation": (matthews, "label"),
    "majority": (lambda predictions, references: majority(references), "label"),
    "classification": (classification_metrics, "label"),
    "multi_label": (multi_label_metrics, "label set"),
    "pearsonr": (pearson, "number"),
    "spearmanr": (spearman, "number"),
    "regression": (regression_metrics, "number"),
    "squad": (partial(squad.answer_metrics, metric="squad"), "text"),
    "squad_v2": (partial(squad.answer_metrics, metric="squad2"), "text"),
    "cmrc2018": (partial(squad.answer_metrics, metric="cmrc"), "text"),
    "trivia_qa": (text.trivia_qa, "text"),
    "bleu": (text.bleu, "text"),
    "chrf": (text.chrf, "text"),
    "rouge": (text.rouge, "text"),
    "exact_match": (text.exact_match, "text"),
    "sequence_accuracy": (text.sequence_accuracy, "text"),
    "entities": (spans.entities, "tags"),
    "entity_f1": (spans.f1, "tags"),
    "tag_accuracy": (spans.tag_metrics, "tags"),
    "attachment": (dependencies.attachment, "tree"),
    "las": (dependencies.las, "tree"),
}

_HUB = "hf:"


def names(kind: Kind | None = None) -> tuple[str, ...]:
    """Plmctl's metrics: all, or those of one kind of predictions."""
    return tuple(name for name, (_, of) in _METRICS.items() if kind in (None, of))


def is_ours(name: str) -> bool:
    """Whether it is a plain name: no file of the user's and no metric of the Hub."""
    return not (name.startswith(_HUB) or name.endswith(".py") or "/" in name)


def check_names(metrics: tuple[str, ...]) -> tuple[str, ...]:
    """The names of a config as they are.

    Raises:
        ValueError: A plain name that is no metric; the message has the nearest and all.
    """
    for name in metrics:
        if is_ours(name) and name not in _METRICS:
            near = did_you_mean(near_names(name, _METRICS)) or ";"
            raise ValueError(
                f"unknown metric {name!r}{near} plmctl has {', '.join(_METRICS)}; "
                f"a metric of your own is a path such as ./{name}.py"
            )
    return metrics


def load(name: str, kind: Kind | None = None) -> Any:
    """An ``evaluate.Metric`` that keeps its rows in memory.

    Args:
        name: One of ``names()``, the path of a Python file, or ``hf:NAME``. ``compute`` of plmctl's
            own takes the options of the function that it wraps: ``average`` for precision, recall
            and f1 (by default "macro"), ``tokens`` for bleu and rouge, ``scheme`` and ``strict``
            for entities and entity_f1.
        kind: The kind of predictions that it must take; None: any.

    Raises:
        ConfigError: There is no such metric, or it is for another kind of predictions.
    """
    if name.startswith(_HUB):
        return _load_from_hub(name)
    if not is_ours(name):
        return _load_from_file(Path(name))
    import datasets  # evaluate and datasets take a moment to import
    import evaluate

    function, takes = find_metric(name, kind)

    class Module(evaluate.Metric):  # type: ignore[misc]  # evaluate has no types
        def _info(self) -> Any:
            prediction, reference = _features(takes)
            described = getattr(function, "func", function).__doc__
            return evaluate.MetricInfo(
                description=(described or "").strip(),
                citation="",
                inputs_description="predictions and references of one length",
                features=datasets.Features({"predictions": prediction, "references": reference}),
            )

        def _compute(self, predictions: Any, references: Any, **options: Any) -> dict[str, Any]:
            return _by_name(name, function(predictions, references, **options))

    # Its default is a file in the user's cache, which two runs at the same time would share.
    return Module(keep_in_memory=True)


def find_metric(name: str, kind: Kind | None = None) -> tuple[Callable[..., Any], Kind]:
    """The function of one of plmctl's metrics, and the kind of predictions that it takes.

    Args:
        kind: The kind of predictions that it must take; None: any.

    Raises:
        ConfigError: There is no such metric, or it is for another kind of predictions.
    """
    try:
        check_names((name,))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    function, takes = _METRICS[name]
    if kind not in (None, takes):
        raise ConfigError(
            f"task.metrics: {name!r} is for predictions of the kind {takes!r}, but those of this "
            f"task are of the kind {kind!r}",
            f"use one of: {', '.join(names(kind))}",
        )
    return function, takes


def _by_name(name: str, result: Any) -> dict[str, Any]:
    return result if isinstance(result, dict) else {name: result}


def _features(kind: Kind) -> tuple[Any, Any]:
    """The types of one prediction and of its reference."""
    from datasets import List, Value

    if kind == "text":
        return Value("string"), List(Value("string"))
    one = {
        "label": Value("int64"),
        "label set": List(Value("int64")),
        "number": Value("float64"),
        "tags": List(Value("string")),
        "tree": List(Value("string")),
    }[kind]
    return one, one


def _load_from_file(path: Path) -> Any:
    """The metric that a Python file defines.

    Raises:
        ConfigError: There is no such file, it cannot be imported, or it defines no metric.
    """
    import evaluate

    if not path.is_file():
        raise ConfigError(
            f"task.metrics: no file {str(path)!r}",
            "paths are relative to the current folder; plmctl's own metrics have no / and no .py",
        )
    module = _import_file(path)
    metrics = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, evaluate.Metric)
        and value.__module__ == module.__name__
    ]
    if len(metrics) != 1:
        raise ConfigError(
            f"task.metrics: {path} has {len(metrics)} subclasses of evaluate.Metric; expected one",
            "`plmctl docs finetuning` has an example",
        )
    try:
        return metrics[0](keep_in_memory=True)
    except (Exception, SystemExit) as error:  # a user's code may raise anything
        raise ConfigError(f"task.metrics: {path}: {_message(error)}", "fix the file") from error


def _import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"plmctl_metric_{path.stem}", path)
    assert spec is not None  # it ends with .py, or the next line says why not
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a user's code may raise anything
        raise ConfigError(f"task.metrics: {path}: {_message(error)}", "fix the file") from error
    return module


def _load_from_hub(name: str) -> Any:
    """A metric of the Hub, by ``evaluate.load``.

    Raises:
        ConfigError: It is not there, the Hub is out of reach, or it needs a missing package.
    """
    own_name = name.removeprefix(_HUB)
    # `evaluate` keeps the metrics that anybody can use under the name of their kind.
    space = own_name if "/" in own_name else f"evaluate-metric/{own_name}"
    reason = hub.unavailable(space, "spaces")
    if reason:
        raise ConfigError(
            f"task.metrics: {name}: {reason}",
            "it needs the network once, to be copied into the cache; plmctl's own metrics and "
            "files of your own (./NAME.py) do not",
        )
    import evaluate

    try:
        return evaluate.load(name.removeprefix(_HUB), keep_in_memory=True)
    except ImportError as error:  # `evaluate` checks what a module imports
        raise ConfigError(
            f"task.metrics: {name}: cannot be loaded: {_message(error)}",
            "install what it needs, and run again",
        ) from error
    except (Exception, SystemExit) as error:  # the module's own code runs here
        raise ConfigError(
            f"task.metrics: {name}: cannot be loaded: {_message(error)}",
            "it needs the network once, to be copied into the cache; plmctl's own metrics and "
            "files of your own (./NAME.py) do not",
        ) from error


def compute(
    name: str, kind: Kind, predictions: Any, references: Any, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The results of a metric, in plain types.

    Args:
        name: See ``load``.
        predictions: [N], lists or arrays.
        references: [N].
        options: For plmctl's metrics; each takes those that it knows.

    Raises:
        ConfigError: There is no such metric, or a user's fails or gives no results by name, or
            results that JSON cannot have.
        PlmError: A user's metric ends the program.
    """
    inputs = {"predictions": _plain(predictions), "references": _plain(references)}
    if is_ours(name):  # at once: to import evaluate takes seconds
        function, _ = find_metric(name, kind)
        known = inspect.signature(function).parameters
        some = {option: value for option, value in options.items() if option in known}
        return _by_name(name, function(*inputs.values(), **some))
    metric = load(name)
    try:
        results = metric.compute(**inputs)
    except SystemExit as error:  # it would end plmctl as if all were done
        raise PlmError(
            f"task.metrics: {name}: it ended the program ({_message(error)})",
            "return the results, or raise an error",
        ) from error
    except Exception as error:  # a user's code may raise anything
        raise ConfigError(
            f"task.metrics: {name}: {_message(error)}",
            f"predictions are such as {inputs['predictions'][:1]!r:.60}, references such as "
            f"{inputs['references'][:1]!r:.60}",
        ) from error
    if not isinstance(results, dict) or not results:
        raise ConfigError(
            f"task.metrics: {name}: it returns {results!r:.60}",
            'return the results by name, as in {"my_metric": 0.5}',
        )
    return {str(key): _result(value, f"{name}: {key}") for key, value in results.items()}


def _result(value: Any, what: str) -> Any:
    """A result as JSON has it, at any depth.

    Raises:
        ConfigError: JSON has no such value.
    """
    if callable(getattr(value, "tolist", None)):  # NumPy's and PyTorch's numbers and arrays
        value = value.tolist()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _result(inner, f"{what}: {key}") for key, inner in value.items()}
    if isinstance(value, list | tuple | set):
        return [_result(inner, what) for inner in value]
    if isinstance(value, Real):  # such as a fraction
        return float(value)
    raise ConfigError(
        f"task.metrics: {what}: a {type(value).__name__}, which cannot be written to a file "
        f"({value!r:.60})",
        "return numbers and texts, or lists and dictionaries of them",
    )


def own_names(name: str, results: Mapping[str, Any], taken: Collection[str]) -> dict[str, str]:
    """The names that results of a user's metric get instead of plmctl's own, or of another's."""
    stem = Path(name.removeprefix(_HUB)).stem
    return {key: f"{stem}.{key}" for key in results if key in taken or key in _NAMES_OF_RESULTS}


_NAMES_OF_RESULTS = {
    *_METRICS, "loss", "perplexity", "f1_micro", "f1_macro", "f1_weighted", "matthews", "mse",
    "mae", "rows", "valid_rows", "windows", "valid_windows", "init", "steps", "best_step", "cut",
    "total", "unlabelled",
}  # fmt: skip
"""What plmctl itself writes into results, which a user's metric must not replace."""


def right_answers(references: Any, kind: Kind) -> list[Any]:
    """Predictions that are all right."""
    if kind == "text":
        return [texts[0] if texts else "" for texts in references]
    return list(_plain(references))


def _plain(values: Any) -> Any:
    """Arrays and NumPy's numbers as lists and Python's numbers."""
    return values.tolist() if isinstance(values, np.ndarray | np.generic) else values


def _message(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
