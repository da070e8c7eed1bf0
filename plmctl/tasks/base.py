"""What every finetuning task is, and what tasks share.

A task is one file of this folder; the module itself is the object (``Task``). It turns labelled
rows into examples (``TaskExamples``), gives the network its head, and makes predictions of the
network's outputs. A finetuned folder remembers its task (``Finetuned``).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from plmctl import registry
from plmctl.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from plmctl.corpus.labelled import Row
    from plmctl.models.batch import Batch
    from plmctl.models.load import NewHeads
    from plmctl.models.network import Network


# --- What a task is ---


Use = Literal["train", "score", "predict"]
"""What rows are for: to learn from (a row that cannot be learnt from is dropped), to be scored
(none is dropped), or to be answered (they need no labels)."""

Answer = dict[str, Any]
"""What is said of one row, in plain types: ``prediction``, and what the task has beside it."""


class Task(Protocol):
    """What a file of this folder defines; the module itself is the object.

    It may also define ``split_columns(config)``, ``is_labelled(config, row)``,
    ``positions(config, max_length)`` and ``settled(config, results)``, and its examples
    ``uncertainty(answers)``; the functions below say what holds for a task without them.
    """

    Config: Any
    """Its config model, a ``TaskConfig``."""

    def text_columns(self, config: Any) -> tuple[str, ...]:
        """The columns that are read: rows that are equal in them never stand on both sides."""

    def labels_of(self, config: Any, rows: Sequence[Row]) -> tuple[str, ...]:
        """The labels of the training rows, sorted: they are fixed in the finetuned folder.

        Empty where the task has none.
        """

    def tokenizer(self, config: Any, model: str) -> PreTrainedTokenizerBase:
        """The tokenizer of a model folder, with what the task adds to it."""

    def load(
        self,
        config: Any,
        model: str,
        labels: tuple[str, ...],
        *,
        pretrained: bool,
        changes: Any,
        new_heads: NewHeads | None = None,
    ) -> PreTrainedModel:
        """The network with the task's head, from pretrained or from random weights.

        Args:
            config: The task's.
            model: A model folder or Hub id; a finetuned one comes with its own head.
            labels: Their order gives the ids.
            pretrained: False keeps the architecture and draws every weight anew.
            changes: Fields of the model's config to set, such as dropout.
            new_heads: Called with a head that the folder lacks; None: it has to have one, as a
                finetuned folder does.

        Raises:
            ConfigError: The family has no such head.
            DataError: See ``models.load.load_network``.
        """

    def make(
        self,
        config: Any,
        rows: Sequence[Row],
        tokenizer: PreTrainedTokenizerBase,
        labels: tuple[str, ...],
        max_length: int,
        use: Use,
    ) -> TaskExamples:
        """The rows as examples.

        Raises:
            DataError: A missing column, or a label that the training rows do not have: file, row,
                column, and what was expected.
        """

    def forward(self, model: Any, **inputs: Tensor) -> dict[str, Tensor]:
        """Logits of each part of the loss."""


class TaskExamples(Protocol):
    """Rows as a network takes them: a ``models.base.Examples`` that can also say what was answered.

    A row may give several examples (the windows of a long text).
    """

    loss_terms: tuple[str, ...]
    cut: int
    """Rows that lost text to ``max_length``."""
    dropped: tuple[str, ...]
    """Rows that cannot be learnt from, and why, one line each; only where ``use`` is train."""

    def __len__(self) -> int:
        """Examples."""

    def lengths(self) -> NDArray[np.int64]:
        """[N] tokens of each example: batches of one length waste no padding."""

    def collate(self, epochs: NDArray[np.int64], samples: NDArray[np.int64]) -> Batch:
        """The examples named by epochs [B] and samples [B], padded to the longest of them."""

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The loss of each part, summed over the batch's targets."""

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """As ``loss``, with ``<part>/correct``: nan where right and wrong are not defined."""

    def outputs(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """What the answers are made from, each [B, ...]: logits, or generated ids."""

    def answers(self, outputs: Mapping[str, Sequence[NDArray[Any]]]) -> list[Answer]:
        """One answer a row, in the order of the rows.

        Args:
            outputs: As ``outputs`` gives them, of all examples in order, one array each.
        """

    def figures(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """What the answers are worth against the rows' own labels (``plmctl.metrics``)."""

    def credits(self, answers: Sequence[Answer]) -> tuple[str, list[float]]:
        """What each row's answer is worth by itself, and the name of that: runs are compared by it.

        More is better. Where the task's figure is no mean over rows (Matthews, entity F1), this is
        the nearest that is one.
        """


# --- Finding a task: by its name, or of a finetuned folder ---


def get_task(name: str) -> Task:
    """The task of that name.

    Raises:
        ConfigError: There is none; the message has the nearest.
    """
    return cast(Task, registry.load("tasks", name))


_FILE = "task.json"

_HEADS = {
    "ForSequenceClassification": "classification",
    "ForQuestionAnswering": "question_answering",
    "ForTokenClassification": "tagging",
    "ForMultipleChoice": "multiple_choice",
    "DoubleHeadsModel": "multiple_choice",
}
"""Tasks of finetuned folders that are not plmctl's own, by the end of the network's class."""


@dataclass(frozen=True)
class Finetuned:
    """What a finetuned folder remembers of its task.

    Attributes:
        config: The task's.
        labels: By id.
        max_length: In tokens.
    """

    config: Any
    labels: tuple[str, ...]
    max_length: int

    def write(self, folder: Path) -> None:
        """Put it into a model folder."""
        document = {
            "task": self.config.model_dump(mode="json"),
            "labels": list(self.labels),
            "max_length": self.max_length,
        }
        text = json.dumps(document, ensure_ascii=False, indent=2)
        (folder / _FILE).write_text(text + "\n", encoding="utf-8")


def read_finetuned(model: str) -> Finetuned:
    """The task of a finetuned folder or Hub id: its own note of it, else what its class is for.

    Raises:
        ConfigError: The model is not finetuned for any task.
    """
    path = Path(model) / _FILE
    if path.is_file():
        document = json.loads(path.read_text("utf-8"))
        config = get_task(document["task"]["name"]).Config.model_validate(document["task"])
        return Finetuned(config, tuple(document["labels"]), document["max_length"])
    from plmctl.models.load import config_of, longest_input

    network: Any = config_of(model)
    made_for = (network.architectures or ["model without a head"])[0]
    for head, name in _HEADS.items():
        if made_for.endswith(head):
            config, labels = _task_of_class(name, network)
            return Finetuned(config, labels, min(longest_input(network) or 512, 512))
    raise ConfigError(f"{model}: not finetuned for a task, but a {made_for}", "finetune it first")


def _task_of_class(name: str, network: Any) -> tuple[Any, tuple[str, ...]]:
    """The task's config and labels that transformers' config stands for."""
    config = get_task(name).Config(name=name)
    labels = tuple(network.id2label[number] for number in range(network.num_labels))
    if name != "classification":
        return config, labels if name == "tagging" else ()
    kind = str(network.problem_type or "").removesuffix("_classification")
    if kind == "regression" or (not kind and len(labels) == 1):  # as transformers takes it
        return with_columns(config, {"problem": "regression"}), ()
    return (with_columns(config, {"problem": kind}) if kind else config), labels


def with_columns(config: Any, columns: Mapping[str, Any]) -> Any:
    """A task's config that reads other columns.

    Raises:
        ConfigError: A field that the task does not have.
    """
    for field in columns:
        if field == "name" or field not in type(config).model_fields:
            known = [name for name in type(config).model_fields if name != "name"]
            raise ConfigError(
                f"the task {config.name!r} has no field {field!r}{nearest(field, known)}"
            )
    return type(config).model_validate({**config.model_dump(), **columns})


# --- What a task may define, and what holds if it does not ---


def split_columns_of(config: Any) -> tuple[str, ...]:
    """The columns whose equal rows are held out together: a task's own, else its text."""
    task: Any = get_task(config.name)
    found: tuple[str, ...] = getattr(task, "split_columns", task.text_columns)(config)
    return found


def is_labelled_row(config: Any, row: Row) -> bool:
    """Whether a row is to be learnt from and scored; False: it has no gold label."""
    task: Any = get_task(config.name)
    return bool(task.is_labelled(config, row)) if hasattr(task, "is_labelled") else True


def positions_of(config: Any, max_length: int) -> int:
    """What a row of ``max_length`` tokens takes of a network's positions."""
    task: Any = get_task(config.name)
    taken = task.positions(config, max_length) if hasattr(task, "positions") else max_length
    return int(taken)


def settled_config(config: Any, results: Mapping[str, Any]) -> Any:
    """A task's config with what its results settle (a threshold tuned on the validation rows)."""
    task: Any = get_task(config.name)
    return task.settled(config, results) if hasattr(task, "settled") else config


def uncertainty_of(examples: Any, answers: Sequence[Answer]) -> dict[str, dict[str, float]]:
    """How sure the figures of answers are, over other rows of the same kind: the bootstrap.

    Returns:
        Of each figure that has one: its standard error ``se``, and its 95 % interval from ``low``
        to ``high``, in the figure's own unit; nothing where the task does not say.
    """
    found: dict[str, dict[str, float]] = (
        examples.uncertainty(answers) if hasattr(examples, "uncertainty") else {}
    )
    return found


# --- Rows: their texts and labels, and rows without them ---


def text_cell(row: Row, column: str) -> str:
    """What a column says, as text.

    Raises:
        DataError: No such column, or a list in it.
    """
    value = row.cell(column)
    if isinstance(value, list | dict):
        raise DataError(
            f"{row.origin}: column {column!r} holds a {type(value).__name__}, not a text"
        )
    return str(value)


def label_cell(row: Row, column: str) -> str:
    """The one label of a row.

    Raises:
        DataError: No such column, nothing in it, or several labels.
    """
    value = "" if row.values.get(column, "") is None else row.cell(column)
    if isinstance(value, list | dict):
        raise DataError(
            f"{row.origin}: column {column!r} holds a {type(value).__name__}, not one label",
            "rows with several labels: task.problem=multi_label",
        )
    if not str(value).strip():
        raise DataError(
            f"{row.origin}: column {column!r} is empty; expected a label",
            "to leave rows without a label out: task.unlabelled=drop",
        )
    return str(value)


Unlabelled = Literal["refuse", "drop", "keep"]

_MARKS = ("-", "-1")

_MISSING = object()


def has_label(row: Row, column: str, problem: str = "single_label") -> bool:
    """Whether a row says what its label is; where the column is not there, that is told later.

    Of several labels, none is an answer too; a number may be -1.
    """
    value = row.values.get(column, _MISSING)
    if value is None or problem == "multi_label":
        return value is not None
    said = str(value).strip()
    return said not in ("", "-") and (said != "-1" or problem == "regression")


def refuse_marks(rows: Sequence[Row], column: str, found: Collection[str]) -> None:
    """Refuse labels that stand for none in published data, before they are learnt as a class.

    -1 does so beside two or more classes, none of them below 0: of -1 and 1, or -2 to 2, it is one.

    Args:
        rows: Training rows.
        column: Of the label.
        found: All labels that they have.

    Raises:
        DataError: There is one: the first row with it, and how many.
    """
    others = set(found) - set(_MARKS)
    ambiguous = len(others) > 1 and not any(label.startswith("-") for label in others)
    for mark in _MARKS if ambiguous else _MARKS[:1]:
        if mark in found:
            having = [row for row in rows if str(row.values.get(column)) == mark]
            raise DataError(
                f"{having[0].origin}: column {column!r}: {mark!r}, which {len(having):,} training "
                "rows have, stands for no label in SNLI, OCNLI and test sets",
                "leave such rows out with `task.unlabelled=drop`; "
                "if it is a class, `task.unlabelled=keep`",
            )


def rows_with_text(
    rows: Sequence[Row], columns: Sequence[str], use: Use
) -> tuple[list[Row], tuple[str, ...]]:
    """The rows that have a text, and why the others were dropped: only training drops rows.

    Raises:
        DataError: No row is left.
    """
    if use != "train":
        return list(rows), ()
    kept, dropped = [], []
    for row in rows:
        empty = [column for column in columns if not str(row.cell(column)).strip()]
        if empty:
            dropped.append(f"{row.origin}: column {empty[0]!r} is empty; expected a text")
        else:
            kept.append(row)
    if not kept:
        raise DataError(
            f"no training row has a text: {dropped[0]}" if dropped else "there are no training rows"
        )
    return kept, tuple(dropped)


T = TypeVar("T")


def required(found: T | None, what: str = "labels") -> T:
    """What the answers are scored against.

    Raises:
        DataError: The rows are to be answered, and have none.
    """
    if found is None:
        raise DataError(f"these rows have no {what} to score the answers against")
    return found
