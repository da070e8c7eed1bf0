"""Sequence classification and regression: a text or a pair of texts, a label, labels or a number.

From top to bottom: the config; from rows to labels and examples; the examples with their batches,
losses and predictions; the network and its head; losses and metrics of the three problems.

Heads are those of transformers, which follow the papers: BERT's pooled [CLS] with dropout and a
linear layer; RoBERTa's own dense layer and tanh; GPT-1's and GPT-2's linear layer on the last
token. The published GPT-1 head has a bias, transformers' has none. GPT-1 learns the language of the
texts beside their labels, each text's mean over its tokens, over the rows of the vocabulary (the
published code's softmax goes over the rows of the position table too).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from plmctl.arrays import Ints
from plmctl.config.base import TaskConfig
from plmctl.errors import ConfigError, DataError, nearest
from plmctl.models.base import Examples
from plmctl.tasks import _elmo
from plmctl.tasks._sequences import (
    SequenceExamples,
    gpt1_ids,
    language_sums,
    text_sequences,
    with_format,
)
from plmctl.tasks.base import (
    Unlabelled,
    has_label,
    label_cell,
    refuse_marks,
    required,
    rows_with_text,
    text_cell,
)

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from plmctl.corpus.labelled import Row
    from plmctl.models.batch import Batch
    from plmctl.models.load import NewHeads
    from plmctl.models.network import Network
    from plmctl.tasks.base import Use


Problem = Literal["single_label", "multi_label", "regression"]


class Config(TaskConfig):
    """Classify a text or a pair of texts: one label, several, or a number."""

    name: Literal["classification"] = "classification"
    text: str | tuple[str, str] = "text"
    """Column of the text; two columns for a pair."""
    label: str = "label"
    """Column of the label: a name or a number; of several labels: a list, or names in one text."""
    problem: Problem = "single_label"
    """multi_label: a row has any number of labels; regression: the label is a number."""
    unlabelled: Unlabelled = "refuse"
    """Rows without a gold label: an empty one, `-` (OCNLI), or -1 (SNLI, test rows). drop: leave
    them out of training and scoring, and tell how many; keep: `-` and -1 are labels like others."""
    separator: str = Field(default=",", min_length=1)
    """multi_label only: what stands between the labels of a row in one text."""
    threshold: float = Field(default=0.5, gt=0, lt=1)
    """multi_label only: the probability from which a label is given."""
    positive: str | tuple[str, ...] | None = None
    """The label whose F1 is reported as `f1` where there are two; of several names the first that
    is a label; empty: the second."""
    class_weights: Literal["balanced"] | dict[str, float] | None = None
    """What a training row counts for, by its label: `balanced` (all labels the same in sum), or
    weights by label, 1 for the others. They multiply losses; the loss is still divided by the
    number of rows."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of each training target that is spread evenly over all labels."""
    lm_weight: float = Field(default=0.5, ge=0)
    """GPT-1 only: weight of the language model's loss beside that of the labels; 0: none."""
    pooling: Literal["head", "cls", "mean", "max"] = "head"
    """Encoders only: what the label is read from. head: the family's own head; cls: the first
    token's vector; mean, max: of all tokens' vectors. Other than head, the finetuned folder loads
    where plmctl is imported, and has no class of transformers' own."""
    both_orders: bool = False
    """GPT-1 only, of pairs: read them in both orders and add the vectors (similarity)."""

    @model_validator(mode="after")
    def _fits_the_problem(self) -> Self:
        if self.problem == "regression" and (self.class_weights or self.label_smoothing):
            raise ValueError("class_weights and label_smoothing are for labels, not for regression")
        if self.both_orders and isinstance(self.text, str):
            raise ValueError("both_orders is for pairs: name two columns under `text`")
        if isinstance(self.class_weights, dict) and min(self.class_weights.values(), default=1) < 0:
            raise ValueError("class_weights: a weight is 0 or more")
        return self


# --- From rows to labels and examples ---


def text_columns(config: Config) -> tuple[str, ...]:
    """The column of the text, or the two of a pair."""
    return (config.text,) if isinstance(config.text, str) else config.text


def is_labelled(config: Config, row: Row) -> bool:
    """False for the rows that ``unlabelled: drop`` leaves out."""
    return config.unlabelled != "drop" or has_label(row, config.label, config.problem)


