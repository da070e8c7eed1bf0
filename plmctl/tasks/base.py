"""What every finetuning task is: ``Task`` and ``TaskExamples``.

A task turns labelled rows into examples, loads a network with the task's head, and turns the
network's outputs into answers and metrics. One file of this folder defines one task: ``Config``, a
subclass of ``Task`` and a subclass of ``TaskExamples``. A finetuned folder records its task
(``Finetuned``).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

from plmctl import registry
from plmctl.arrays import Ints
from plmctl.config.base import TaskConfig, Text
from plmctl.corpus.cells import MISSING, label_name, text_name, written_value
from plmctl.errors import ConfigError, DataError, nearest
from plmctl.families.base import family_of
from plmctl.files import read_json
from plmctl.metrics import modules, statistics
from plmctl.models.base import Examples
from plmctl.tokenization.unknown import strings_of

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from plmctl.corpus.labelled import Labels, Row
    from plmctl.models.batch import Batch
    from plmctl.models.load import HeadSource
    from plmctl.models.network import Network


# --- A task ---


Use = Literal["train", "score", "predict"]
"""What rows are for: train (rows that cannot be learned from are dropped), score (no row is
dropped), or predict (rows need no labels)."""

Answer = dict[str, Any]
"""The answer to one row, in plain types: ``prediction``, and what the task adds to it."""

Outputs = Mapping[str, Sequence[NDArray[Any]]]
"""What a network gives for all examples in order: one array per example, by name."""


@dataclass(frozen=True)
class Counted:
    """What counting has learned from training rows; see ``plmctl.counting``.

    Attributes:
        name: Of the method, as tables show it.
        answers: The answers to rows, which are those of the examples in the same order.
        rows: How many rows it learned from.
    """

    name: str
    answers: Callable[[Sequence[Row], Any], list[Answer]]
    rows: int


MetricNames = Annotated[tuple[Text, ...], AfterValidator(modules.check_names)]


@dataclass(frozen=True)
class ReadableAnswer:
    """An answer as a user reads it.

    Attributes:
        text: A label, a text, or words with their tags.
        probability: None: the task gives none.
    """

    text: str
    probability: float | None = None


class ScoredConfig(TaskConfig):
    """Config of a task whose answers are scored by metrics; every task's ``Config`` extends it."""

    COLUMNS: ClassVar[tuple[str, ...]] = ()
    """The fields that name columns of the rows."""

    metrics: MetricNames = ()
    """What answers are scored by: metrics of plmctl, files of your own such as `./my_metric.py`
    (docs/finetuning.md), or `hf:NAME` for one of the Hub. Empty: the usual metrics of the task."""
    baseline: Literal["auto", "none"] = "auto"
    """auto: also say what counting gives on the same rows, such as TF-IDF with logistic regression;
    it needs `pip install 'plmctl[counting]'`, and takes seconds. none: do not."""


C = TypeVar("C", bound=ScoredConfig, covariant=True)


