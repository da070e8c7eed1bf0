"""Sequence classification and regression: a text or a pair of texts, a label, labels or a number.

Heads are those of transformers, which follow the papers: BERT's pooled [CLS] with dropout and a
linear layer; RoBERTa's dense layer and tanh of its own; GPT-1's and GPT-2's linear layer on the
last token. The published GPT-1 head has a bias, transformers' has none. GPT-1 learns the language
of the texts beside their labels, each text's mean over its tokens, over the rows of the vocabulary
(the published code's softmax goes over the rows of the position table too).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from plmctl.arrays import Ints
from plmctl.config.members import TaskConfig
from plmctl.errors import ConfigError
from plmctl.tasks import _elmo, _labels, _scoring, _unlabelled
from plmctl.tasks._formats import gpt1_ids, sequences, with_format
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

Problem = Literal["single_label", "multi_label", "regression"]


class Config(TaskConfig):
    """Classify a text or a pair of texts: one label, several, or a number."""

    name: Literal["classification"] = "classification"
    text: str | tuple[str, str] = "text"
    """Column of the text; two columns for a pair."""
    label: str = "label"
    """Column of the label: a name or a number; of several labels: a list, or names in one text."""
    problem: Problem = "single_label"
    """multi_label: a row has any number of labels; regression: the label is a number."""
    unlabelled: _unlabelled.Unlabelled = "refuse"
    """Rows without a gold label: an empty one, `-` (OCNLI), or -1 (SNLI, test rows). drop: leave
    them out of training and scoring, and tell how many; keep: `-` and -1 are labels like others."""
    separator: str = Field(default=",", min_length=1)
    """multi_label only: what stands between the labels of a row in one text."""
    threshold: float = Field(default=0.5, gt=0, lt=1)
    """multi_label only: the probability from which a label is given."""
    positive: str | tuple[str, ...] | None = None
    """The label whose F1 is reported as `f1` where there are two; of several names the first that
    is a label; empty: the second."""
    class_weights: Literal["balanced"] | dict[str, float] | None = None
    """What a training row counts for, by its label: `balanced` (all labels the same in sum), or
    weights by label, 1 for the others. They multiply losses; the loss is still divided by the
    number of rows."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of each training target that is spread evenly over all labels."""
    lm_weight: float = Field(default=0.5, ge=0)
    """GPT-1 only: weight of the language model's loss beside that of the labels; 0: none."""
    pooling: Literal["head", "cls", "mean", "max"] = "head"
    """Encoders only: what the label is read from. head: the family's own head; cls: the first
    token's vector; mean, max: of all tokens' vectors. Other than head, the finetuned folder loads
    where plmctl is imported, and has no class of transformers' own."""
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
        return self


def text_columns(config: Config) -> tuple[str, ...]:
    """The column of the text, or the two of a pair."""
    return (config.text,) if isinstance(config.text, str) else config.text


def is_labelled(config: Config, row: Row) -> bool:
    """False for the rows that ``unlabelled: drop`` leaves out."""
    return config.unlabelled != "drop" or _unlabelled.is_labelled(row, config.label, config.problem)


def labels_of(config: Config, rows: Sequence[Row]) -> tuple[str, ...]:
    """The label names of the training rows, in order; none for regression.

    Raises:
        DataError: A row without a label, or too few labels.
    """
    found = _labels.found(config, rows)
    if config.unlabelled == "refuse" and config.problem == "single_label":
        _unlabelled.refuse_marks(rows, config.label, found)
    return found


def tokenizer(config: Config, model: str) -> PreTrainedTokenizerBase:
    """The model's own, with its family's template for finetuning."""
    from plmctl.modeling.auto import config_of
    from plmctl.tokenization.load import load_tokenizer

    kind = str(config_of(model).model_type)
    if kind == "elmo":
        return _elmo.load_words(model)
    return with_format(load_tokenizer(model), kind)


def load(
    config: Config,
    model: str,
    labels: tuple[str, ...],
    *,
    pretrained: bool,
    changes: Any,
    new_heads: NewHeads | None = None,
) -> PreTrainedModel:
    """The network with a classification head whose config names the labels; see ``tasks.Task``."""
    from plmctl.modeling.heads.classifier import TokenIds, load_classifier

    names = labels or ("score",)
    _labels.positive(config.positive, labels)
    changes = {
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": config.problem.replace("label", "label_classification"),
        **changes,
    }
    if config.pooling != "head":
        from plmctl.modeling.heads.pooled import load_pooled

        return load_pooled(
            model, config.pooling, pretrained=pretrained, changes=changes, new_heads=new_heads
        )
    tokens = tokenizer(config, model)
    if config.both_orders and not gpt1_ids(tokens):
        raise ConfigError(f"task.both_orders: {model} is not GPT-1", "leave it out")
    if _elmo.reads_characters(tokens):
        changes = _elmo.changes_of(changes, pretrained=pretrained)
    ids = TokenIds(tokens.pad_token_id, tuple(gpt1_ids(tokens)))
    return load_classifier(model, ids, pretrained=pretrained, changes=changes, new_heads=new_heads)


