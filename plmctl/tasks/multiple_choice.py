"""Multiple choice: which of several options fits a passage and a question (RACE, SWAG).

Each option is a separate sequence and gets one number; the softmax goes over the options of a row,
which is one target. Encoders read ``[CLS] passage [SEP] question option [SEP]``; the option
replaces a ``_`` of the question. GPT-1 reads ``_start_ passage question _delimiter_ option
_classify_`` and also learns to predict the next tokens of every option. GPT-2, for which nothing is
published, reads its pairs.

Sources: google-research/albert, race_utils.py; finetune-transformer-lm, train.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from plmctl.corpus.cells import written_value
from plmctl.corpus.labelled import Row
from plmctl.errors import ConfigError, DataError
from plmctl.families.base import family_of
from plmctl.metrics.classification import accuracy
from plmctl.metrics.modules import Kind
from plmctl.metrics.statistics import Function, uncertainty
from plmctl.tasks._sequences import (
    EncodedRows,
    SequenceExamples,
    format_ids,
    head_class,
    language_weight,
    pair_sequences,
)
from plmctl.tasks.base import (
    Answer,
    Counted,
    Outputs,
    ReadableAnswer,
    ScoredConfig,
    Task,
    Use,
    has_label,
    label_cell,
    required,
    rows_with_text,
    text_cell,
)
from plmctl.tokenization.layout import encode_texts

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from plmctl.models.batch import Batch
    from plmctl.models.load import HeadSource
    from plmctl.models.network import Network


class Config(ScoredConfig):
    """Choose one of several options."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("passage", "question", "options", "label")

    name: Literal["multiple_choice"] = "multiple_choice"
    passage: str | None = None
    """Column of the text that the question is about, or of a list of its lines; empty: rows have
    none."""
    question: str | None = "question"
    """Column of the question, or of the beginning that an option continues; a `_` in it is the
    place of the option. Empty: rows have none."""
    options: str | tuple[str, ...] = "options"
    """Column of a list of options; or one column per option."""
    label: str = "label"
    """Column of the right option: its number, or its letter, A for the first; see `label_is`."""
    label_is: Literal["number", "text"] = "number"
    """text: the label is the right option itself, as in C3; a number in it is no place then."""
    count_from: Literal[0, 1] = 0
    """The number of the first option."""
    unlabelled: Literal["refuse", "drop"] = "refuse"
    """Rows without a right option: an empty label, `-`, or -1 (test rows). drop: leave them out of
    training and scoring, and report how many."""
    max_option_length: int | None = Field(default=None, ge=4)
    """Most tokens of question and option together: their last ones are kept, then the passage is
    cut at its end; 128 in ALBERT's RACE. Empty: the longer of the two texts is cut, as in BERT."""
    lm_weight: float = Field(default=0.5, ge=0)
    """GPT-1 only: weight of the language model's loss, added to that of the choice; 0: none."""

    @model_validator(mode="after")
    def _has_a_text(self) -> Self:
        if self.passage is None and self.question is None:
            raise ValueError("name the column of the passage, of the question, or both")
        if isinstance(self.options, tuple) and len(self.options) < 2:
            raise ValueError("options: one column of lists, or two columns or more")
        return self


# --- The task ---


