"""A finetuned model on labelled rows, by the metrics of its task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import Field

from plmctl.config.base import MeasureConfig, Text
from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.model import LoadedModel
from plmctl.evaluation.scoring import FinetunedModel
from plmctl.measures.base import Measure, Measurement
from plmctl.metrics.modules import is_ours
from plmctl.tasks.base import MetricNames

if TYPE_CHECKING:
    from plmctl.tasks.base import Answer, ScoredConfig, TaskExamples


class Config(MeasureConfig):
    """The metrics of a finetuned model's task on labelled rows."""

    name: Literal["task"] = "task"
    data: tuple[Text, ...] = Field(min_length=1)
    """Labelled rows, as `data.train` of finetuning."""
    columns: dict[str, str | tuple[str, ...]] = {}
    """Columns of the task's fields, where they differ from finetuning, as in `text: review`."""
    metrics: MetricNames = ()
    """Metrics, as `task.metrics` of finetuning; empty: those of the finetuning. Those that are
    code, a file of your own or one of the Hub, are run only if they are named here."""
    max_length: int | None = Field(default=None, ge=8)
    """Tokens per row, special tokens included; empty: as in finetuning."""


class Predictions(NamedTuple):
    """Labelled rows, the model's answer to each, and the number of rows without a label."""

    examples: TaskExamples[ScoredConfig]
    answers: list[Answer]
    unlabelled: int


class FinetunedTask(Measure[Config], config=Config):
    """See ``Config``."""

    def measure(self, model: LoadedModel, seed: int) -> Measurement:
        """The metrics of the task, and the number of rows; errors as in ``predict``."""
        examples, predictions, unlabelled = self.predict(model)
        return Measurement(
            {
                **examples.compute_metrics(predictions),
                "rows": len(examples),
                "cut": examples.cut,
                **({"unlabelled": unlabelled} if unlabelled else {}),
            }
        )

    def predict(self, model: LoadedModel) -> Predictions:
        """The rows as the model's task has them, and an answer to each.

        Raises:
            ConfigError: The model is not finetuned, its task has no such column field,
                ``max_length`` exceeds the network's positions, or task.json names code.
            DataError: No row has a label.
        """
        from plmctl.corpus.labelled import read_rows
        from plmctl.families.base import refuse_longer
        from plmctl.tasks.base import read_finetuned

        named = {"metrics": self.config.metrics} if self.config.metrics else {}
        finetuned = read_finetuned(model.name, {**self.config.columns, **named})
        code = [name for name in finetuned.config.metrics if not is_ours(name)]
        if code and not named:
            raise ConfigError(
                f"{model.name}/task.json: its metric {code[0]!r} is code, which a model folder "
                "cannot have run",
                "if you trust it, name it in the config, in this measure: "
                f"`metrics: {list(finetuned.config.metrics)}`",
            )
        read = read_rows(self.config.data)
        rows = [row for row in read if finetuned.task.is_labelled(row)]
        if not rows:
            raise DataError(
                f"{', '.join(self.config.data)}: no row has a label to compare with",
                "name labelled rows",
            )
        max_length = self.config.max_length or finetuned.max_length
        refuse_longer(model.name, max_length, "max_length")
        loaded = FinetunedModel(model, finetuned)
        examples = loaded.examples(rows, "score", max_length)
        return Predictions(examples, loaded.answers(examples), len(read) - len(rows))
