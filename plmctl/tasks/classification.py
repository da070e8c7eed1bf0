"""Sequence classification: one label for a text or a pair of texts.

Heads are those of transformers, which follow the papers: BERT's pooled [CLS] with dropout and a
linear layer, GPT-2's linear layer on the last token that is no padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from plmctl.config.members import TaskConfig
from plmctl.errors import DataError
from plmctl.tasks._padded import padded

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from plmctl.corpus.tables import Row
    from plmctl.modeling.batch import Batch
    from plmctl.modeling.network import Network
    from plmctl.tasks import Use

Ints = NDArray[np.int64]

PARTS = ("label",)


class Config(TaskConfig):
    """Classify a text, or a pair of texts."""

    name: Literal["classification"] = "classification"
    text: str | tuple[str, str] = "text"
    """Column of the text; two columns for a pair."""
    label: str = "label"
    """Column of the label, a name or a number."""


def text_columns(config: Config) -> tuple[str, ...]:
    """The column of the text, or the two of a pair."""
    return (config.text,) if isinstance(config.text, str) else config.text


def labels_of(config: Config, rows: Sequence[Row]) -> tuple[str, ...]:
    """The label names of the training rows, in order; numbers in numeric order.

    Raises:
        DataError: A row without a label, or fewer than two labels.
    """
    found = {_label(config, row) for row in rows}
    if len(found) < 2:
        raise DataError(
            f"the training rows have one label only, {next(iter(found), 'none')!r}",
            "classification needs two labels or more",
        )
    numeric = all(name.lstrip("-").isdigit() for name in found)
    return tuple(sorted(found, key=int if numeric else str))


def tokenizer(config: Config, model: str) -> PreTrainedTokenizerBase:
    """The model's own."""
    from plmctl.tokenization.load import load_tokenizer

    return load_tokenizer(model)


def load(
    config: Config, model: str, labels: tuple[str, ...], *, pretrained: bool, changes: Any
) -> PreTrainedModel:
    """The network with a classification head whose config names the labels; see ``tasks.Task``."""
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    network = AutoConfig.from_pretrained(
        model,
        num_labels=len(labels),
        id2label=dict(enumerate(labels)),
        label2id={name: number for number, name in enumerate(labels)},
        problem_type="single_label_classification",
        **changes,
    )
    if network.pad_token_id is None:  # GPT-2 finds a row's last token by the padding after it
        network.pad_token_id = network.eos_token_id
    cls: Any = AutoModelForSequenceClassification
    made: PreTrainedModel = (
        cls.from_pretrained(model, config=network, dtype=torch.float32)
        if pretrained
        else cls.from_config(network, dtype=torch.float32)
    )
    return made


@dataclass(frozen=True)
class Classification:
    """Rows as token ids, with their labels; see ``tasks.Examples``."""

    ids: tuple[tuple[int, ...], ...]
    segments: tuple[tuple[int, ...], ...] | None
    targets: Ints | None
    """[N] label ids; None for rows that are to be answered."""
    labels: tuple[str, ...]
    pad_id: int
    cut: int = 0
    dropped: tuple[str, ...] = ()
    parts: tuple[str, ...] = PARTS

    def __len__(self) -> int:
        """Rows."""
        return len(self.ids)

    def lengths(self) -> Ints:
        """[N] tokens of each row."""
        return np.array([len(row) for row in self.ids])

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The rows ``samples`` padded to the longest of them.

        Args:
            epochs: [B], not used: rows are the same in every epoch.
            samples: [B] row numbers.

        Returns:
            inputs: input_ids, attention_mask, and token_type_ids where the model has them, [B, L];
            targets: label [B].
        """
        import torch

        from plmctl.modeling.batch import Batch

        ids, real = padded([self.ids[sample] for sample in samples], self.pad_id)
        inputs = {"input_ids": ids, "attention_mask": real.astype(int)}
        if self.segments is not None:
            inputs["token_type_ids"], _ = padded([self.segments[k] for k in samples], 0)
        targets = {} if self.targets is None else {"label": self.targets[samples]}
        return Batch(
            {name: torch.from_numpy(array) for name, array in inputs.items()},
            {name: torch.from_numpy(array) for name, array in targets.items()},
            int(real.sum()),
            real.size,
        )

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Summed cross-entropy of the labels, in nats."""
        from plmctl.modeling.losses import cross_entropy_sums

        return cross_entropy_sums(network(**batch.inputs), batch.targets)

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The loss, and the number of right labels."""
        from plmctl.modeling.losses import score_sums

        return score_sums(network(**batch.inputs), batch.targets)

    def outputs(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Probabilities of the labels, [B, labels]."""
        return {"label": network(**batch.inputs)["label"].float().softmax(-1)}

    def answers(self, outputs: Mapping[str, Sequence[NDArray[Any]]]) -> list[dict[str, Any]]:
        """The most probable label, with the probabilities of all."""
        return [
            {
                "prediction": self.labels[int(row.argmax())],
                "probabilities": dict(zip(self.labels, row.tolist(), strict=True)),
            }
            for row in outputs["label"]
        ]

    def figures(self, answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """See ``metrics.classification.classification``."""
        from plmctl.metrics import classification

        if self.targets is None:
            raise DataError("these rows have no labels to score the answers against")
        numbers = {name: number for number, name in enumerate(self.labels)}
        predicted = [numbers[answer["prediction"]] for answer in answers]
        return classification.classification(predicted, self.targets, self.labels)


def make(
    config: Config,
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    labels: tuple[str, ...],
    max_length: int,
    use: Use,
) -> Classification:
    """The rows as examples; see ``tasks.Task``."""
    texts = [[_text(row, column) for row in rows] for column in text_columns(config)]
    encoded = tokenizer(*texts, truncation=True, max_length=max_length)
    ids = {name: number for number, name in enumerate(labels)}
    segments = encoded.get("token_type_ids")
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return Classification(
        tuple(tuple(row) for row in encoded["input_ids"]),
        tuple(tuple(row) for row in segments) if segments is not None else None,
        None if use == "predict" else np.array([_target(config, row, ids) for row in rows]),
        labels,
        int(pad or 0),
        cut=sum(bool(encoding.overflowing) for encoding in encoded.encodings or ()),
    )


def forward(model: Any, **inputs: Tensor) -> dict[str, Tensor]:
    """Logits of the labels, [B, labels]."""
    return {"label": model(**inputs).logits}


def _text(row: Row, column: str) -> str:
    return str(row.cell(column))


def _label(config: Config, row: Row) -> str:
    return str(row.cell(config.label))


def _target(config: Config, row: Row, ids: dict[str, int]) -> int:
    name = _label(config, row)
    if name not in ids:
        raise DataError(
            f"{row.origin}: label {name!r} is not among the training labels: {', '.join(ids)}"
        )
    return ids[name]