class MultipleChoice(Task[Config], config=Config):
    """Rows with several options, and a network that gives one number per option."""

    HEADS = ("ForMultipleChoice", "DoubleHeadsModel")

    def text_columns(self) -> tuple[str, ...]:
        """Passage, question and options."""
        options = self.config.options
        return (*self._context_columns, *((options,) if isinstance(options, str) else options))

    @property
    def _context_columns(self) -> list[str]:
        """The columns of passage and question, as far as the rows have them."""
        both = (self.config.passage, self.config.question)
        return [column for column in both if column is not None]

    def values_of(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """One row: passage and question, as far as rows have them, then all of its options.

        If each option has a column of its own, there may be several rows.
        """
        if not isinstance(self.config.options, str):
            return super().values_of(texts)
        columns = self._context_columns
        if len(texts) < len(columns) + 2:
            raise ConfigError(
                f"requires {' and '.join(columns)}, then two options or more; texts: {len(texts)}",
                "give them in this order, or rows of a file: --input",
            )
        values = dict(zip(columns, texts, strict=False))
        return [{**values, self.config.options: list(texts[len(columns) :])}]

    @property
    def takes_more(self) -> bool:
        """If all options are in one column."""
        return isinstance(self.config.options, str)

    def texts_of(self, row: Row) -> list[str]:
        """Passage and question, as far as rows have them, then the options."""
        context = [_lines(row, column) for column in self._context_columns]
        return [*context, *item_of(self.config, row)[2]]

    def right_answer(self, row: Row) -> str:
        """The right option."""
        return item_of(self.config, row)[2][right_option(self.config, row)]

    def readable(self, answer: Answer, values: Mapping[str, Any], top: int) -> list[ReadableAnswer]:
        """The most probable options, as texts."""
        _, _, options = item_of(self.config, Row(dict(values), "text"))
        both = zip(options, answer["probabilities"], strict=True)
        ranked = sorted(both, key=lambda pair: -pair[1])[:top]
        return [ReadableAnswer(option, probability) for option, probability in ranked]

    def is_labelled(self, row: Row) -> bool:
        """False for the rows that ``unlabelled: drop`` leaves out."""
        return self.config.unlabelled != "drop" or has_label(row, self.config.label)

    def make(
        self,
        rows: Sequence[Row],
        tokenizer: PreTrainedTokenizerBase,
        labels: tuple[str, ...],
        max_length: int,
        use: Use,
    ) -> MultipleChoiceExamples:
        """The rows as examples; training rows without any text are dropped."""
        config = self.config
        rows, dropped = rows_with_text(rows, self._context_columns, use)
        items = [item_of(config, row) for row in rows]
        gpt1 = bool(format_ids(tokenizer))
        pairs = [option_texts(item, option, gpt1=gpt1) for item in items for option in item[2]]
        first, second = (encode_texts(tokenizer, [pair[k] for pair in pairs]) for k in (0, 1))
        early = [False] * len(second)
        longest = config.max_option_length
        if longest is not None and not gpt1:
            early = [len(ids) > longest for ids in second]
            second = [ids[-longest:] for ids in second]
        whole_second = longest is not None
        sequences = pair_sequences(tokenizer, first, second, max_length, whole_second=whole_second)
        sequences = replace(sequences, cut=tuple(map(any, zip(sequences.cut, early, strict=True))))
        targets = (
            None if use == "predict" else np.array([right_option(config, row) for row in rows])
        )
        lm_weight = language_weight(config.lm_weight, tokenizer, use)
        options = tuple(item[2] for item in items)
        encoded = EncodedRows.of_groups(list(map(len, options)), sequences, tokenizer, lm_weight)
        return MultipleChoiceExamples(
            config, encoded, targets, options, cut=encoded.cut, dropped=dropped
        )

    def count(self, rows: Sequence[Row], labels: tuple[str, ...]) -> Iterator[Counted]:
        """TF-IDF with logistic regression on each option."""
        from plmctl.counting.texts import learn_choice

        def read(rows: Sequence[Row]) -> list[list[tuple[str, ...]]]:
            items = [item_of(self.config, row) for row in rows]
            return [[option_texts(item, one, gpt1=False) for one in item[2]] for item in items]

        choose = learn_choice(read(rows), np.array([right_option(self.config, r) for r in rows]))
        yield Counted(
            "TF-IDF with logistic regression",
            lambda rows, examples: list(examples.answers({"choice": choose(read(rows))})),
            len(rows),
        )

    def check(self, model: str, network: PreTrainedConfig) -> None:
        """Refuse a family without a head on options."""
        head_class(model, "multiple_choice")

    def load(self, start: HeadSource) -> PreTrainedModel:
        """The network with a head that gives one number per option."""
        from plmctl.models.heads.classification import load_classifier
        from plmctl.models.load import config_of

        return load_classifier(
            head_class(start.model, "multiple_choice"),
            start,
            {"num_labels": 1, **start.changes},
            new_ids=format_ids(start.tokenizer),
            initialize=family_of(config_of(start.model)).initialize_head,
        )

    @staticmethod
    def forward(model: Any, **inputs: Tensor) -> dict[str, Tensor]:
        """Logits of the options, [B, O]; for GPT-1 next-token logits too."""
        from plmctl.models.heads.classification import (
            choose_with_decoder,
            choose_with_encoder,
            is_decoder,
        )

        run = choose_with_decoder if is_decoder(model) else choose_with_encoder
        return run(model, **inputs)


# --- Examples: losses, predictions, metrics ---


@dataclass(frozen=True)
class MultipleChoiceExamples(SequenceExamples[Config]):
    """Rows as token ids of their options; targets are [N] numbers of the right ones, from 0."""

    term = "choice"
    options: tuple[tuple[str, ...], ...]

    def target_loss(self, logits: Tensor, targets: Tensor, *, training: bool) -> Tensor:
        """Cross-entropy of the right options in nats, summed."""
        from plmctl.models.losses import single_label_sum

        return single_label_sum(logits, targets)

    def num_correct(self, logits: Tensor, targets: Tensor) -> Tensor:
        """How often the right option has the largest logit."""
        return (logits.argmax(-1) == targets).sum().float()

    def outputs(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Probabilities of the options, [B, O]; 0 where a row has fewer."""
        return {"choice": self.logits(network, batch).float().softmax(-1)}

    def answers(self, outputs: Outputs) -> list[Answer]:
        """The number of the most probable option, as the rows count, its text, and all of them."""
        answers: list[Answer] = []
        for row, options in zip(outputs["choice"], self.options, strict=True):
            best = int(row[: len(options)].argmax())
            answers.append(
                {
                    "prediction": best + self.config.count_from,
                    "text": options[best],
                    "probabilities": [float(p) for p in row[: len(options)]],
                }
            )
        return answers

    @property
    def metric_kind(self) -> Kind:
        """Numbers of options."""
        return "label"

    @property
    def usual_metrics(self) -> tuple[str, ...]:
        """Accuracy, and what always choosing the most frequent number would get."""
        return ("accuracy", "majority")

    @property
    def interval_of(self) -> tuple[str, Function]:
        """Accuracy."""
        return "accuracy", accuracy

    def predictions(self, answers: Sequence[Answer]) -> NDArray[Any]:
        """[N] numbers of options, from 0."""
        return np.array([answer["prediction"] for answer in answers]) - self.config.count_from

    def references(self) -> NDArray[Any]:
        """[N] numbers of the right options, from 0."""
        return required(self.targets)

    def uncertainty(self, answers: Sequence[Answer]) -> dict[str, dict[str, float]]:
        """The bootstrap of the accuracy."""
        both = self.predictions(answers), self.references()
        return {"accuracy": uncertainty(accuracy, *both)}

    def per_example_scores(self, answers: Sequence[Answer]) -> tuple[str, list[float]]:
        """1 if the option is right, else 0."""
        right = self.predictions(answers) == self.references()
        return "accuracy", right.astype(float).tolist()


# --- The question and the options of a row ---


Item = tuple[str, str, tuple[str, ...]]
"""Passage, question and options; a part that a row does not have is empty."""


def item_of(config: Any, row: Row) -> Item:
    """The texts of a row.

    Raises:
        DataError: A missing column, or fewer than two options.
    """
    if isinstance(config.options, str):
        cell = row.cell(config.options)
        read = written_value(cell) if isinstance(cell, str) else None
        cell = cell if read is None else read
        if not isinstance(cell, list | tuple):
            raise DataError(
                f"{row.origin}: column {config.options!r} holds a {type(cell).__name__}; "
                "expected a list of options",
                "options in separate columns: task.options=[A, B]",
            )
        for number, option in enumerate(cell, 1):
            if not isinstance(option, str | int | float):
                what = "null" if option is None else f"a {type(option).__name__}, not a text"
                raise DataError(
                    f"{row.origin}: column {config.options!r}: option {number} is {what}"
                )
        options = tuple(str(option) for option in cell)
    else:
        options = tuple(text_cell(row, column) for column in config.options)
    if len(options) < 2:
        raise DataError(f"{row.origin}: {len(options)} options; expected two or more")
    passage = _lines(row, config.passage) if config.passage is not None else ""
    question = text_cell(row, config.question) if config.question is not None else ""
    return passage, question, options


def _lines(row: Row, column: str) -> str:
    """The text of a column, or its list of texts as lines."""
    value = row.cell(column)
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    return text_cell(row, column)


def option_texts(item: Item, option: str, *, gpt1: bool) -> tuple[str, str]:
    """The two texts of an option's sequence.

    Without a passage or a question, the other one is paired with the option.
    """
    passage, question, _ = item
    if gpt1:
        return f"{passage} {question}".strip(), option
    if "_" in question:
        question, option = "", question.replace("_", option, 1)
    if not passage:
        return question, option
    return passage, f"{question} {option}".strip()


def right_option(config: Any, row: Row) -> int:
    """The number of the right option, from 0.

    Raises:
        DataError: Neither a number nor a letter of one of the options, nor its text.
    """
    options = item_of(config, row)[2]
    count = len(options)
    label = label_cell(row, config.label)
    if config.label_is == "text":
        texts = [option.strip() for option in options]
        if label not in texts:
            raise DataError(
                f"{row.origin}: column {config.label!r}: {label!r} is none of the options "
                f"{', '.join(texts)}",
                "numbers or letters of options: task.label_is=number",
            )
        return texts.index(label)
    letter = len(label) == 1 and "A" <= label.upper() <= "Z"
    number = -1
    if letter:
        number = ord(label.upper()) - ord("A")
    elif label.isascii() and label.isdigit():
        number = int(label) - config.count_from
    if not 0 <= number < count:
        numbers = f"{config.count_from} to {count - 1 + config.count_from}"
        raise DataError(
            f"{row.origin}: column {config.label!r}: {label!r} is none of the {count} options; "
            f"expected {numbers}, or A to {chr(ord('A') + count - 1)}",
            "numbers that begin at 1: task.count_from=1; texts of options: task.label_is=text",
        )
    return number