@dataclass(frozen=True)
class Classification:
    """Rows as token ids, with their labels; see ``tasks.Examples``."""

    config: Config
    rows: Rows | _elmo.Texts
    targets: NDArray[Any] | None
    """[N] label ids, [N, C] labels as 0 and 1, or [N] numbers; None for rows to be answered."""
    labels: tuple[str, ...]
    class_weights: NDArray[np.float32] | None
    dropped: tuple[str, ...]

    @property
    def parts(self) -> tuple[str, ...]:
        """The label; of GPT-1 the language model too."""
        return ("label", "lm") if self.rows.language else ("label",)

    @property
    def weights(self) -> dict[str, float]:
        """What the parts count for."""
        return {"lm": self.config.lm_weight}

    @property
    def cut(self) -> int:
        """Rows that lost text."""
        return self.rows.cut

    @cached_property
    def _loss(self) -> _scoring.Loss:
        return _scoring.Loss(self.config.problem, self.class_weights, self.config.label_smoothing)

    def __len__(self) -> int:
        """Rows."""
        return len(self.rows)

    def lengths(self) -> Ints:
        """[N] tokens of each row."""
        return self.rows.lengths()

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The rows ``samples`` padded to the longest of them.

        Args:
            epochs: [B], not used: rows are the same in every epoch.
            samples: [B] row numbers.

        Returns:
            inputs: input_ids, attention_mask, and token_type_ids where the tokenizer has them,
            [B, L], or [B, 2, L] in both orders;
            targets: label [B] or [B, C]; lm, the tokens that each sequence predicts.
        """
        targets = {} if self.targets is None else {"label": self.targets[samples]}
        return self.rows.batch(samples, targets)

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Summed cross-entropy of the labels in nats, or squared errors; see ``_scoring``."""
        return self._loss.sums(network(**batch.inputs), batch)

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The plain loss, without weights and smoothing, and the number of right labels."""
        return _scoring.Loss(self.config.problem).score(network(**batch.inputs), batch)

    def outputs(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Probabilities of the labels [B, C]; of regression the numbers [B, 1]."""
        inputs = {name: value for name, value in batch.inputs.items() if name != "lm_cells"}
        return {"label": _scoring.probabilities(network(**inputs)["label"], self.config.problem)}

    def answers(self, outputs: Mapping[str, Sequence[NDArray[Any]]]) -> list[dict[str, Any]]:
        """The most probable label, all from the threshold on, or the number."""
        if self.config.problem == "regression":
            return [{"prediction": float(row[0])} for row in outputs["label"]]
        return [
            {
                "prediction": self._said(row),
                "probabilities": dict(zip(self.labels, map(float, row), strict=True)),
            }
            for row in outputs["label"]
        ]

    def figures(self, answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """See ``_scoring.figures``."""
        targets = known(self.targets)
        said = [answer["prediction"] for answer in answers]
        return _scoring.figures(self.config.problem, said, targets, self.labels, self._positive)

    def uncertainty(self, answers: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
        """See ``_scoring.uncertainty``."""
        said = [answer["prediction"] for answer in answers]
        return _scoring.uncertainty(
            self.config.problem, said, known(self.targets), self.labels, self._positive
        )

    def credits(self, answers: Sequence[Mapping[str, Any]]) -> tuple[str, list[float]]:
        """Right or wrong; of regression the squared error, below 0."""
        targets = known(self.targets)
        said = [answer["prediction"] for answer in answers]
        return _scoring.credits(self.config.problem, said, targets, self.labels)

    @property
    def _positive(self) -> str | None:
        return _labels.positive(self.config.positive, self.labels)

    def _said(self, row: NDArray[Any]) -> str | list[str]:
        if self.config.problem == "multi_label":
            over = row >= self.config.threshold
            return [label for label, there in zip(self.labels, over, strict=True) if there]
        return self.labels[int(row.argmax())]


def make(
    config: Config,
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    labels: tuple[str, ...],
    max_length: int,
    use: Use,
) -> Classification:
    """The rows as examples; see ``tasks.Task``. Training rows without any text are dropped."""
    columns = text_columns(config)
    rows, dropped = readable(rows, columns, use)
    texts = [[_labels.text(row, column) for row in rows] for column in columns]
    orders = [texts, texts[::-1]] if config.both_orders else [texts]
    targets = None if use == "predict" else _labels.targets(config, rows, labels)
    weights = None
    if use == "train" and targets is not None and config.class_weights is not None:
        count = _labels.label_weights if targets.ndim == 2 else _labels.class_weights
        weights = count(config.class_weights, targets, labels)
    if _elmo.reads_characters(tokenizer):
        read = _elmo.texts(tokenizer, texts, max_length)
        return Classification(config, read, targets, labels, weights, dropped)
    made = Rows.of_views(
        [sequences(tokenizer, order, max_length) for order in orders],
        tokenizer,
        language=bool(gpt1_ids(tokenizer)) and config.lm_weight > 0 and use != "predict",
    )
    return Classification(config, made, targets, labels, weights, dropped)


def forward(model: Any, **inputs: Tensor) -> dict[str, Tensor]:
    """Logits of the labels, [B, C]; of GPT-1 next-token logits too."""
    from plmctl.modeling.heads import decoder, encoder

    run = decoder.classify if decoder.is_decoder(model) else encoder.classify
    return run(model, **inputs)
