"""Losses, probabilities and figures of the three kinds of classification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from plmctl.modeling.batch import Batch

Problem = Literal["single_label", "multi_label", "regression"]


@dataclass(frozen=True)
class Loss:
    """The loss of a problem.

    Attributes:
        problem: Cross-entropy of one label a row, binary cross-entropy of every label, or squared
            errors.
        class_weights: [C], or [C, 2] of several labels a row. They multiply losses; counts stay
            the numbers of targets.
        smoothing: Share of a target that is spread over the labels.
    """

    problem: Problem
    class_weights: NDArray[np.float32] | None = None
    smoothing: float = 0.0

    def sums(self, logits: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """The loss of each part that has targets, summed over them."""
        sums = {"label": self._of_labels(logits["label"], batch.targets["label"])}
        if "lm" in batch.targets:
            sums["lm"], _ = language(logits["lm"], batch)
        return sums

    def score(self, logits: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """``sums``, and how many targets are guessed right: nan for regression."""
        targets = batch.targets["label"]
        scores = {"label": self._of_labels(logits["label"], targets)}
        scores["label/correct"] = hits(logits["label"], targets, self.problem)
        if "lm" in batch.targets:
            scores["lm"], scores["lm/correct"] = language(logits["lm"], batch)
        return scores

    def _of_labels(self, logits: Tensor, targets: Tensor) -> Tensor:
        import torch

        from plmctl.modeling import label_losses

        if self.problem == "regression":
            return label_losses.squared_error_sum(logits, targets)
        weights = self.class_weights
        made = None if weights is None else torch.from_numpy(weights).to(logits.device)
        of = label_losses.single_label_sum
        if self.problem == "multi_label":
            of = label_losses.multi_label_sum
        return of(logits, targets, made, self.smoothing)


def language(logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy, and share of right guesses, of the next tokens of a text, summed."""
    from plmctl.modeling.label_losses import next_token_sums

    ids, counts = batch.inputs["input_ids"].flatten(0, -2), batch.targets["lm"].flatten()
    return next_token_sums(logits, ids, batch.inputs["lm_cells"], counts)


def hits(logits: Tensor, targets: Tensor, problem: Problem) -> Tensor:
    """How many targets the logits name; nan for regression."""
    if problem == "regression":
        return logits.new_tensor(float("nan"))
    if problem == "multi_label":
        return ((logits > 0) == (targets > 0.5)).sum().float()
    return (logits.argmax(-1) == targets).sum().float()


def probabilities(logits: Tensor, problem: Problem) -> Tensor:
    """Of each label, [B, C]; of regression the numbers themselves, [B, 1]."""
    if problem == "regression":
        return logits.float()
    return logits.float().sigmoid() if problem == "multi_label" else logits.float().softmax(-1)


def figures(
    problem: Problem,
    said: Sequence[Any],
    targets: NDArray[Any],
    labels: Sequence[str],
    positive: str | None,
) -> dict[str, Any]:
    """What predictions are worth (``plmctl.metrics``), the first with its bootstrap interval.

    Args:
        problem: Which metrics.
        said: [N] a label, a list of labels, or a number.
        targets: As ``Classification.targets``.
        labels: By id.
        positive: The label whose F1 is ``f1``, of two; None: the second.
    """
    from plmctl.metrics import classification, multi_label, regression
    from plmctl.metrics.statistics import with_interval

    if problem == "regression":
        found = regression.regression(said, targets)
        return with_interval(found, "pearson", classification.pearson, said, targets)
    numbers = {name: number for number, name in enumerate(labels)}
    if problem == "multi_label":
        there = np.array([[label in names for label in labels] for names in said])
        found = multi_label.multi_label(there, targets > 0.5, labels)
        return with_interval(found, "f1_micro", multi_label.f1_micro, there, targets > 0.5)
    predicted = np.array([numbers[name] for name in said])
    found = classification.classification(
        predicted, targets, labels, positive=numbers.get(positive or labels[-1])
    )
    return with_interval(found, "accuracy", classification.accuracy, predicted, targets)


def uncertainty(
    problem: Problem,
    said: Sequence[Any],
    targets: NDArray[Any],
    labels: Sequence[str],
    positive: str | None,
) -> dict[str, dict[str, float]]:
    """How sure the figures are that papers report; arguments as ``figures``.

    Returns:
        accuracy, matthews, and f1 of two labels; pearson and spearman of regression; of several
        labels a row f1_micro: each with se, low and high (``metrics.statistics.spread_of``).
    """
    from plmctl.metrics import classification, confusions, multi_label, statistics

    if problem == "regression":
        functions = {"pearson": classification.pearson, "spearman": classification.spearman}
        numbers = np.asarray(said, dtype=np.float64)
        return {
            name: statistics.uncertainty(function, numbers, targets)
            for name, function in functions.items()
        }
    if problem == "multi_label":
        there = np.array([[label in names for label in labels] for names in said])
        return {"f1_micro": statistics.uncertainty(multi_label.f1_micro, there, targets > 0.5)}
    ids = {name: number for number, name in enumerate(labels)}
    counts = classification.confusion([ids[name] for name in said], targets, len(labels))
    of_counts: dict[str, statistics.CountFunction] = {
        "accuracy": confusions.accuracy,
        "matthews": confusions.matthews,
    }
    if len(labels) == 2:
        of_counts["f1"] = partial(confusions.f1, positive=ids[positive or labels[-1]])
    return statistics.uncertainty_of_counts(of_counts, counts)


def credits(
    problem: Problem, said: Sequence[Any], targets: NDArray[Any], labels: Sequence[str]
) -> tuple[str, list[float]]:
    """What each prediction is worth by itself; arguments as ``figures``.

    Returns:
        "accuracy" and 1 where all labels of a row are right, else 0; or "negative squared error".
    """
    if problem == "regression":
        errors = np.asarray(said, dtype=np.float64) - targets
        return "negative squared error", (-(errors**2)).tolist()
    if problem == "multi_label":
        there = np.array([[label in names for label in labels] for names in said])
        return "exact match", (there == (targets > 0.5)).all(1).astype(float).tolist()
    numbers = {name: number for number, name in enumerate(labels)}
    right = np.array([numbers[name] for name in said]) == targets
    return "accuracy", right.astype(float).tolist()