class Task(ABC, Generic[C]):
    """A finetuning task with its config: rows in, a network with a head and examples out.

    Attributes:
        HEADS: Ends of the names of transformers' network classes that have this task's head: a
            folder that plmctl has not finetuned is recognised by them.
        WRITES: Whether its networks generate text.
    """

    Config: ClassVar[type[ScoredConfig]]
    HEADS: ClassVar[tuple[str, ...]] = ()
    WRITES: ClassVar[bool] = False

    def __init_subclass__(cls, config: type[ScoredConfig] | None = None) -> None:
        """Set ``Config``; base classes of several tasks have none."""
        super().__init_subclass__()
        if config is not None:
            cls.Config = config

    def __init__(self, config: C) -> None:
        self.config = config

    @abstractmethod
    def text_columns(self) -> tuple[str, ...]:
        """The columns that are read."""

    def all_texts(self, row: Row) -> list[str]:
        """The texts of a row that the network reads or writes."""
        return list(strings_of(row.values.get(column) for column in self.text_columns()))

    def values_of(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """The rows that a user has given as texts, one after the other: their values by column.

        Raises:
            ConfigError: Too few or too many texts.
        """
        columns = self.text_columns()
        if len(texts) % len(columns):
            raise ConfigError(
                f"requires {' and '.join(columns)}: {len(columns)} texts, not {len(texts)}",
                "give them in this order, or rows of a file: --input",
            )
        starts = range(0, len(texts), len(columns))
        return [dict(zip(columns, texts[at : at + len(columns)], strict=True)) for at in starts]

    @property
    def takes_more(self) -> bool:
        """Whether the last column may have several texts, as options."""
        return False

    def texts_of(self, row: Row) -> list[str]:
        """The texts of a row, as ``values_of`` reads them."""
        return [str(row.cell(column)) for column in self.text_columns()]

    def warnings(self, *, left_to_right: bool) -> Iterator[str]:
        """What a user should know of this task with a network that reads in this way."""
        yield from ()

    def right_answer(self, row: Row) -> str:
        """The right answer of a labelled row, as a user reads it."""
        return ""

    def readable(self, answer: Answer, values: Mapping[str, Any], top: int) -> list[ReadableAnswer]:
        """The answer to a row, the most probable first, as a user reads it.

        Args:
            answer: Of ``TaskExamples.answers``.
            top: Labels or options at most.
        """
        probabilities = answer.get("probabilities")
        if isinstance(probabilities, dict):
            ranked = sorted(probabilities.items(), key=lambda pair: -pair[1])[:top]
            return [ReadableAnswer(str(name), p) for name, p in ranked]
        return [ReadableAnswer(str(answer.get("prediction")))]

    def prompt(self, row: Row) -> str:
        """The question or text that stands before a sample of the answers; empty: no samples."""
        return ""

    def split_columns(self) -> tuple[str, ...]:
        """Rows that are equal in these columns are never split between training and validation."""
        return self.text_columns()

    has_labels: ClassVar[bool] = False
    """Whether the head has one output per label."""

    def labels_of(self, rows: Sequence[Row], labels: tuple[str, ...]) -> list[Labels]:
        """The labels of each row as they are written, and their names; nothing: it has none.

        Args:
            labels: By id, those of the training rows.
        """
        return []

    def is_labelled(self, row: Row) -> bool:
        """Whether a row is trained on and scored; rows without a gold label are not."""
        return True

    def labels(self, rows: Sequence[Row]) -> tuple[str, ...]:
        """The labels of the training rows: their order gives the ids. Empty: the task has none."""
        return ()

    def positions(self, max_length: int) -> int:
        """Positions of the network that a row of ``max_length`` tokens takes."""
        return max_length

    def with_tuned_values(self, results: Mapping[str, Any]) -> ScoredConfig:
        """The config with values that the results decide, such as a tuned threshold."""
        return self.config

    def tokenizer(self, model: str) -> PreTrainedTokenizerBase:
        """The tokenizer of a model folder or Hub id, with its family's template for finetuning.

        Raises:
            ConfigError: The task is not supported for the model.
        """
        from plmctl.models.load import config_of
        from plmctl.tokenization.load import load_tokenizer

        return family_of(config_of(model)).finetuning_format(load_tokenizer(model))

    def check(self, model: str, network: PreTrainedConfig) -> None:
        """Refuse a model that cannot have this task's head, before any row is read.

        Args:
            model: A model folder or Hub id.

        Raises:
            ConfigError: It cannot.
        """

    @abstractmethod
    def load(self, start: HeadSource) -> PreTrainedModel:
        """The network with the task's head.

        Raises:
            ConfigError: The family has no such head.
            DataError: See ``models.load.load_network``.
        """

    @abstractmethod
    def make(
        self,
        rows: Sequence[Row],
        tokenizer: PreTrainedTokenizerBase,
        labels: tuple[str, ...],
        max_length: int,
        use: Use,
    ) -> TaskExamples[C]:
        """The rows as examples; training leaves out rows that cannot be learned from.

        Raises:
            DataError: A column is missing, or a label is not among the training labels: the message
                has file, row, column and what was expected.
        """

    def count(self, rows: Sequence[Row], labels: tuple[str, ...]) -> Iterator[Counted]:
        """What counting learns from training rows, by one method after the other.

        Args:
            rows: Few enough, see ``counting.rows.drawn``.
            labels: By id, those of the training rows.

        Raises:
            ConfigError: A package is not installed.
            DataError: Rows that cannot be counted.
        """
        return iter(())

    @staticmethod
    @abstractmethod
    def forward(model: Any, **inputs: Tensor) -> dict[str, Tensor]:
        """The logits of each loss term."""

    @classmethod
    def of_network(cls, name: str, network: Any) -> tuple[ScoredConfig, tuple[str, ...]]:
        """The config and labels of a network with this head that plmctl has not finetuned."""
        return cls.Config(name=name), ()


# --- The examples of a task ---


@dataclass(frozen=True)
class TaskExamples(Examples, Generic[C]):
    """Rows as a network reads them, and the metrics of its answers.

    A row may give several examples (the windows of a long text).

    Attributes:
        cut: Rows that lost text to ``max_length``.
        dropped: One line per training row that cannot be learned from: which row, and why.
    """

    config: C
    cut: int = field(default=0, kw_only=True)
    dropped: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def notices(self) -> tuple[str, ...]:
        """What a user should know of rows that are scored."""
        return ()

    @abstractmethod
    def lengths(self) -> Ints:
        """[N] tokens of each example."""

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy of each loss term in nats, summed over its targets."""
        from plmctl.models.losses import cross_entropy_sums

        return cross_entropy_sums(network(**batch.inputs), batch.targets)

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The loss, and ``<term>/correct``: the number of targets with the largest logit."""
        from plmctl.models.losses import score_sums

        return score_sums(network(**batch.inputs), batch.targets)

    @abstractmethod
    def outputs(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """What ``answers`` needs of the network, each [B, ...]."""

    @abstractmethod
    def answers(self, outputs: Outputs) -> list[Answer]:
        """One answer per row, in the order of the rows."""

    # Metrics: predictions and references in the form of ``metric_kind``, scored by modules of
    # ``evaluate``.

    @property
    @abstractmethod
    def metric_kind(self) -> modules.Kind:
        """The form of predictions and references."""

    @property
    @abstractmethod
    def usual_metrics(self) -> tuple[str, ...]:
        """Names of the metrics of ``plmctl.metrics.modules`` that are computed by default."""

    @property
    def metric_options(self) -> Mapping[str, Any]:
        """Options for those of plmctl's metrics that know them, such as the names of labels."""
        return {}

    @property
    def interval_of(self) -> tuple[str, statistics.Function] | None:
        """The metric that gets a bootstrap interval: its name and its function."""
        return None

    @abstractmethod
    def predictions(self, answers: Sequence[Answer]) -> Any:
        """What metrics compare with ``references``, one per row."""

    @abstractmethod
    def references(self) -> Any:
        """What is right, one per row.

        Raises:
            DataError: The rows have no labels, since they are for ``predict``.
        """

    def compute_metrics(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The metrics of the answers, by name."""
        predictions, references = self.predictions(answers), self.references()
        metrics: dict[str, Any] = {}
        for name in self.config.metrics or self.usual_metrics:
            results = modules.compute(
                name, self.metric_kind, predictions, references, self.metric_options
            )
            if not modules.is_ours(name):
                renamed = modules.own_names(name, results, metrics)
                results = {renamed.get(key, key): value for key, value in results.items()}
            metrics |= results
        if self.interval_of is not None and self.interval_of[0] in metrics:
            metrics = statistics.with_interval(metrics, *self.interval_of, predictions, references)
        return metrics

    def check_metrics(self) -> list[str]:
        """Refuse metrics that could not be computed after training.

        A metric of the user's is computed once, with every answer right.

        Returns:
            Lines on results that get another name, since plmctl has results of the same name.

        Raises:
            ConfigError: There is no such metric, it is for other tasks, or it fails.
            PlmError: A user's metric ends the program.
        """
        references, taken, lines = self.references(), set[str](), list[str]()
        for name in self.config.metrics:
            if modules.is_ours(name):
                modules.find_metric(name, self.metric_kind)
            else:
                right = modules.right_answers(references, self.metric_kind)
                results = modules.compute(name, self.metric_kind, right, references, {})
                renamed = modules.own_names(name, results, taken)
                taken |= {renamed.get(key, key) for key in results}
                lines += [
                    f"task.metrics: {name} returns {key!r}, a name that is in use: its result is "
                    f"called {new!r}"
                    for key, new in renamed.items()
                ]
        return lines

    def uncertainty(self, answers: Sequence[Answer]) -> dict[str, dict[str, float]]:
        """How much metrics vary over other rows of the same kind: the bootstrap.

        Returns:
            By metric: its standard error ``se`` and its 95 % interval from ``low`` to ``high``, in
            the metric's unit.
        """
        return {}

    @abstractmethod
    def per_example_scores(self, answers: Sequence[Answer]) -> tuple[str, list[float]]:
        """A score of each row's answer, larger is better, and its name: runs are compared by it.

        If the task's metric is no mean over rows (Matthews, entity F1), this is the nearest mean.
        """


def as_batch(
    inputs: Mapping[str, NDArray[Any]], targets: Mapping[str, NDArray[Any]], real: NDArray[np.bool_]
) -> Batch:
    """A batch of arrays.

    Args:
        targets: By loss term.
        real: False at padding.
    """
    import torch

    from plmctl.models.batch import Batch

    return Batch(
        {name: torch.from_numpy(array) for name, array in inputs.items()},
        {name: torch.from_numpy(array) for name, array in targets.items()},
        int(real.sum()),
        real.size,
    )


# --- Finding a task: by its name, or of a finetuned folder ---


def get_task(name: str) -> type[Task[ScoredConfig]]:
    """The task of that name.

    Raises:
        ConfigError: There is none; the message has the nearest name.
    """
    return registry.member("tasks", name, Task)


def make_task(config: TaskConfig) -> Task[ScoredConfig]:
    """The task of a config."""
    assert isinstance(config, ScoredConfig)  # every task's Config is one
    return get_task(config.name)(config)


_FILE = "task.json"


@dataclass(frozen=True)
class Finetuned:
    """What a finetuned folder records of its task.

    Attributes:
        max_length: In tokens.
    """

    task: Task[ScoredConfig]
    labels: tuple[str, ...]
    max_length: int

    @property
    def config(self) -> ScoredConfig:
        """The task's config."""
        return self.task.config

    def write(self, folder: Path) -> None:
        """Write it into a model folder."""
        document = {
            "task": self.config.model_dump(mode="json"),
            "labels": list(self.labels),
            "max_length": self.max_length,
        }
        text = json.dumps(document, ensure_ascii=False, indent=2)
        (folder / _FILE).write_text(text + "\n", encoding="utf-8")


def read_finetuned(model: str, columns: Mapping[str, Any] | None = None) -> Finetuned:
    """The task of a finetuned folder or Hub id: from its task.json, else by its network's class.

    Args:
        columns: Fields of the task's config that name other columns than in finetuning.

    Raises:
        ConfigError: The model is not finetuned for any task, or the task has no such field.
    """
    path = Path(model) / _FILE
    if path.is_file():
        config, labels, max_length = _read_task(path)
        return Finetuned(make_task(with_columns(config, columns or {})), labels, max_length)
    from plmctl.families.base import longest_input
    from plmctl.models.load import config_of

    network: Any = config_of(model)
    made_for = (network.architectures or ["model without a head"])[0]
    for name in registry.names("tasks"):
        task = get_task(name)
        if made_for.endswith(task.HEADS):
            config, labels = task.of_network(name, network)
            config = with_columns(config, columns or {})
            return Finetuned(make_task(config), labels, min(longest_input(network) or 512, 512))
    raise ConfigError(f"{model}: not finetuned for a task, but a {made_for}", "finetune it first")


def _read_task(path: Path) -> tuple[ScoredConfig, tuple[str, ...], int]:
    """The config, the labels and the length that ``Finetuned.write`` wrote."""
    document = read_json(path, "task", "labels", "max_length")
    try:
        config = get_task(document["task"]["name"]).Config.model_validate(document["task"])
        labels, length = document["labels"], document["max_length"]
        right = isinstance(labels, list) and all(isinstance(label, str) for label in labels)
        if not right or not isinstance(length, int) or length < 1:
            raise ValueError("labels are texts, and max_length is a number of tokens")
    except (ConfigError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: not a task of plmctl: {str(error).splitlines()[0]}",
            "copy the model folder again, or finetune it again",
        ) from error
    return config, tuple(labels), length


Scored = TypeVar("Scored", bound=ScoredConfig)


def with_columns(config: Scored, columns: Mapping[str, Any]) -> Scored:
    """A task's config that reads other columns.

    Raises:
        ConfigError: The task has no such field.
    """
    fields = type(config).model_fields
    for name in columns:
        if name == "name" or name not in fields:
            known = config.COLUMNS or [field for field in fields if field != "name"]
            raise ConfigError(
                f"the task {config.name!r} has no field {name!r}{nearest(name, known)}"
            )
    return type(config).model_validate({**config.model_dump(), **columns})


# --- Rows: their texts and labels, and rows without them ---


def text_cell(row: Row, column: str) -> str:
    """The value of a column, as text.

    Raises:
        DataError: No such column, or a list or bytes in it.
    """
    value = row.cell(column)
    if isinstance(value, list | dict | bytes):
        raise DataError(
            f"{row.origin}: column {column!r} holds a {type(value).__name__}, not a text"
        )
    return str(value)


Unlabelled = Literal["refuse", "drop", "keep"]

_MARKS = ("-", "-1")

_ABSENT = object()


def label_cell(row: Row, column: str, unlabelled: Unlabelled | None = None) -> str:
    """The name of the one label of a row.

    Args:
        unlabelled: keep: the text ``nan`` and its like are names, too; None: no label has a name.

    Raises:
        DataError: No such column, nothing in it, several labels, or a value that is no label.
    """
    value = "" if row.values.get(column, "") is None else row.cell(column)
    where = f"{row.origin}: column {column!r}"
    several = isinstance(value, list | dict)
    if several or (isinstance(value, str) and written_value(value) is not None):
        what = f"a {type(value).__name__}" if several else f"{value:.60}"
        raise DataError(
            f"{where} holds {what}, not one label",
            "rows with several labels, or vectors of 0 and 1: task.problem=multi_label"
            if unlabelled
            else "expected the number or the letter of the right option",
        )
    name = name_of(value, where)
    if not name or (name in MISSING and unlabelled != "keep"):
        kept = f"; if {name!r} is a label: task.unlabelled=keep" if name and unlabelled else ""
        raise DataError(
            f"{where} is {f'{name!r}, no value' if name else 'empty'}; expected a label",
            f"to leave rows without a label out: task.unlabelled=drop{kept}",
        )
    return name


def name_of(value: Any, where: str) -> str:
    """The name of a label; errors begin with ``where``.

    Raises:
        DataError: It is of a type that no label has.
    """
    try:
        return label_name(value)
    except ValueError as error:
        raise DataError(
            f"{where} holds {error}, not a label", "write labels as texts or whole numbers"
        ) from None


def label_ids(labels: Sequence[str]) -> dict[str, int]:
    """The id of each name of a label; the labels of a model may be written in another form."""
    ids = {text_name(label): number for number, label in enumerate(labels)}
    return ids | {label: number for number, label in enumerate(labels)}


def has_label(row: Row, column: str, problem: str = "single_label") -> bool:
    """Whether a row has a label; a missing column is reported later.

    Of several labels, none is an answer too; a number may be -1.
    """
    value = row.values.get(column, _ABSENT)
    try:
        label = label_name(value)
    except ValueError:  # a list, or what is reported when it is read
        return True
    if label in MISSING or (not label and not isinstance(value, str)):
        return False
    if problem == "multi_label":
        return True
    return label not in ("", "-") and (label != "-1" or problem == "regression")


def refuse_marks(rows: Sequence[Row], column: str, labels: Collection[str]) -> None:
    """Refuse labels that mean no label in published data, before they are learned as a class.

    -1 does so beside two or more classes, none of them below 0: of -1 and 1, or -2 to 2, it is one.

    Raises:
        DataError: There is one: the first row with it, and how many.
    """
    others = set(labels) - set(_MARKS)
    ambiguous = len(others) > 1 and not any(label.startswith("-") for label in others)
    for mark in _MARKS if ambiguous else _MARKS[:1]:
        if mark in labels:
            having = [row for row in rows if label_cell(row, column) == mark]
            raise DataError(
                f"{having[0].origin}: column {column!r}: {mark!r}, which {len(having):,} training "
                "rows have, means no label in SNLI, OCNLI and test sets",
                "leave such rows out with `task.unlabelled=drop`; "
                "if it is a class, `task.unlabelled=keep`",
            )


R = TypeVar("R")


def learnable(
    rows: Sequence[R], problem: Callable[[R], str | None], use: Use
) -> tuple[list[R], tuple[str, ...]]:
    """The rows that can be learned from, and why the others were dropped: only training drops rows.

    Args:
        problem: Which row it is and why it cannot be learned from; None: it can be.

    Raises:
        DataError: No row is left.
    """
    if use != "train":
        return list(rows), ()
    problems = [problem(row) for row in rows]
    kept = [row for row, why in zip(rows, problems, strict=True) if why is None]
    dropped = tuple(why for why in problems if why is not None)
    if not kept:
        raise DataError(f"no training row can be learned from: {'; '.join(dropped[:3])}")
    return kept, dropped


def rows_with_text(
    rows: Sequence[Row], columns: Sequence[str], use: Use
) -> tuple[list[Row], tuple[str, ...]]:
    """The rows that have a text in each column, see ``learnable``."""

    def problem(row: Row) -> str | None:
        for column in columns:
            if not str(row.cell(column)).strip():
                return f"{row.origin}: column {column!r} is empty; expected a text"
        return None

    return learnable(rows, problem, use)


T = TypeVar("T")


def required(targets: T | None, what: str = "labels") -> T:
    """What the answers are scored against.

    Raises:
        DataError: The rows are to be answered, and have none.
    """
    if targets is None:
        raise DataError(f"these rows have no {what} to score the answers against")
    return targets