def labels_of(config: Config, rows: Sequence[Row]) -> tuple[str, ...]:
    """The label names of the training rows, in order; none for regression.

    Raises:
        DataError: A row without a label, or too few labels.
    """
    found = label_names(config, rows)
    if config.unlabelled == "refuse" and config.problem == "single_label":
        refuse_marks(rows, config.label, found)
    return found


def make(
    config: Config,
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    labels: tuple[str, ...],
    max_length: int,
    use: Use,
) -> Classification:
    """The rows as examples; see ``base.Task``. Training rows without any text are dropped."""
    columns = text_columns(config)
    rows, dropped = rows_with_text(rows, columns, use)
    texts = [[text_cell(row, column) for row in rows] for column in columns]
    orders = [texts, texts[::-1]] if config.both_orders else [texts]
    targets = None if use == "predict" else label_targets(config, rows, labels)
    weights = None
    if use == "train" and targets is not None and config.class_weights is not None:
        count = multi_label_weights if targets.ndim == 2 else class_weights
        weights = count(config.class_weights, targets, labels)
    if _elmo.reads_characters(tokenizer):
        read = _elmo.texts(tokenizer, texts, max_length)
        return Classification(config, read, targets, labels, weights, dropped)
    made = SequenceExamples.of_views(
        [text_sequences(tokenizer, order, max_length) for order in orders],
        tokenizer,
        language=bool(gpt1_ids(tokenizer)) and config.lm_weight > 0 and use != "predict",
    )
    return Classification(config, made, targets, labels, weights, dropped)


def label_names(config: Any, rows: Sequence[Row]) -> tuple[str, ...]:
    """The label names of training rows, in order; none for regression.

    Args:
        config: Of the task ``classification``.
        rows: Training rows.

    Raises:
        DataError: A row without a label, or too few labels.
    """
    if config.problem == "regression":
        return ()
    if config.problem == "multi_label":
        names = {name for row in rows for name in label_cells(row, config.label, config.separator)}
    else:
        names = {label_cell(row, config.label) for row in rows}
    if len(names) < (1 if config.problem == "multi_label" else 2):
        raise DataError(
            f"the training rows have one label only, {next(iter(names), 'none')!r}",
            "classification needs two labels or more",
        )
    return in_order(names)


def label_targets(config: Any, rows: Sequence[Row], labels: Sequence[str]) -> NDArray[Any]:
    """[N] label ids, [N, C] labels as 0 and 1, or [N] numbers.

    Args:
        config: Of the task ``classification``.
        rows: N of them.
        labels: By id; C of them.

    Raises:
        DataError: A label that the training rows do not have, or one that is no number.
    """
    ids = {name: place for place, name in enumerate(labels)}
    if config.problem == "regression":
        numbers = [number_cell(row, config.label) for row in rows]
        return np.array(numbers, dtype=np.float32)
    if config.problem == "single_label":
        names = [label_cell(row, config.label) for row in rows]
        found = [
            label_id(name, ids, row, config.label) for name, row in zip(names, rows, strict=True)
        ]
        return np.array(found, dtype=np.int64)
    there = np.zeros((len(rows), len(labels)), dtype=np.float32)
    for place, row in enumerate(rows):
        for name in label_cells(row, config.label, config.separator):
            there[place, label_id(name, ids, row, config.label)] = 1
    return there


def label_cells(row: Row, column: str, separator: str) -> tuple[str, ...]:
    """The labels of a row, none among them: a list, or names with a separator between them.

    Raises:
        DataError: No such column.
    """
    value = row.cell(column)
    names = value if isinstance(value, list) else str(value).split(separator)
    return tuple(dict.fromkeys(name for name in (str(n).strip() for n in names) if name))


def number_cell(row: Row, column: str) -> float:
    """The number of a row.

    Raises:
        DataError: No such column, or something else in it.
    """
    value = row.cell(column)
    try:
        found = math.nan if isinstance(value, bool | list | dict) else float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise DataError(
            f"{row.origin}: column {column!r}: {value!r} is no number; "
            "regression expects one such as 3.8",
            "labels by name: leave task.problem out",
        )
    return found


