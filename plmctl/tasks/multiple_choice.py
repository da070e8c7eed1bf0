"""Multiple choice: which of several options fits a passage and a question (RACE, SWAG).

Each option is a separate sequence and gets one number; the softmax goes over the options of an
item, which is one target. Encoders read ``[CLS] passage [SEP] question option [SEP]``, the option
in the place of a ``_`` of the question. GPT-1 reads ``_start_ passage question _delimiter_ option
_classify_`` and learns the language of every option beside. GPT-2, for which nothing is published,
reads its pairs. Sources: google-research/albert, race_utils.py; finetune-transformer-lm, train.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from plmctl.arrays import Ints
from plmctl.config.base import TaskConfig
from plmctl.errors import DataError
from plmctl.models.base import Examples
from plmctl.tasks._sequences import (
    SequenceExamples,
    encode_texts,
    gpt1_ids,
    language_sums,
    pair_sequences,
    with_format,
)
from plmctl.tasks.base import has_label, label_cell, required, rows_with_text, text_cell

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from plmctl.corpus.labelled import Row
    from plmctl.models.batch import Batch
    from plmctl.models.load import NewHeads
    from plmctl.models.network import Network
    from plmctl.tasks.base import Use


class Config(TaskConfig):
    """Choose one of several options."""

    name: Literal["multiple_choice"] = "multiple_choice"
    passage: str | None = None
    """Column of the text that the question is about; empty: there is none."""
    question: str | None = "question"
    """Column of the question, or of the beginning that an option goes on from; a `_` in it is
    where the option belongs. Empty: there is none."""
    options: str | tuple[str, ...] = "options"
    """Column of a list of options; or a column an option."""
    label: str = "label"
    """Column of the right one: its number, or its letter, A for the first."""
    count_from: Literal[0, 1] = 0
    """The number of the first option."""
    unlabelled: Literal["refuse", "drop"] = "refuse"
    """Rows without a right option: an empty label, `-`, or -1 (test rows). drop: leave them out of
    training and scoring, and tell how many."""
    max_option_length: int | None = Field(default=None, ge=4)
    """Tokens of question and option together, of which the last are kept, before the passage is
    cut at its end; 128 in ALBERT's RACE. Empty: the longer of both sides is cut, as BERT does."""
    lm_weight: float = Field(default=0.5, ge=0)
    """GPT-1 only: weight of the language model's loss beside that of the choice; 0: none."""

    @model_validator(mode="after")
    def _something_is_asked(self) -> Self:
        if self.passage is None and self.question is None:
            raise ValueError("name the column of the passage, of the question, or both")
        if isinstance(self.options, tuple) and len(self.options) < 2:
            raise ValueError("options: one column of lists, or two columns or more")
        return self


# --- From rows to options and examples ---


def text_columns(config: Config) -> tuple[str, ...]:
    """Passage, question and options."""
    asked = [column for column in (config.passage, config.question) if column is not None]
    options = (config.options,) if isinstance(config.options, str) else config.options
    return (*asked, *options)


def is_labelled(config: Config, row: Row) -> bool:
    """False for the rows that ``unlabelled: drop`` leaves out."""
    return config.unlabelled != "drop" or has_label(row, config.label)


def labels_of(config: Config, rows: Sequence[Row]) -> tuple[str, ...]:
    """None: an option is no label."""
    return ()


def make(
    config: Config,
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    labels: tuple[str, ...],
    max_length: int,
    use: Use,
) -> MultipleChoice:
    """The rows as items; see ``base.Task``."""
    asked = [column for column in (config.passage, config.question) if column is not None]
    rows, dropped = rows_with_text(rows, asked, use)
    items = [item_of(config, row) for row in rows]
    gpt1 = bool(gpt1_ids(tokenizer))
    sides = [option_texts(item, option, gpt1=gpt1) for item in items for option in item[2]]
    first, second = (encode_texts(tokenizer, [side[k] for side in sides]) for k in (0, 1))
    early = [False] * len(second)
    longest = config.max_option_length
    if longest is not None and not gpt1:
        early = [len(ids) > longest for ids in second]
        second = [ids[-longest:] for ids in second]
    made = pair_sequences(tokenizer, first, second, max_length, whole_second=longest is not None)
    made = type(made)(made.ids, made.segments, tuple(map(any, zip(made.cut, early, strict=True))))
    targets = None if use == "predict" else np.array([right_option(config, row) for row in rows])
    language = gpt1 and config.lm_weight > 0 and use != "predict"
    options = tuple(item[2] for item in items)
    grouped = SequenceExamples.of_groups(
        list(map(len, options)), made, tokenizer, language=language
    )
    return MultipleChoice(config, grouped, options, targets, dropped)


Item = tuple[str, str, tuple[str, ...]]
"""Passage, question and options; a part that a row does not have is empty."""


def item_of(config: Any, row: Row) -> Item:
    """The texts of a row.

    Raises:
        DataError: A missing column, or fewer than two options.
    """
    if isinstance(config.options, str):
        found = row.cell(config.options)
        if not isinstance(found, list | tuple):
            raise DataError(
                f"{row.origin}: column {config.options!r} holds a {type(found).__name__}; "
                "expected a list of options",
                "options in columns of their own: task.options=[A, B]",
            )
        options = tuple(str(option) for option in found)
    else:
        options = tuple(text_cell(row, column) for column in config.options)
    if len(options) < 2:
        raise DataError(f"{row.origin}: {len(options)} options; expected two or more")
    passage = text_cell(row, config.passage) if config.passage is not None else ""
    question = text_cell(row, config.question) if config.question is not None else ""
    return passage, question, options


