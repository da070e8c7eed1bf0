"""GLUE and SQuAD as texts: the words that T5 was trained to read and to write.

Source: google-research/text-to-text-transfer-transformer, t5/data/preprocessors.py (glue, stsb,
squad), glue_utils.py and postprocessors.py. The features of a task come in alphabetical order. WNLI
is left out: T5 reads it as a task of pronouns, with other data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from plmctl.corpus.cells import label_name, number_of
from plmctl.errors import DataError

# --- The casts ---


CastName = Literal[
    "cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "squad", "squad_trivia"
]

MetricName = Literal["accuracy", "f1", "matthews", "pearson", "spearman"]


@dataclass(frozen=True)
class Cast:
    """How one task is written.

    Attributes:
        source: Template of the source; the columns are those of the Hub's data.
        labels: The words that are written, by the Hub's numbers of the labels; none: the target's
            own text.
        spaced: Whether marks stand apart, as the words of SQuAD do.
    """

    source: str
    target: str = "label"
    labels: tuple[str, ...] = ()
    metrics: tuple[MetricName, ...] = ()
    spaced: bool = False


_SIMILARITIES = tuple(f"{step / 5:.1f}" for step in range(26))

_ENTAILMENT = ("entailment", "not_entailment")

CASTS: dict[str, Cast] = {
    "cola": Cast(
        "cola sentence: {sentence}", labels=("unacceptable", "acceptable"), metrics=("matthews",)
    ),
    "sst2": Cast(
        "sst2 sentence: {sentence}", labels=("negative", "positive"), metrics=("accuracy",)
    ),
    "mrpc": Cast(
        "mrpc sentence1: {sentence1} sentence2: {sentence2}",
        labels=("not_equivalent", "equivalent"),
        metrics=("f1", "accuracy"),
    ),
    "qqp": Cast(
        "qqp question1: {question1} question2: {question2}",
        labels=("not_duplicate", "duplicate"),
        metrics=("f1", "accuracy"),
    ),
    "stsb": Cast(
        "stsb sentence1: {sentence1} sentence2: {sentence2}",
        labels=_SIMILARITIES,
        metrics=("pearson", "spearman"),
    ),
    "mnli": Cast(
        "mnli hypothesis: {hypothesis} premise: {premise}",
        labels=("entailment", "neutral", "contradiction"),
        metrics=("accuracy",),
    ),
    "qnli": Cast(
        "qnli question: {question} sentence: {sentence}",
        labels=_ENTAILMENT,
        metrics=("accuracy",),
    ),
    "rte": Cast(
        "rte sentence1: {sentence1} sentence2: {sentence2}",
        labels=_ENTAILMENT,
        metrics=("accuracy",),
    ),
    "squad": Cast("question: {question} context: {context}", target="answers", spaced=True),
    "squad_trivia": Cast("squad trivia question: {question}", target="answers", spaced=True),
}


# --- The words of a row ---


def spaced(text: str) -> str:
    """Spaces around each mark of ASCII, and no two spaces in a row.

    T5 keeps a space at an end, which its tokenizer then drops; here it is dropped at once.
    """
    return " ".join(re.sub(r"([!-/:-@\[-`{-~])", r" \1 ", text).split())


def label_of(name: str, value: Any, origin: str) -> str:
    """The word for a row's label.

    Args:
        value: The number that the Hub's data have, or the word itself; of STS-B, the similarity.

    Raises:
        DataError: No label of the task, such as the -1 of test rows.
    """
    labels = CASTS[name].labels
    if name == "stsb":
        return _similarity(value, origin)
    try:
        written = label_name(value)
    except ValueError:
        written = ""
    number = int(written) if written.isascii() and written.isdigit() else -1
    if 0 <= number < len(labels):
        return labels[number]
    if written in labels:
        return written
    known = ", ".join(f"{number} ({label})" for number, label in enumerate(labels))
    raise DataError(
        f"{origin}: label {value!r} is none of {name}'s: {known}", "test rows have no labels"
    )


def _similarity(value: Any, origin: str) -> str:
    """STS-B's similarity to the nearest fifth, with one decimal."""
    number = number_of(value)
    if number is None or not 0 <= number <= 5:
        raise DataError(f"{origin}: similarity {value!r} is no number from 0 to 5")
    return f"{round(number * 5) / 5:.1f}"


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return -1.0
    return number if np.isfinite(number) else -1.0


