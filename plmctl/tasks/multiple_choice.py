"""Multiple choice: which of several options fits a passage and a question (RACE, SWAG).

Each option is a sequence of its own and gets one number; the softmax goes over the options of an
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
from plmctl.config.members import TaskConfig
from plmctl.tasks import _scoring, _unlabelled
from plmctl.tasks._formats import encode, gpt1_ids, pairs, with_format
from plmctl.tasks._items import item_of, sides_of, target_of
from plmctl.tasks._known import known
from plmctl.tasks._rows import Rows, readable

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from plmctl.corpus.tables import Row
    from plmctl.modeling.batch import Batch
    from plmctl.modeling.load import NewHeads
    from plmctl.modeling.network import Network
    from plmctl.tasks import Use


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


def text_columns(config: Config) -> tuple[str, ...]:
    """Passage, question and options."""
    asked = [column for column in (config.passage, config.question) if column is not None]
    options = (config.options,) if isinstance(config.options, str) else config.options
    return (*asked, *options)


def is_labelled(config: Config, row: Row) -> bool:
    """False for the rows that ``unlabelled: drop`` leaves out."""
    return config.unlabelled != "drop" or _unlabelled.is_labelled(row, config.label)


def labels_of(config: Config, rows: Sequence[Row]) -> tuple[str, ...]:
    """None: an option is no label."""
    return ()


def tokenizer(config: Config, model: str) -> PreTrainedTokenizerBase:
    """The model's own, with its family's template for finetuning."""
    from plmctl.modeling.auto import config_of
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
    """The network with a head that gives one number an option; see ``tasks.Task``."""
    from plmctl.modeling.heads.classifier import TokenIds, load_classifier

    tokens = tokenizer(config, model)
    changes = {"num_labels": 1, **changes}
    ids = TokenIds(tokens.pad_token_id, tuple(gpt1_ids(tokens)))
    return load_classifier(
        model, ids, pretrained=pretrained, changes=changes, choice=True, new_heads=new_heads
    )


@dataclass(frozen=True)
class MultipleChoice:
    """Items as token ids of their options, with the right one; see ``tasks.Examples``."""

    config: Config
    rows: Rows
    options: tuple[tuple[str, ...], ...]
    targets: Ints | None
    dropped: tuple[str, ...]

    @property
    def parts(self) -> tuple[str, ...]:
        """The choice; of GPT-1 the language model too."""
        return ("choice", "lm") if self.rows.language else ("choice",)

    @property
    def weights(self) -> dict[str, float]:
        """What the parts count for."""
        return {"lm": self.config.lm_weight}

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
        """The items ``samples``, every option padded to the longest; see ``Rows.batch``."""
        targets = {} if self.targets is None else {"choice": self.targets[samples]}
        return self.rows.batch(samples, targets)

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Summed cross-entropy of the right options, in nats."""
        return _sums(network(**batch.inputs), batch)

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The loss, and how often the right option is ahead."""
        logits = network(**batch.inputs)
        hits = (logits["choice"].argmax(-1) == batch.targets["choice"]).sum().float()
        scores = {**_sums(logits, batch), "choice/correct": hits}
        if "lm" in logits:
            scores["lm/correct"] = _scoring.language(logits["lm"], batch)[1]
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
        from plmctl.metrics import classification
        from plmctl.metrics.statistics import with_interval

        targets = known(self.targets)
        said = np.array([answer["prediction"] for answer in answers]) - self.config.count_from
        found = {
            "accuracy": classification.accuracy(said, targets),
            "majority": classification.majority(targets),
        }
        return with_interval(found, "accuracy", classification.accuracy, said, targets)

    def credits(self, answers: Sequence[Mapping[str, Any]]) -> tuple[str, list[float]]:
        """Right or wrong."""
        targets = known(self.targets)
        said = np.array([answer["prediction"] for answer in answers]) - self.config.count_from
        return "accuracy", (said == targets).astype(float).tolist()


def make(
    config: Config,
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    labels: tuple[str, ...],
    max_length: int,
    use: Use,
) -> MultipleChoice:
    """The rows as items; see ``tasks.Task``."""
    asked = [column for column in (config.passage, config.question) if column is not None]
    rows, dropped = readable(rows, asked, use)
    items = [item_of(config, row) for row in rows]
    gpt1 = bool(gpt1_ids(tokenizer))
    sides = [sides_of(item, option, gpt1=gpt1) for item in items for option in item[2]]
    first, second = (encode(tokenizer, [side[k] for side in sides]) for k in (0, 1))
    early = [False] * len(second)
    longest = config.max_option_length
    if longest is not None and not gpt1:
        early = [len(ids) > longest for ids in second]
        second = [ids[-longest:] for ids in second]
    made = pairs(tokenizer, first, second, max_length, whole_second=longest is not None)
    made = type(made)(made.ids, made.segments, tuple(map(any, zip(made.cut, early, strict=True))))
    targets = None if use == "predict" else np.array([target_of(config, row) for row in rows])
    language = gpt1 and config.lm_weight > 0 and use != "predict"
    options = tuple(item[2] for item in items)
    grouped = Rows.of_groups(list(map(len, options)), made, tokenizer, language=language)
    return MultipleChoice(config, grouped, options, targets, dropped)


def forward(model: Any, **inputs: Tensor) -> dict[str, Tensor]:
    """Logits of the options, [B, O]; of GPT-1 next-token logits too."""
    from plmctl.modeling.heads import decoder, encoder

    run = decoder.choose if decoder.is_decoder(model) else encoder.choose
    return run(model, **inputs)


def _sums(logits: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
    from plmctl.modeling.label_losses import single_label_sum

    sums = {"choice": single_label_sum(logits["choice"], batch.targets["choice"])}
    if "lm" in logits:
        sums["lm"], _ = _scoring.language(logits["lm"], batch)
    return sums
