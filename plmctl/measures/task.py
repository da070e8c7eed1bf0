"""A finetuned model on labelled rows, by the metrics of its task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field

from plmctl.config.base import MeasureConfig
from plmctl.errors import DataError
from plmctl.evaluation.model import EvaluatedModel
from plmctl.evaluation.scoring import FinetunedModel

if TYPE_CHECKING:
    from plmctl.tasks.base import Answer, ScoredConfig, TaskExamples


class Config(MeasureConfig):
    """What a finetuned model gets right in labelled rows, by the metrics of its task."""

    name: Literal["task"] = "task"
    data: tuple[str, ...] = Field(min_length=1)
    """Labelled rows, as `data.train` of finetuning."""
    columns: dict[str, str | tuple[str, ...]] = {}
    """Fields of the task that name other columns here than in finetuning, as in `text: review`."""
    max_length: int | None = Field(default=None, ge=8)
    """Tokens a row, special ones included; empty: as in finetuning."""


def measure(config: Config, subject: EvaluatedModel) -> dict[str, Any]:
    """The figures of the task, and the number of rows.

    Raises:
        ConfigError: The model is not finetuned, or its task has no such column field, or
            ``max_length`` is beyond the network's positions.
        DataError: No row has a label.
    """
    examples, found, unlabelled = answered(config, subject)
    counts = {"rows": len(examples), "cut": examples.cut}
    return {
        **examples.figures(found),
        **counts,
        **({"unlabelled": unlabelled} if unlabelled else {}),
    }


class Answered(NamedTuple):
    """Labelled rows, an answer to each, and how many rows were left out for want of a label."""

    examples: TaskExamples[ScoredConfig]
    answers: list[Answer]
    unlabelled: int


def answered(config: Config, subject: EvaluatedModel) -> Answered:
    """The rows as the model's task has them, and an answer to each; errors as ``measure``."""
    from plmctl.corpus.labelled import read_rows
    from plmctl.models.load import refuse_longer
    from plmctl.tasks.base import read_finetuned

    made = read_finetuned(subject.model, config.columns)
    read = read_rows(config.data)
    rows = [row for row in read if made.task.is_labelled(row)]
    if not rows:
        raise DataError(f"{', '.join(config.data)}: no row has a gold label to score against")
    longest = config.max_length or made.max_length
    refuse_longer(subject.model, longest, "max_length")
    model = FinetunedModel(subject.model, made, subject.accelerator.device)
    examples = model.examples(rows, "score", longest)
    return Answered(examples, model.answers(examples), len(read) - len(rows))
