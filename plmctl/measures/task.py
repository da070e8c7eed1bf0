"""A finetuned model on labelled rows, by the metrics of its task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import Field

from plmctl.config.base import MeasureConfig, Text
from plmctl.errors import DataError
from plmctl.evaluation.model import LoadedModel
from plmctl.evaluation.scoring import answers
from plmctl.measures.base import Measure, Measurement

if TYPE_CHECKING:
    from plmctl.tasks.base import Answer, TaskExamples


class Config(MeasureConfig):
    """The metrics of a finetuned model's task on labelled rows."""

    name: Literal["task"] = "task"
    data: tuple[Text, ...] = Field(min_length=1)
    """Labelled rows, as `data.train` of finetuning."""
    columns: dict[str, str | tuple[str, ...]] = {}
    """Columns of the task's fields, where they differ from finetuning, as in `text: review`."""
    max_length: int | None = Field(default=None, ge=8)
    """Tokens per row, special tokens included; empty: as in finetuning."""


class Predictions(NamedTuple):
    """Labelled rows, the model's answer to each, and the number of rows without a label."""

    examples: TaskExamples
    answers: list[Answer]
    unlabelled: int


class FinetunedTask(Measure[Config]):
    """See ``Config``."""

    Config = Config

    def measure(self, model: LoadedModel, seed: int) -> Measurement:
        """The metrics of the task, and the number of rows; errors as in ``predict``."""
        examples, predictions, unlabelled = self.predict(model)
        return Measurement(
            {
                **examples.figures(predictions),
                "rows": len(examples),
                "cut": examples.cut,
                **({"unlabelled": unlabelled} if unlabelled else {}),
            }
        )

    def predict(self, model: LoadedModel) -> Predictions:
        """The rows as the model's task has them, and an answer to each.

        Raises:
            ConfigError: The model is not finetuned, its task has no such column field, or
                ``max_length`` exceeds the network's positions.
            DataError: No row has a label.
        """
        from plmctl.corpus.labelled import read_rows
        from plmctl.models.load import refuse_longer
        from plmctl.models.network import Network
        from plmctl.tasks.base import get_task, is_labelled_row, read_finetuned, with_columns

        finetuned = read_finetuned(model.name)
        config = with_columns(finetuned.config, self.config.columns)
        task = get_task(config.name)
        read = read_rows(self.config.data)
        rows = [row for row in read if is_labelled_row(config, row)]
        if not rows:
            raise DataError(
                f"{', '.join(self.config.data)}: no row has a label to compare with",
                "name labelled rows",
            )
        max_length = self.config.max_length or finetuned.max_length
        refuse_longer(model.name, max_length, "max_length")
        tokenizer = task.tokenizer(config, model.name)
        examples = task.make(config, rows, tokenizer, finetuned.labels, max_length, "score")
        loaded = task.load(config, model.name, finetuned.labels, pretrained=True, changes={})
        network = Network(loaded, task.forward).to(model.device)
        predictions = answers(network, examples, model.device)
        return Predictions(examples, predictions, len(read) - len(rows))