# --- Metrics of written labels ---


def cast_metrics(
    name: str, predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> dict[str, float]:
    """The metrics of a cast with labels, and the share of outputs that are no label.

    These are wrong. For F1 they count as the other label, and for STS-B as -1.

    Args:
        predictions: [N] what was written.
        references: [N] the word of the label of each row, alone in a list.
    """
    from plmctl.metrics.classification import accuracy, majority, matthews, pearson, spearman

    predicted, expected = _label_numbers(name, predictions, references)
    functions: dict[MetricName, Callable[..., float]] = {
        "accuracy": accuracy,
        "f1": f1_with_invalid,
        "matthews": matthews,
        "pearson": pearson,
        "spearman": spearman,
    }
    metrics: dict[str, float] = {
        metric: functions[metric](predicted, expected) for metric in CASTS[name].metrics
    }
    if name != "stsb":
        metrics["majority"] = majority(expected)
    return metrics | {"no_label": float((predicted < 0).mean())}


def cast_uncertainty(
    name: str, predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> dict[str, dict[str, float]]:
    """The uncertainty of the metrics of a cast; arguments as ``cast_metrics``.

    Returns:
        se, low and high of each (``metrics.statistics.spread_of``).
    """
    from plmctl.metrics import statistics
    from plmctl.metrics.classification import (
        accuracy_of_counts,
        confusion,
        f1_of_counts,
        matthews_of_counts,
        pearson,
        spearman,
    )

    predicted, expected = _label_numbers(name, predictions, references)
    if name == "stsb":
        functions = {"pearson": pearson, "spearman": spearman}
        return {
            metric: statistics.uncertainty(function, predicted, expected)
            for metric, function in functions.items()
        }
    classes = len(CASTS[name].labels) + 1  # the last: what is no label
    of_counts: dict[MetricName, statistics.CountFunction] = {
        "accuracy": accuracy_of_counts,
        "matthews": matthews_of_counts,
        "f1": partial(f1_of_counts, positive=1),
    }
    errors: dict[str, dict[str, float]] = {}
    for metric in CASTS[name].metrics:
        forced = invalid_as_wrong(predicted, expected) if metric == "f1" else predicted
        numbers = np.where(forced < 0, classes - 1, forced).astype(np.int64)
        counts = confusion(numbers, expected.astype(np.int64), classes)
        errors |= statistics.uncertainty_of_counts({metric: of_counts[metric]}, counts)
    return errors


def _label_numbers(
    name: str, predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Numbers of what was written, -1 where it is no label, and of what is right."""
    labels = CASTS[name].labels
    numbers = {label: float(n) for n, label in enumerate(labels)}
    if name == "stsb":
        numbers = {label: float(label) for label in labels}
    read = _number if name == "stsb" else lambda text: numbers.get(text, -1.0)
    predicted = np.array([read(text.strip()) for text in predictions])
    return predicted, np.array([numbers[label] for (label,) in references])


def f1_with_invalid(predicted: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    """F1 of label 1, where a prediction that is neither 0 nor 1 counts as the wrong one of them."""
    forced = invalid_as_wrong(predicted, expected)
    both = float(((forced == 1) & (expected == 1)).sum())
    total = float((forced == 1).sum() + (expected == 1).sum())
    return 2 * both / total if total else 0.0


def invalid_as_wrong(
    predicted: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Predictions of two labels, the wrong one where it is neither."""
    valid = (predicted == 0) | (predicted == 1)
    return np.where(valid, predicted, 1 - expected)
