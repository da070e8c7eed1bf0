"""Sequence classification and regression: a text or a pair of texts; a label, labels or a number.

From top to bottom: the config, the task, its examples, the labels of rows, class weights.

Heads are those of transformers, which follow the papers: BERT's pooled [CLS] with dropout and a
linear layer; RoBERTa's dense layer and tanh; GPT-1's and GPT-2's linear layer on the last token.
The published GPT-1 head has a bias, transformers' has none. GPT-1 also learns to predict the next
tokens of the texts: the mean over a text's tokens, with a softmax over the vocabulary (that of the
published code also goes over the position table).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from plmctl.config.base import Text
from plmctl.corpus.cells import (
    MISSING,
    are_vectors,
    as_bit,
    in_brackets,
    look_alikes_of,
    number_of,
    text_name,
    written_value,
)
from plmctl.errors import ConfigError, DataError, did_you_mean, listed, nearest
from plmctl.families.base import family_of
from plmctl.formatting import format_value
from plmctl.metrics import classification as metrics
from plmctl.metrics import statistics
from plmctl.metrics.modules import Kind
from plmctl.tasks import _elmo
from plmctl.tasks._sequences import (
    EncodedRows,
    Readable,
    SequenceExamples,
    format_ids,
    head_class,
    language_weight,
    text_sequences,
)
from plmctl.tasks.base import (
    Answer,
    Counted,
    Outputs,
    ReadableAnswer,
    ScoredConfig,
    Task,
    Unlabelled,
    Use,
    has_label,
    label_cell,
    label_ids,
    name_of,
    refuse_marks,
    required,
    rows_with_text,
    text_cell,
    with_columns,
)

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from plmctl.corpus.labelled import Labels, Row
    from plmctl.models.batch import Batch
    from plmctl.models.load import HeadSource
    from plmctl.models.network import Network


Problem = Literal["single_label", "multi_label", "regression"]


class Config(ScoredConfig):
    """Classify a text or a pair of texts: one label, several, or a number."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("text", "label")

    name: Literal["classification"] = "classification"
    text: Text | tuple[Text, Text] = "text"
    """Column of the text; two columns for a pair. Or a text with columns in braces, as in
    `"Question: {question} Answer: {answer}"`; `{target.name}` is a field of a column."""
    label: Text | tuple[Text, ...] = "label"
    """Column of the label: a name or a number; of several labels: a list, names in one text, or a
    vector of 0 and 1. multi_label only: a list of columns, each with 0 or 1; its name is that of
    the label."""
    labels: tuple[str, ...] = ()
    """multi_label only: the names of the places of vectors of 0 and 1, in order. Empty: their
    numbers, from 0."""
    problem: Problem = "single_label"
    """multi_label: a row has any number of labels; regression: the label is a number."""
    unlabelled: Unlabelled = "refuse"
    """Rows without a gold label: an empty one, `nan`, `None` and what else programs write for no
    value, `-` (OCNLI), or -1 (SNLI, test rows). drop: leave them out of training and scoring, and
    report how many; keep: all but the empty one are ordinary labels."""
    separator: str = Field(default=",", min_length=1)
    """multi_label only: what separates the labels of a row in one text."""
    threshold: float = Field(default=0.5, gt=0, lt=1)
    """multi_label only: the probability from which a label is given."""
    positive: str | tuple[str, ...] | None = None
    """With two labels: the one whose F1 is reported as `f1`; of several names the first that is a
    label counts. Empty: the second label."""
    class_weights: Literal["balanced"] | dict[str, float] | None = None
    """Weight of a training row, by its label: `balanced` (all labels have the same sum), or weights
    by label, 1 for labels that are not named. They multiply losses; the loss is still divided by
    the number of rows."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of each training target that is spread evenly over all labels."""
    lm_weight: float = Field(default=0.5, ge=0)
    """GPT-1 only: weight of the language model's loss, added to that of the labels; 0: none."""
    pooling: Literal["head", "cls", "mean", "max"] = "head"
    """Encoders only: what the head reads. head: the family's own head; cls: the first token's
    vector; mean, max: over all tokens' vectors. Unless it is head, the finetuned folder has no
    class of transformers and loads only if plmctl is imported."""
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
        if self.problem != "multi_label" and (self.labels or not isinstance(self.label, str)):
            raise ValueError("labels, and several columns under `label`, are for multi_label")
        return self

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The column of the label, or one for each."""
        return (self.label,) if isinstance(self.label, str) else self.label


# --- The task ---


class Classification(Task[Config], config=Config):
    """Labelled texts, and a network with a head on whole texts."""

    HEADS = ("ForSequenceClassification",)

    def text_columns(self) -> tuple[str, ...]:
        """The column of the text, or the two of a pair."""
        text = self.config.text
        return (text,) if isinstance(text, str) else text

    has_labels = True

    def labels_of(self, rows: Sequence[Row], labels: tuple[str, ...]) -> list[Labels]:
        """The label of each row, or all of them; none for regression."""
        config = self.config
        if config.problem == "multi_label":
            targets = label_targets(config, rows, labels)
            return [[(labels[k], labels[k]) for k in np.flatnonzero(row)] for row in targets]
        if config.problem == "regression":
            return [[] for _ in rows]
        column = config.label_columns[0]
        return [[(row.cell(column), label_cell(row, column, config.unlabelled))] for row in rows]

    def right_answer(self, row: Row) -> str:
        """The label as it is written."""
        return ", ".join(str(row.cell(column)) for column in self.config.label_columns)

    def readable(self, answer: Answer, values: Mapping[str, Any], top: int) -> list[ReadableAnswer]:
        """The most probable labels; of regression the number."""
        if self.config.problem == "regression":
            return [ReadableAnswer(format_value(answer["prediction"]))]
        return super().readable(answer, values, top)

    def is_labelled(self, row: Row) -> bool:
        """False for the rows that ``unlabelled: drop`` leaves out."""
        config = self.config
        return config.unlabelled != "drop" or all(
            has_label(row, column, config.problem) for column in config.label_columns
        )

    def labels(self, rows: Sequence[Row]) -> tuple[str, ...]:
        """The labels of the training rows, in order; none for regression.

        Raises:
            DataError: A row without a label, or too few labels.
        """
        names = label_names(self.config, rows)
        if self.config.unlabelled == "refuse" and self.config.problem == "single_label":
            refuse_marks(rows, self.config.label_columns[0], names)
        return names

    def tokenizer(self, model: str) -> PreTrainedTokenizerBase:
        """The tokenizer with the family's finetuning template; a word tokenizer for ELMo."""
        from plmctl.models.load import config_of

        if family_of(config_of(model)).READS_CHARACTERS:
            return _elmo.load_words(model)
        return super().tokenizer(model)

    def make(
        self,
        rows: Sequence[Row],
        tokenizer: PreTrainedTokenizerBase,
        labels: tuple[str, ...],
        max_length: int,
        use: Use,
    ) -> ClassificationExamples:
        """The rows as examples; training rows without any text are dropped."""
        config, columns = self.config, self.text_columns()
        rows, dropped = rows_with_text(rows, columns, use)
        texts = [[text_cell(row, column) for row in rows] for column in columns]
        targets = None if use == "predict" else label_targets(config, rows, labels)
        weights = None
        if use == "train" and targets is not None and config.class_weights is not None:
            count = multi_label_weights if targets.ndim == 2 else class_weights
            weights = count(config.class_weights, targets, labels)
        read: Readable
        if _elmo.reads_characters(tokenizer):
            words = _elmo.texts(tokenizer, texts, max_length)
            read, cut = words, words.cut
        else:
            orders = [texts, texts[::-1]] if config.both_orders else [texts]
            views = [text_sequences(tokenizer, order, max_length) for order in orders]
            encoded = EncodedRows.of_views(
                views, tokenizer, language_weight(config.lm_weight, tokenizer, use)
            )
            read, cut = encoded, encoded.cut
        return ClassificationExamples(
            config, read, targets, labels, weights, cut=cut, dropped=dropped
        )

    def count(self, rows: Sequence[Row], labels: tuple[str, ...]) -> Iterator[Counted]:
        """TF-IDF with logistic regression, or for numbers with ridge regression."""
        from plmctl.counting import texts

        targets, columns = label_targets(self.config, rows, labels), self.text_columns()

        def read(rows: Sequence[Row]) -> list[texts.Texts]:
            return [tuple(text_cell(row, column) for column in columns) for row in rows]

        if self.config.problem == "single_label":
            predict = texts.learn_label(read(rows), targets, len(labels))
        elif self.config.problem == "multi_label":
            predict = texts.learn_labels(read(rows), targets)
        else:
            predict = texts.learn_number(read(rows), targets)
        kind = "ridge" if self.config.problem == "regression" else "logistic"
        yield Counted(
            f"TF-IDF with {kind} regression",
            lambda rows, examples: list(examples.answers({"label": predict(read(rows))})),
            len(rows),
        )

    def check(self, model: str, network: PreTrainedConfig) -> None:
        """Refuse a family without a head on texts, and options that are for other families."""
        from plmctl.models.heads.classification import pooled_encoder

        if self.config.pooling == "head":
            head_class(model, "classification")
            if self.config.both_orders and not family_of(network).FORMAT_TOKENS:
                raise ConfigError(f"task.both_orders: {model} is not GPT-1", "leave it out")
            return
        encoder = pooled_encoder(network)
        if encoder.is_encoder_decoder or not family_of(encoder).POOLS:
            raise ConfigError(
                f"task.pooling: {model} is a {encoder.model_type}, and pooling is for encoders",
                "leave it out: the head is the family's own",
            )

    def load(self, start: HeadSource) -> PreTrainedModel:
        """The network with a classification head; its config names the labels."""
        from plmctl.models.heads.classification import load_classifier, load_pooled, pooled_encoder
        from plmctl.models.load import config_of

        config, names = self.config, start.labels or ("score",)
        network = config_of(start.model)
        self.check(start.model, network)
        positive_label(config.positive, start.labels)
        changes = {
            "num_labels": len(names),
            "id2label": dict(enumerate(names)),
            "label2id": {name: number for number, name in enumerate(names)},
            "problem_type": config.problem.replace("label", "label_classification"),
            **start.changes,
        }
        if config.pooling != "head":
            initialize = family_of(pooled_encoder(network)).initialize_head
            return load_pooled(start, config.pooling, changes, initialize)
        if _elmo.reads_characters(start.tokenizer):
            changes = _elmo.changes_of(changes, pretrained=start.pretrained)
        return load_classifier(
            head_class(start.model, "classification"),
            start,
            changes,
            new_ids=format_ids(start.tokenizer),
            initialize=family_of(network).initialize_head,
        )

    @staticmethod
    def forward(model: Any, **inputs: Tensor) -> dict[str, Tensor]:
        """Logits of the labels, [B, C]; for GPT-1 next-token logits too."""
        from plmctl.models.heads.classification import (
            classify_with_decoder,
            classify_with_encoder,
            is_decoder,
        )

        run = classify_with_decoder if is_decoder(model) else classify_with_encoder
        return run(model, **inputs)

    @classmethod
    def of_network(cls, name: str, network: Any) -> tuple[ScoredConfig, tuple[str, ...]]:
        """The problem and labels of a network that plmctl has not finetuned."""
        labels = tuple(network.id2label[number] for number in range(network.num_labels))
        problem = str(network.problem_type or "").removesuffix("_classification")
        if problem == "regression" or (not problem and len(labels) == 1):  # as in transformers
            return Config(problem="regression"), ()
        return with_columns(Config(), {"problem": problem} if problem else {}), labels


