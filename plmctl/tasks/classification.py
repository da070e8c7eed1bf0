"""Sequence classification: one label for a text or a pair of texts.

Heads are those of transformers, which follow the papers: BERT's pooled [CLS] with dropout and a
linear layer, GPT-2's linear layer on the last token that is no padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from plmctl.config.members import TaskConfig
from plmctl.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from plmctl.corpus.tables import Row
    from plmctl.modeling.batch import Batch
    from plmctl.modeling.network import Network

Ints = NDArray[np.int64]

PARTS = ("label",)
METRICS = "classification"
"""The function of ``evaluation.metrics`` that says what predictions are worth."""


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


def load(
    model: str, labels: tuple[str, ...], *, pretrained: bool, changes: dict[str, Any]
) -> PreTrainedModel:
    """The network with a classification head whose config names the labels.

    Args:
        model: A model folder or Hub id.
        labels: Their order gives the ids.
        pretrained: False keeps the architecture and draws every weight anew.
        changes: Fields of the model's config to set, such as dropout.
    """
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
    """Rows as token ids, with their labels."""

    ids: tuple[tuple[int, ...], ...]
    segments: tuple[tuple[int, ...], ...] | None
    targets: Ints
    """[N] label ids."""
    pad_id: int
    parts: tuple[str, ...] = PARTS

    def __len__(self) -> int:
        """Rows."""
        return len(self.targets)

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

        rows = [self.ids[sample] for sample in samples]
        lengths = np.array([len(row) for row in rows])
        width = int(lengths.max())
        real = np.arange(width) < lengths[:, None]
        inputs = {"input_ids": _padded(rows, real, self.pad_id), "attention_mask": real.astype(int)}
        if self.segments is not None:
            segments = [self.segments[sample] for sample in samples]
            inputs["token_type_ids"] = _padded(segments, real, 0)
        return Batch(
            {name: torch.from_numpy(array) for name, array in inputs.items()},
            {"label": torch.from_numpy(self.targets[samples])},
            int(lengths.sum()),
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


def make(
    config: Config,
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    labels: tuple[str, ...],
    max_length: int,
) -> Classification:
    """The task over rows.

    Raises:
        DataError: A missing column, or a label that the training rows do not have.
    """
    texts = [[_text(row, column) for row in rows] for column in text_columns(config)]
    encoded = tokenizer(*texts, truncation=True, max_length=max_length)
    ids = {name: number for number, name in enumerate(labels)}
    targets = [_target(config, row, ids) for row in rows]
    segments = encoded.get("token_type_ids")
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return Classification(
        tuple(tuple(row) for row in encoded["input_ids"]),
        tuple(tuple(row) for row in segments) if segments is not None else None,
        np.array(targets, dtype=np.int64),
        int(pad or 0),
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


def _padded(rows: Sequence[Sequence[int]], real: NDArray[np.bool_], pad: int) -> Ints:
    out = np.full(real.shape, pad, dtype=np.int64)
    out[real] = np.concatenate(rows)
    return out