def label_id(name: str, ids: Mapping[str, int], row: Row, column: str) -> int:
    """A label's id.

    Raises:
        DataError: It is not among the training labels.
    """
    if name not in ids:
        raise DataError(
            f"{row.origin}: column {column!r}: label {name!r} is not among the training labels: "
            f"{listed_names(ids)}",
            "mend the row, or add training rows of that label",
        )
    return ids[name]


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sorted names; numbers in numeric order."""
    found = set(names)
    numeric = all(_is_whole(name) for name in found)
    return tuple(sorted(found, key=int if numeric else str))


def _is_whole(name: str) -> bool:
    digits = name.removeprefix("-")
    return digits.isascii() and digits.isdigit()


_SHOWN = 20


def listed_names(names: Iterable[str]) -> str:
    """Names for a message, not all of very many."""
    known = list(names)
    more = f", and {len(known) - _SHOWN:,} more" if len(known) > _SHOWN else ""
    return ", ".join(known[:_SHOWN]) + more


def positive_label(asked: str | Sequence[str] | None, labels: Sequence[str]) -> str | None:
    """The label that F1 is of: the first of those asked for that there is; None if none was.

    Raises:
        ConfigError: None of them is a label.
    """
    if asked is None:
        return None
    wanted = [asked] if isinstance(asked, str) else list(asked)
    for name in wanted:
        if name in labels:
            return name
    known = nearest(wanted[0], labels) if wanted else ""
    raise ConfigError(f"task.positive: no label {', '.join(map(repr, wanted))}{known}")


def class_weights(
    asked: str | Mapping[str, float], targets: NDArray[np.int64], labels: Sequence[str]
) -> NDArray[np.float32]:
    """What a target of each class counts for.

    Args:
        asked: "balanced": N / (C * targets of the class), whose mean over the N targets is 1; or
            by label, 1 for those that are not named.
        targets: [N] label ids.
        labels: By id.

    Returns:
        [C].

    Raises:
        ConfigError: A label that there is not.
    """
    if isinstance(asked, Mapping):
        return _named_weights(asked, labels)
    counts = np.bincount(targets, minlength=len(labels))
    return (len(targets) / (len(labels) * np.maximum(counts, 1))).astype(np.float32)


def multi_label_weights(
    asked: str | Mapping[str, float], targets: NDArray[np.float32], labels: Sequence[str]
) -> NDArray[np.float32]:
    """What the two targets of each label count for, where a row may have several labels.

    Args:
        asked: "balanced": as ``class_weights``, label by label; or by label, the weight of the
            rows that have it.
        targets: [N, C], 1 where a row has the label.
        labels: By id.

    Returns:
        [C, 2]: the label is absent, it is there.

    Raises:
        ConfigError: A label that there is not.
    """
    if isinstance(asked, Mapping):
        there = _named_weights(asked, labels)
        return np.stack([np.ones_like(there), there], axis=1)
    having = targets.sum(0)
    counts = np.stack([len(targets) - having, having], axis=1)
    weights: NDArray[np.float64] = len(targets) / (2 * np.maximum(counts, 1))
    return weights.astype(np.float32)


def _named_weights(asked: Mapping[str, float], labels: Sequence[str]) -> NDArray[np.float32]:
    for name in asked:
        if name not in labels:
            raise ConfigError(f"task.class_weights: no label {name!r}{nearest(name, labels)}")
    return np.array([asked.get(label, 1.0) for label in labels], dtype=np.float32)


# --- Examples: batches, losses, predictions ---


@dataclass(frozen=True)
class Classification(Examples):
    """Rows as token ids, with their labels; see ``base.TaskExamples``."""

    config: Config
    rows: SequenceExamples | _elmo.Texts
    targets: NDArray[Any] | None
    """[N] label ids, [N, C] labels as 0 and 1, or [N] numbers; None for rows to be answered."""
    labels: tuple[str, ...]
    class_weights: NDArray[np.float32] | None
    dropped: tuple[str, ...]

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """The label; of GPT-1 the language model too."""
        return ("label", "lm") if self.rows.language else ("label",)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of the mean of each loss term in the loss."""
        return {term: self.config.lm_weight if term == "lm" else 1.0 for term in self.loss_terms}

    @property
    def cut(self) -> int:
        """Rows that lost text."""
        return self.rows.cut

    @cached_property
    def _loss(self) -> LabelLoss:
        return LabelLoss(self.config.problem, self.class_weights, self.config.label_smoothing)

    def __len__(self) -> int:
        """Rows."""
        return len(self.rows)

    def lengths(self) -> Ints:
        """[N] tokens of each row."""
        return self.rows.lengths()

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The rows ``samples`` padded to the longest of them.

        Args:
            epochs: [B], not used: rows are the same in every epoch.
            samples: [B] row numbers.

        Returns:
            inputs: input_ids, attention_mask, and token_type_ids where the tokenizer has them,
            [B, L], or [B, 2, L] in both orders;
            targets: label [B] or [B, C]; lm, the tokens that each sequence predicts.
        """
        targets = {} if self.targets is None else {"label": self.targets[samples]}
        return self.rows.batch(samples, targets)

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Summed cross-entropy of the labels in nats, or squared errors; see ``LabelLoss``."""
        return self._loss.sums(network(**batch.inputs), batch)

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The plain loss, without weights and smoothing, and the number of right labels."""
        return LabelLoss(self.config.problem).score(network(**batch.inputs), batch)

    def outputs(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Probabilities of the labels [B, C]; of regression the numbers [B, 1]."""
        inputs = {name: value for name, value in batch.inputs.items() if name != "lm_cells"}
        return {"label": label_probabilities(network(**inputs)["label"], self.config.problem)}

    def answers(self, outputs: Mapping[str, Sequence[NDArray[Any]]]) -> list[dict[str, Any]]:
        """The most probable label, all from the threshold on, or the number."""
        if self.config.problem == "regression":
            return [{"prediction": float(row[0])} for row in outputs["label"]]
        return [
            {
                "prediction": self._said(row),
                "probabilities": dict(zip(self.labels, map(float, row), strict=True)),
            }
            for row in outputs["label"]
        ]

    def figures(self, answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """See ``label_metrics``."""
        targets = required(self.targets)
        said = [answer["prediction"] for answer in answers]
        return label_metrics(self.config.problem, said, targets, self.labels, self._positive)

    def uncertainty(self, answers: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
        """See ``label_uncertainty``."""
        said = [answer["prediction"] for answer in answers]
        return label_uncertainty(
            self.config.problem, said, required(self.targets), self.labels, self._positive
        )

    def credits(self, answers: Sequence[Mapping[str, Any]]) -> tuple[str, list[float]]:
        """Right or wrong; of regression the squared error, below 0."""
        targets = required(self.targets)
        said = [answer["prediction"] for answer in answers]
        return per_row_scores(self.config.problem, said, targets, self.labels)

    @property
    def _positive(self) -> str | None:
        return positive_label(self.config.positive, self.labels)

    def _said(self, row: NDArray[Any]) -> str | list[str]:
        if self.config.problem == "multi_label":
            over = row >= self.config.threshold
            return [label for label, there in zip(self.labels, over, strict=True) if there]
        return self.labels[int(row.argmax())]


# --- The network ---


def tokenizer(config: Config, model: str) -> PreTrainedTokenizerBase:
    """The model's own, with its family's template for finetuning."""
    from plmctl.models.load import config_of
    from plmctl.tokenization.load import load_tokenizer

    kind = str(config_of(model).model_type)
    if kind == "elmo":
        return _elmo.load_words(model)
    return with_format(load_tokenizer(model), kind)


def load(
    config: Config,
    model: str,
    labels: tuple[str, ...],
    *,
    pretrained: bool,
    changes: Any,
    new_heads: NewHeads | None = None,
) -> PreTrainedModel:
    """The network with a classification head whose config names the labels; see ``base.Task``."""
    from plmctl.models.heads.classification import TokenIds, load_classifier

    names = labels or ("score",)
    positive_label(config.positive, labels)
    changes = {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": config.problem.replace("label", "label_classification"),
        **changes,
    }
    if config.pooling != "head":
        from plmctl.models.heads.classification import load_pooled

        return load_pooled(
            model, config.pooling, pretrained=pretrained, changes=changes, new_heads=new_heads
        )
    tokens = tokenizer(config, model)
    if config.both_orders and not gpt1_ids(tokens):
        raise ConfigError(f"task.both_orders: {model} is not GPT-1", "leave it out")
    if _elmo.reads_characters(tokens):
        changes = _elmo.changes_of(changes, pretrained=pretrained)
    ids = TokenIds(tokens.pad_token_id, tuple(gpt1_ids(tokens)))
    return load_classifier(model, ids, pretrained=pretrained, changes=changes, new_heads=new_heads)


def forward(model: Any, **inputs: Tensor) -> dict[str, Tensor]:
    """Logits of the labels, [B, C]; of GPT-1 next-token logits too."""
    from plmctl.models.heads.classification import (
        classify_with_decoder,
        classify_with_encoder,
        is_decoder,
    )

    run = classify_with_decoder if is_decoder(model) else classify_with_encoder
    return run(model, **inputs)


# --- Losses and probabilities of the three problems ---


@dataclass(frozen=True)
class LabelLoss:
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
            sums["lm"], _ = language_sums(logits["lm"], batch)
        return sums

    def score(self, logits: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """``sums``, and how many targets are guessed right: nan for regression."""
        targets = batch.targets["label"]
        scores = {"label": self._of_labels(logits["label"], targets)}
        scores["label/correct"] = num_correct(logits["label"], targets, self.problem)
        if "lm" in batch.targets:
            scores["lm"], scores["lm/correct"] = language_sums(logits["lm"], batch)
        return scores

    def _of_labels(self, logits: Tensor, targets: Tensor) -> Tensor:
        import torch

        from plmctl.models.losses import multi_label_sum, single_label_sum, squared_error_sum

        if self.problem == "regression":
            return squared_error_sum(logits, targets)
        weights = self.class_weights
        made = None if weights is None else torch.from_numpy(weights).to(logits.device)
        of = single_label_sum
        if self.problem == "multi_label":
            of = multi_label_sum
        return of(logits, targets, made, self.smoothing)


def num_correct(logits: Tensor, targets: Tensor, problem: Problem) -> Tensor:
    """How many targets the logits name; nan for regression."""
    if problem == "regression":
        return logits.new_tensor(float("nan"))
    if problem == "multi_label":
        return ((logits > 0) == (targets > 0.5)).sum().float()
    return (logits.argmax(-1) == targets).sum().float()


def label_probabilities(logits: Tensor, problem: Problem) -> Tensor:
    """Of each label, [B, C]; of regression the numbers themselves, [B, 1]."""
    if problem == "regression":
        return logits.float()
    return logits.float().sigmoid() if problem == "multi_label" else logits.float().softmax(-1)


# --- Metrics of the three problems ---


def label_metrics(
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
    from plmctl.metrics.classification import (
        accuracy,
        classification_metrics,
        multi_label_f1_micro,
        multi_label_metrics,
        pearson,
        regression_metrics,
    )
    from plmctl.metrics.statistics import with_interval

    if problem == "regression":
        found = regression_metrics(said, targets)
        return with_interval(found, "pearson", pearson, said, targets)
    numbers = {name: number for number, name in enumerate(labels)}
    if problem == "multi_label":
        there = np.array([[label in names for label in labels] for names in said])
        found = multi_label_metrics(there, targets > 0.5, labels)
        return with_interval(found, "f1_micro", multi_label_f1_micro, there, targets > 0.5)
    predicted = np.array([numbers[name] for name in said])
    found = classification_metrics(
        predicted, targets, labels, positive=numbers.get(positive or labels[-1])
    )
    return with_interval(found, "accuracy", accuracy, predicted, targets)


def label_uncertainty(
    problem: Problem,
    said: Sequence[Any],
    targets: NDArray[Any],
    labels: Sequence[str],
    positive: str | None,
) -> dict[str, dict[str, float]]:
    """How sure the figures are that papers report; arguments as ``label_metrics``.

    Returns:
        accuracy, matthews, and f1 of two labels; pearson and spearman of regression; of several
        labels a row f1_micro: each with se, low and high (``metrics.statistics.spread_of``).
    """
    from plmctl.metrics import statistics
    from plmctl.metrics.classification import (
        accuracy_of_counts,
        confusion,
        f1_of_counts,
        matthews_of_counts,
        multi_label_f1_micro,
        pearson,
        spearman,
    )

    if problem == "regression":
        functions = {"pearson": pearson, "spearman": spearman}
        numbers = np.asarray(said, dtype=np.float64)
        return {
            name: statistics.uncertainty(function, numbers, targets)
            for name, function in functions.items()
        }
    if problem == "multi_label":
        there = np.array([[label in names for label in labels] for names in said])
        return {"f1_micro": statistics.uncertainty(multi_label_f1_micro, there, targets > 0.5)}
    ids = {name: number for number, name in enumerate(labels)}
    counts = confusion([ids[name] for name in said], targets, len(labels))
    of_counts: dict[str, statistics.CountFunction] = {
        "accuracy": accuracy_of_counts,
        "matthews": matthews_of_counts,
    }
    if len(labels) == 2:
        of_counts["f1"] = partial(f1_of_counts, positive=ids[positive or labels[-1]])
    return statistics.uncertainty_of_counts(of_counts, counts)


def per_row_scores(
    problem: Problem, said: Sequence[Any], targets: NDArray[Any], labels: Sequence[str]
) -> tuple[str, list[float]]:
    """What each prediction is worth by itself; arguments as ``label_metrics``.

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