# --- Examples: losses, predictions, metrics ---


@dataclass(frozen=True)
class ClassificationExamples(SequenceExamples[Config]):
    """Texts with their labels: targets are [N] label ids, [N, C] labels as 0 and 1, or [N] numbers.

    Attributes:
        class_weights: [C], or [C, 2] with several labels per row. They multiply losses; counts stay
            the numbers of targets.
    """

    term = "label"
    labels: tuple[str, ...]
    class_weights: NDArray[np.float32] | None

    def target_loss(self, logits: Tensor, targets: Tensor, *, training: bool) -> Tensor:
        """Cross-entropy in nats of one label or of each label, or squared errors, summed."""
        import torch

        from plmctl.models.losses import multi_label_sum, single_label_sum, squared_error_sum

        if self.config.problem == "regression":
            return squared_error_sum(logits, targets)
        loss = multi_label_sum if self.config.problem == "multi_label" else single_label_sum
        if not training:
            return loss(logits, targets)
        weights = self.class_weights
        on_device = None if weights is None else torch.from_numpy(weights).to(logits.device)
        return loss(logits, targets, on_device, self.config.label_smoothing)

    def num_correct(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The number of right labels; nan for regression."""
        if self.config.problem == "regression":
            return logits.new_tensor(float("nan"))
        if self.config.problem == "multi_label":
            return ((logits > 0) == (targets > 0.5)).sum().float()
        return (logits.argmax(-1) == targets).sum().float()

    def outputs(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Probabilities of the labels [B, C]; for regression the numbers [B, 1]."""
        logits = self.logits(network, batch).float()
        if self.config.problem == "single_label":
            logits = logits.softmax(-1)
        elif self.config.problem == "multi_label":
            logits = logits.sigmoid()
        return {"label": logits}

    def answers(self, outputs: Outputs) -> list[Answer]:
        """The most probable label, all labels from the threshold on, or the number."""
        answers: list[Answer] = []
        for row in outputs["label"]:
            if self.config.problem == "regression":
                answers.append({"prediction": float(row[0])})
                continue
            prediction: str | list[str] = self.labels[int(row.argmax())]
            if self.config.problem == "multi_label":
                given = row >= self.config.threshold
                prediction = [
                    name for name, is_given in zip(self.labels, given, strict=True) if is_given
                ]
            probabilities = dict(zip(self.labels, map(float, row), strict=True))
            answers.append({"prediction": prediction, "probabilities": probabilities})
        return answers

    @property
    def metric_kind(self) -> Kind:
        """Numbers of labels, a 0 or 1 per label, or numbers."""
        kinds: dict[Problem, Kind] = {
            "single_label": "label",
            "multi_label": "label set",
            "regression": "number",
        }
        return kinds[self.config.problem]

    @property
    def usual_metrics(self) -> tuple[str, ...]:
        """All metrics of the problem, see ``metrics.classification``."""
        single = self.config.problem == "single_label"
        return ("classification",) if single else (self.config.problem,)

    @property
    def metric_options(self) -> dict[str, Any]:
        """Names of the labels; with two of them, F1 is that of the positive one."""
        if self.config.problem == "single_label" and len(self.labels) == 2:
            positive = self._positive
            return {"labels": self.labels, "positive": positive, "average": "binary"}
        return {"labels": self.labels}

    @property
    def interval_of(self) -> tuple[str, statistics.Function]:
        """Accuracy, F1 over all labels, or Pearson's correlation."""
        intervals: dict[Problem, tuple[str, statistics.Function]] = {
            "single_label": ("accuracy", metrics.accuracy),
            "multi_label": ("f1_micro", metrics.multi_label_f1_micro),
            "regression": ("pearson", metrics.pearson),
        }
        return intervals[self.config.problem]

    def predictions(self, answers: Sequence[Answer]) -> NDArray[Any]:
        """[N] label ids, [N, C] labels as 0 and 1, or [N] numbers."""
        given = [answer["prediction"] for answer in answers]
        if self.config.problem == "regression":
            return np.asarray(given, dtype=np.float64)
        if self.config.problem == "multi_label":
            return np.array([[int(label in names) for label in self.labels] for names in given])
        ids = {name: number for number, name in enumerate(self.labels)}
        return np.array([ids[name] for name in given])

    def references(self) -> NDArray[Any]:
        """The true answers, in the form of ``predictions``."""
        targets = required(self.targets)
        return (targets > 0.5).astype(np.int64) if targets.ndim == 2 else targets

    def uncertainty(self, answers: Sequence[Answer]) -> dict[str, dict[str, float]]:
        """The intervals of the metrics that papers report.

        accuracy, matthews, and f1 of two labels; of very many labels accuracy alone; for regression
        pearson and spearman; with several labels per row f1_micro.
        """
        predictions, references = self.predictions(answers), self.references()
        many = len(self.labels) > metrics.MOST_IN_MATRIX
        if self.config.problem == "single_label" and not many:
            of_counts: dict[str, statistics.CountFunction] = {
                "accuracy": metrics.accuracy_of_counts,
                "matthews": metrics.matthews_of_counts,
            }
            if len(self.labels) == 2:
                of_counts["f1"] = partial(metrics.f1_of_counts, positive=self._positive)
            counts = metrics.confusion(predictions, references, len(self.labels))
            return statistics.uncertainty_of_counts(of_counts, counts)
        functions: dict[str, statistics.Function] = {"f1_micro": metrics.multi_label_f1_micro}
        if self.config.problem == "single_label":
            functions = {"accuracy": metrics.accuracy}
        if self.config.problem == "regression":
            functions = {"pearson": metrics.pearson, "spearman": metrics.spearman}
        return {
            name: statistics.uncertainty(function, predictions, references)
            for name, function in functions.items()
        }

    def per_example_scores(self, answers: Sequence[Answer]) -> tuple[str, list[float]]:
        """1 if all labels of a row are right, else 0; for regression minus the squared error."""
        predictions, references = self.predictions(answers), self.references()
        if self.config.problem == "regression":
            return "negative squared error", (-((predictions - references) ** 2)).tolist()
        right = predictions == references
        if self.config.problem == "multi_label":
            return "exact match", right.all(1).astype(float).tolist()
        return "accuracy", right.astype(float).tolist()

    @property
    def _positive(self) -> int:
        """The id of the label whose F1 is ``f1``, of two; by default the second."""
        name = positive_label(self.config.positive, self.labels)
        return self.labels.index(name or self.labels[-1])


# --- The labels of rows ---


_MOST_LABELS, _MOST_DECIMALS = 10_000, 100


def label_names(config: Any, rows: Sequence[Row]) -> tuple[str, ...]:
    """The label names of training rows, in order; none for regression.

    Raises:
        DataError: A row without a label, too few or too many labels, or a number with two names.
    """
    if config.problem == "regression":
        return ()
    if config.problem == "multi_label":
        return _names_of_several(config, rows)
    column = config.label_columns[0]
    names = {label_cell(row, column, config.unlabelled) for row in rows}
    refuse_equal_numbers(rows, column)
    return _checked_names(names, 2)


def _names_of_several(config: Config, rows: Sequence[Row]) -> tuple[str, ...]:
    if not isinstance(config.label, str):
        return config.label
    lists = [label_list(row, config.label, config.separator) for row in rows]
    if not are_vectors(lists):
        if config.labels:
            raise ConfigError(
                "task.labels names the places of vectors of 0 and 1, and these rows have other "
                "labels",
                "leave it out",
            )
        texts = {str(one[0]) for one in lists if len(one) == 1}
        if len(texts) > 1 and all(re.fullmatch("[01]{2,}", text) for text in texts):
            raise DataError(
                f"{rows[0].origin}: column {config.label!r}: {min(texts)} looks like a vector of 0 "
                "and 1",
                "write it as [0, 1, 0], or as 0,1,0",
            )
        both = zip(rows, lists, strict=True)
        return _checked_names({name for row, of in both for name in list_names(row, config, of)}, 1)
    size = max(map(len, lists))
    if config.labels and len(config.labels) != size:
        raise ConfigError(
            f"task.labels has {len(config.labels)} names, and the vectors of 0 and 1 in column "
            f"{config.label!r} have {size} places",
            "name each place, in order",
        )
    return config.labels or tuple(map(str, range(size)))


def _checked_names(names: set[str], least: int) -> tuple[str, ...]:
    if len(names) < least:
        raise DataError(
            f"the training rows have one label only, {next(iter(names), 'none')!r}",
            "classification needs two labels or more",
        )
    decimals = {name for name in names if number_of(name) is not None and "." in name}
    most = _MOST_DECIMALS if len(decimals) > len(names) / 2 else _MOST_LABELS
    if len(names) > most:
        what = f"labels that are decimals, such as {min(decimals)}" if decimals else "labels"
        raise DataError(
            f"the training rows have {len(names):,} {what}; at most {most:,} are supported",
            "if it is a number to predict, set `task.problem: regression`; or name the column of "
            "the label with `task.label`",
        )
    return in_order(names)


def refuse_equal_numbers(rows: Sequence[Row], column: str) -> None:
    """Refuse true beside 1, or false beside 0: numbers that are equal and would be two classes.

    1, 1.0 and their texts are one class.

    Raises:
        DataError: There are such values; with the row of the second.
    """
    seen: dict[float, tuple[bool, Any]] = {}
    for row in rows:
        value = row.values.get(column)
        if isinstance(value, int | float):
            kind, first = seen.setdefault(value, (isinstance(value, bool), value))
            if kind != isinstance(value, bool):
                raise DataError(
                    f"{row.origin}: column {column!r}: {value}, where other rows have {first}: "
                    "they would be two classes",
                    "write all labels in the same way",
                )


def label_targets(config: Any, rows: Sequence[Row], labels: Sequence[str]) -> NDArray[Any]:
    """[N] label ids, [N, C] labels as 0 and 1, or [N] numbers.

    Args:
        labels: By id; C of them.

    Raises:
        DataError: A label that the training rows do not have, or one that is no number.
    """
    ids = label_ids(labels)
    column = config.label_columns[0]
    if config.problem == "regression":
        numbers = [number_cell(row, column) for row in rows]
        return np.array(numbers, dtype=np.float32)
    if config.problem == "single_label":
        names = [label_cell(row, column, config.unlabelled) for row in rows]
        targets = [label_id(name, ids, row, column) for name, row in zip(names, rows, strict=True)]
        return np.array(targets, dtype=np.int64)
    if not isinstance(config.label, str):
        if len(config.label) != len(labels):
            raise ConfigError(
                f"{len(config.label)} columns of labels, and {len(labels)} labels: "
                f"{listed(labels)}",
                "name the column of each label, in this order",
            )
        bits = [[bit_cell(row, name) for name in config.label] for row in rows]
        return np.array(bits, dtype=np.float32)
    lists = [label_list(row, column, config.separator) for row in rows]
    there = np.zeros((len(rows), len(labels)), dtype=np.float32)
    # Only if each place is known to be that label: in the order of names it would be a guess.
    by_place = tuple(labels) in (config.labels, tuple(map(str, range(len(labels)))))
    vectors = by_place and are_vectors(lists) and max(map(len, lists)) == len(labels)
    for place, (row, values) in enumerate(zip(rows, lists, strict=True)):
        if vectors:
            there[place] = [as_bit(value) for value in values] or 0
            continue
        for name in list_names(row, config, values):
            there[place, label_id(name, ids, row, column)] = 1
    return there


def bit_cell(row: Row, column: str) -> int:
    """0 or 1, where each label has a column.

    Raises:
        DataError: No such column, or something else in it.
    """
    value = row.cell(column)
    bit = as_bit(value)
    if bit is None:
        raise DataError(
            f"{row.origin}: column {column!r}: {value!r:.60}; a column of one label has 0 or 1",
            "a single column with all labels of a row: task.label=COLUMN",
        )
    return bit


def label_list(row: Row, column: str, separator: str) -> list[Any]:
    """What stands in the column of the labels of a row, as a list; empty: none.

    A text may be a list as JSON, Python or NumPy write it, or have names with a separator between
    them. ``{name: 0 or 1}`` is the list of the names with 1.

    Raises:
        DataError: No such column, or something else in it.
    """
    value, where = row.cell(column), f"{row.origin}: column {column!r}"
    if isinstance(value, str):
        read = written_value(value)
        single = value.strip().startswith("(") and "," not in value  # (neutral)
        if read is None and in_brackets(value) and not single:
            raise DataError(
                f"{where}: {value:.60} looks like a list, and cannot be read as one",
                """write ["a", "b"], or a,b without brackets""",
            )
        value = value.split(separator) if read is None else read
    if isinstance(value, dict):
        bits = {name: as_bit(bit) for name, bit in value.items()}
        if None in bits.values():
            raise DataError(f"{where}: {value!r:.80}", "expected 0 or 1 for each name, or a list")
        value = [name for name, bit in bits.items() if bit]
    return value if isinstance(value, list) else [value]


def list_names(row: Row, config: Config, values: Sequence[Any]) -> tuple[str, ...]:
    """The names of a row's labels, each once.

    Raises:
        DataError: A value that is no label, or a number twice, as in a vector.
    """
    where = f"{row.origin}: column {config.label_columns[0]!r}"
    for value in values:
        if value is None or value != value:
            raise DataError(
                f"{where}: a label is null", "expected a list of names; an empty list is no label"
            )
    names = [name_of(value, where) for value in values]
    for name in names:
        if name in MISSING and config.unlabelled != "keep":
            raise DataError(
                f"{where} has {name!r}, no value; expected labels",
                "to leave rows without a label out: task.unlabelled=drop; if it is a label: "
                "task.unlabelled=keep",
            )
    numbers = [name for name in names if number_of(name) is not None]
    if len(set(numbers)) < len(numbers) or any("." in name for name in numbers):
        raise DataError(
            f"{where}: {list(values)!r:.80} is no list of labels",
            "expected names, or vectors of 0 and 1 with the same number of places in each row",
        )
    return tuple(dict.fromkeys(filter(None, names)))


_LARGEST = float(np.finfo(np.float32).max)


def number_cell(row: Row, column: str) -> float:
    """The number of a row.

    Raises:
        DataError: No such column, or something else in it.
    """
    value = row.cell(column)
    number = number_of(value)
    if number is None or abs(number) >= _LARGEST:
        raise DataError(
            f"{row.origin}: column {column!r}: {value!r:.80} is no number; "
            "regression expects one such as 3.8",
            "labels by name: leave task.problem out",
        )
    return number


def label_id(name: str, ids: Mapping[str, int], row: Row, column: str) -> int:
    """A label's id.

    Raises:
        DataError: It is not among the training labels.
    """
    if name not in ids:
        number = number_of(name) is not None and "." in name
        raise DataError(
            f"{row.origin}: column {column!r}: label {name!r} is not among the training labels: "
            f"{listed(ids)}{did_you_mean(look_alikes_of(name, ids))}",
            "if it is a number to predict, set `task.problem: regression`"
            if number
            else "fix the row, or add training rows with that label",
        )
    return ids[name]


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sorted names; numbers in numeric order."""
    distinct = set(names)
    numeric = all(_is_whole(name) for name in distinct)
    return tuple(sorted(distinct, key=int if numeric else str))


def _is_whole(name: str) -> bool:
    digits = name.removeprefix("-")
    return digits.isascii() and digits.isdigit()


# --- Class weights, and the label of F1 ---


def positive_label(positive: str | Sequence[str] | None, labels: Sequence[str]) -> str | None:
    """The label whose F1 is reported: the first requested name that is a label; None: no request.

    Raises:
        ConfigError: None of them is a label.
    """
    if positive is None:
        return None
    wanted = [positive] if isinstance(positive, str) else list(positive)
    ids = label_ids(labels)
    for name in wanted:
        if (number := ids.get(name, ids.get(text_name(name)))) is not None:
            return labels[number]
    known = nearest(wanted[0], labels) if wanted else ""
    raise ConfigError(f"task.positive: no label {', '.join(map(repr, wanted))}{known}")


def class_weights(
    setting: str | Mapping[str, float], targets: NDArray[np.int64], labels: Sequence[str]
) -> NDArray[np.float32]:
    """The weight of a target of each class.

    Args:
        setting: "balanced": N / (C * targets of the class), whose mean over the N targets is 1; or
            by label, 1 for those that are not named.
        targets: [N] label ids.

    Returns:
        [C].

    Raises:
        ConfigError: An unknown label.
    """
    if isinstance(setting, Mapping):
        return _named_weights(setting, labels)
    counts = np.bincount(targets, minlength=len(labels))
    return (len(targets) / (len(labels) * np.maximum(counts, 1))).astype(np.float32)


def multi_label_weights(
    setting: str | Mapping[str, float], targets: NDArray[np.float32], labels: Sequence[str]
) -> NDArray[np.float32]:
    """The weights of the two targets of each label, if a row may have several labels.

    Args:
        setting: "balanced": as ``class_weights``, label by label; or by label, the weight of the
            rows that have it.
        targets: [N, C], 1 where a row has the label.

    Returns:
        [C, 2]: the label is absent, it is there.

    Raises:
        ConfigError: An unknown label.
    """
    if isinstance(setting, Mapping):
        there = _named_weights(setting, labels)
        return np.stack([np.ones_like(there), there], axis=1)
    having = targets.sum(0)
    counts = np.stack([len(targets) - having, having], axis=1)
    weights: NDArray[np.float64] = len(targets) / (2 * np.maximum(counts, 1))
    return weights.astype(np.float32)


def _named_weights(weights: Mapping[str, float], labels: Sequence[str]) -> NDArray[np.float32]:
    ids = label_ids(labels)
    named = np.ones(len(labels), dtype=np.float32)
    for name, weight in weights.items():
        number = ids.get(name, ids.get(text_name(name)))
        if number is None:
            raise ConfigError(f"task.class_weights: no label {name!r}{nearest(name, labels)}")
        named[number] = weight
    if not named.any():
        raise ConfigError("task.class_weights: every weight is 0", "then nothing is learned")
    return named
