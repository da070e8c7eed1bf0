"""A finetuned model on labelled rows, by the metrics of its task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from plmctl.config.base import MeasureConfig, Text
from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.model import LoadedModel
from plmctl.evaluation.scoring import FinetunedModel
from plmctl.measures.base import Answered, Measure, Measurement
from plmctl.metrics.modules import is_ours
from plmctl.tasks.base import MetricNames, read_finetuned

if TYPE_CHECKING:
    from plmctl.corpus.labelled import Row


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


class FinetunedTask(Measure[Config], config=Config):
    """See ``Config``."""

    def measure(self, model: LoadedModel, seed: int) -> Measurement:
        """The metrics of the task, and the number of rows; errors as in ``predict``."""
        answered = self.predict(model)
        examples, unlabelled = answered.examples, answered.unlabelled
        return Measurement(
            {
                **examples.compute_metrics(answered.answers),
                "rows": len(examples),
                "cut": examples.cut,
                **({"unlabelled": unlabelled} if unlabelled else {}),
            },
            answered=answered,
        )

    def predict(self, model: LoadedModel) -> Answered:
        """The rows as the model's task has them, and an answer to each.

        Raises:
            ConfigError: The model is not finetuned, its task has no such column field,
                ``max_length`` exceeds the network's positions, or task.json names code.
            DataError: No row has a label.
        """
        from plmctl.corpus.labelled import read_rows
        from plmctl.families.base import refuse_longer

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
        answers = loaded.answers(examples)
        return Answered(self._renamed(model, rows), examples, answers, len(read) - len(rows))

    def _renamed(self, model: LoadedModel, rows: list[Row]) -> list[Row]:
        """The rows with the columns that the finetuning named."""
        if not self.config.columns:
            return rows
        own = read_finetuned(model.name).config.model_dump()
        pairs = [
            (old, new)
            for name, given in self.config.columns.items()
            for old, new in zip(_listed(own[name]), _listed(given), strict=False)
        ]
        return [
            replace(row, values={**row.values, **{old: row.cell(new) for old, new in pairs}})
            for row in rows
        ]


def _listed(names: str | Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else names