def option_texts(item: Item, option: str, *, gpt1: bool) -> tuple[str, str]:
    """The two texts of an option's sequence.

    Without a passage, or without a question, the one that there is stands against the option.
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
        DataError: Neither a number nor a letter of one of the options.
    """
    count = len(item_of(config, row)[2])
    said = label_cell(row, config.label).strip()
    letter = len(said) == 1 and "A" <= said.upper() <= "Z"
    whole = said.removesuffix(".0")  # as tables with gaps have their numbers
    found = -1
    if letter:
        found = ord(said.upper()) - ord("A")
    elif whole.isascii() and whole.isdigit():
        found = int(whole) - config.count_from
    if not 0 <= found < count:
        numbers = f"{config.count_from} to {count - 1 + config.count_from}"
        raise DataError(
            f"{row.origin}: column {config.label!r}: {said!r} is none of the {count} options; "
            f"expected {numbers}, or A to {chr(ord('A') + count - 1)}",
            "numbers that begin at 1: task.count_from=1",
        )
    return found


# --- Examples: batches, losses, predictions ---


@dataclass(frozen=True)
class MultipleChoice(Examples):
    """Items as token ids of their options, with the right one; see ``base.TaskExamples``."""

    config: Config
    rows: SequenceExamples
    options: tuple[tuple[str, ...], ...]
    targets: Ints | None
    dropped: tuple[str, ...]

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """The choice; of GPT-1 the language model too."""
        return ("choice", "lm") if self.rows.language else ("choice",)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of the mean of each loss term in the loss."""
        return {term: self.config.lm_weight if term == "lm" else 1.0 for term in self.loss_terms}

    @property
    def cut(self) -> int:
        """Items that lost text."""
        return self.rows.cut

    def __len__(self) -> int:
        """Items."""
        return len(self.rows)

    def lengths(self) -> Ints:
        """[N] tokens of each item's longest option."""
        return self.rows.lengths()

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The items ``samples``, options padded to the longest; see ``SequenceExamples.batch``."""
        targets = {} if self.targets is None else {"choice": self.targets[samples]}
        return self.rows.batch(samples, targets)

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Summed cross-entropy of the right options, in nats."""
        return _loss_sums(network(**batch.inputs), batch)

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The loss, and how often the right option is ahead."""
        logits = network(**batch.inputs)
        hits = (logits["choice"].argmax(-1) == batch.targets["choice"]).sum().float()
        scores = {**_loss_sums(logits, batch), "choice/correct": hits}
        if "lm" in logits:
            scores["lm/correct"] = language_sums(logits["lm"], batch)[1]
        return scores

    def outputs(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Probabilities of the options, [B, O]; 0 where an item has fewer."""
        inputs = {name: value for name, value in batch.inputs.items() if name != "lm_cells"}
        return {"choice": network(**inputs)["choice"].float().softmax(-1)}

    def answers(self, outputs: Mapping[str, Sequence[NDArray[Any]]]) -> list[dict[str, Any]]:
        """The number of the most probable option as the rows count, its text, and all of them."""
        found = []
        for row, options in zip(outputs["choice"], self.options, strict=True):
            best = int(row[: len(options)].argmax())
            found.append(
                {
                    "prediction": best + self.config.count_from,
                    "text": options[best],
                    "probabilities": [float(p) for p in row[: len(options)]],
                }
            )
        return found

    def figures(self, answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Accuracy, and what the most frequent number would get (``metrics.classification``)."""
        from plmctl.metrics.classification import accuracy, majority
        from plmctl.metrics.statistics import with_interval

        targets = required(self.targets)
        said = np.array([answer["prediction"] for answer in answers]) - self.config.count_from
        found = {
            "accuracy": accuracy(said, targets),
            "majority": majority(targets),
        }
        return with_interval(found, "accuracy", accuracy, said, targets)

    def credits(self, answers: Sequence[Mapping[str, Any]]) -> tuple[str, list[float]]:
        """Right or wrong."""
        targets = required(self.targets)
        said = np.array([answer["prediction"] for answer in answers]) - self.config.count_from
        return "accuracy", (said == targets).astype(float).tolist()


def _loss_sums(logits: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
    from plmctl.models.losses import single_label_sum

    sums = {"choice": single_label_sum(logits["choice"], batch.targets["choice"])}
    if "lm" in logits:
        sums["lm"], _ = language_sums(logits["lm"], batch)
    return sums


# --- The network ---


def tokenizer(config: Config, model: str) -> PreTrainedTokenizerBase:
    """The model's own, with its family's template for finetuning."""
    from plmctl.models.load import config_of
    from plmctl.tokenization.load import load_tokenizer

    return with_format(load_tokenizer(model), str(config_of(model).model_type))


def load(
    config: Config,
    model: str,
    labels: tuple[str, ...],
    *,
    pretrained: bool,
    changes: Any,
    new_heads: NewHeads | None = None,
) -> PreTrainedModel:
    """The network with a head that gives one number an option; see ``base.Task``."""
    from plmctl.models.heads.classification import TokenIds, load_classifier

    tokens = tokenizer(config, model)
    changes = {"num_labels": 1, **changes}
    ids = TokenIds(tokens.pad_token_id, tuple(gpt1_ids(tokens)))
    return load_classifier(
        model, ids, pretrained=pretrained, changes=changes, choice=True, new_heads=new_heads
    )


def forward(model: Any, **inputs: Tensor) -> dict[str, Tensor]:
    """Logits of the options, [B, O]; of GPT-1 next-token logits too."""
    from plmctl.models.heads.classification import (
        choose_with_decoder,
        choose_with_encoder,
        is_decoder,
    )

    run = choose_with_decoder if is_decoder(model) else choose_with_encoder
    return run(model, **inputs)
