"""Texts as token sequences: from a text, a pair or several options to padded batches and losses.

The special tokens around texts are the tokenizer's own template, so that a finetuned folder reads
texts the same way wherever it is loaded. If a family's template is not in its tokenizer,
``Family.finetuning_format`` adds it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import IGNORE, Ints, padded
from plmctl.families.base import families, family_of
from plmctl.tasks.base import C, TaskExamples, Use, as_batch
from plmctl.tokenization.layout import Ids, Layout, encode_texts, layout_of

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from plmctl.models.batch import Batch
    from plmctl.models.network import Network


def format_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of the tokens that a family adds for finetuning (GPT-1); empty: there are none."""
    known = tokenizer.get_vocab()
    return [known[one] for family in families() for one in family.FORMAT_TOKENS if one in known]


# --- From texts to ids ---


@dataclass(frozen=True)
class Sequences:
    """Rows of ids.

    Attributes:
        ids: [N] sequences.
        segments: As ids; None where the network has none.
        cut: Whether each lost text to the maximum length.
    """

    ids: tuple[Ids, ...]
    segments: tuple[Ids, ...] | None
    cut: tuple[bool, ...]


def text_sequences(
    tokenizer: PreTrainedTokenizerBase, columns: Sequence[Sequence[str]], max_length: int
) -> Sequences:
    """One sequence per row, of at most ``max_length`` tokens.

    Args:
        tokenizer: With its family's template.
        columns: The texts, or the firsts and the seconds of pairs.
        max_length: In tokens, special ones included.
    """
    encoded = [encode_texts(tokenizer, texts) for texts in columns]
    if len(columns) == 2:
        return pair_sequences(tokenizer, encoded[0], encoded[1], max_length)
    layout = layout_of(tokenizer, pair=False)
    room = max(0, max_length - layout.special)
    return _joined_sequences(
        tokenizer, layout, [([ids], [min(len(ids), room)]) for ids in encoded[0]]
    )


def pair_sequences(
    tokenizer: PreTrainedTokenizerBase,
    first: Sequence[Sequence[int]],
    second: Sequence[Sequence[int]],
    max_length: int,
    *,
    whole_second: bool = False,
) -> Sequences:
    """One sequence per pair, of at most ``max_length`` tokens.

    Args:
        tokenizer: With its family's template.
        max_length: In tokens, special ones included.
        whole_second: Cut the first text alone, as long as there is any of it.
    """
    layout = layout_of(tokenizer, pair=True)
    room = max(0, max_length - layout.special)
    each = max(1, max_length // 2 - 2)  # GPT-1's; finetune-transformer-lm, train.py, max_len
    rows, gpt1 = [], bool(format_ids(tokenizer))
    for one, two in zip(first, second, strict=True):
        if gpt1:
            keep = (min(len(one), each), min(len(two), each))
        elif whole_second:
            behind = min(len(two), room)
            keep = (min(len(one), room - behind), behind)
        else:
            keep = truncated_lengths(len(one), len(two), room)
        rows.append(([one, two], list(keep)))
    return _joined_sequences(tokenizer, layout, rows)


def truncated_lengths(first: int, second: int, room: int) -> tuple[int, int]:
    """Lengths that BERT leaves a pair of: the longer is cut at its end, the second on ties.

    In closed form. Tokenizers' own ``longest_first`` cuts the first on ties.
    Source: google-research/bert, run_classifier.py, ``_truncate_seq_pair``.
    """
    if first + second <= room:
        return first, second
    if first > second:
        first = max(second, room - second)
    else:
        second = max(first, room - first)
    if first + second <= room:
        return first, second
    return room - room // 2, room // 2


def _joined_sequences(
    tokenizer: PreTrainedTokenizerBase,
    layout: Layout,
    rows: Sequence[tuple[list[Sequence[int]], list[int]]],
) -> Sequences:
    """The sequences of texts, and how many tokens are kept of each."""
    empty = tokenizer.eos_token_id  # a text without a token, between no special ones
    joined = [
        layout.join([ids[:length] for ids, length in zip(texts, keep, strict=True)])
        for texts, keep in rows
    ]
    ids = tuple(row or (int(empty or 0),) for row, _ in joined)
    segments = None
    if "token_type_ids" in tokenizer.model_input_names:
        segments = tuple(row or (0,) for _, row in joined)
    cut = tuple(list(map(len, texts)) != keep for texts, keep in rows)
    return Sequences(ids, segments, cut)


# --- From ids to a batch ---


@dataclass(frozen=True)
class EncodedRows:
    """Rows as sequences of ids: one per row (a text), or several (options; a pair in both orders).

    Attributes:
        sequences: [N] the numbers of the sequences of each row.
        segments: As ids; None: the network has none.
        cut: Rows that lost text.
        lm_weight: Weight of the language model's loss; 0: next tokens are not predicted.
        several: Whether inputs have a dimension of sequences, even if there is one per row.
    """

    sequences: tuple[Ids, ...]
    ids: tuple[Ids, ...]
    segments: tuple[Ids, ...] | None
    pad_id: int
    cut: int
    lm_weight: float
    several: bool

    @classmethod
    def of_views(
        cls, views: Sequence[Sequences], tokenizer: PreTrainedTokenizerBase, lm_weight: float
    ) -> EncodedRows:
        """Rows in one or several views; each view has one sequence of every row."""
        count = len(views[0].ids)
        return cls(
            tuple(tuple(range(row, row + count * len(views), count)) for row in range(count)),
            tuple(ids for view in views for ids in view.ids),
            _all_segments([view.segments for view in views]),
            pad_id_of(tokenizer),
            sum(map(any, zip(*(view.cut for view in views), strict=True))),
            lm_weight,
            len(views) > 1,
        )

    @classmethod
    def of_groups(
        cls,
        sizes: Sequence[int],
        sequences: Sequences,
        tokenizer: PreTrainedTokenizerBase,
        lm_weight: float,
    ) -> EncodedRows:
        """Rows of one sequence per option; ``sizes`` are the numbers of options, in order."""
        ends = np.cumsum(sizes).tolist()
        rows = tuple(tuple(range(end - size, end)) for end, size in zip(ends, sizes, strict=True))
        cut = sum(any(sequences.cut[number] for number in row) for row in rows)
        pad_id = pad_id_of(tokenizer)
        return cls(rows, sequences.ids, sequences.segments, pad_id, cut, lm_weight, several=True)

    def __len__(self) -> int:
        """Rows."""
        return len(self.sequences)

    def lengths(self) -> Ints:
        """[N] tokens of the longest sequence of each row."""
        return np.array([max(len(self.ids[k]) for k in row) for row in self.sequences])

    def batch(self, samples: Ints, targets: Mapping[str, NDArray[Any]]) -> Batch:
        """The rows ``samples`` padded to their longest sequence.

        Args:
            samples: [B] their numbers.
            targets: The targets of the loss terms, without the language model's.

        Returns:
            inputs: input_ids, attention_mask, and token_type_ids if there are segments, [B, L], or
            [B, S, L] with S sequences per row: a row with fewer repeats its first, and ``options``
            [B, S] is false there; lm_cells [K], the positions whose next token is predicted.
            targets: as given, and lm [B] or [B, S], the number of tokens that each predicts.
        """
        chosen = [self.sequences[sample] for sample in samples]
        width = max(map(len, chosen))
        which = [k for row in chosen for k in (*row, *row[:1] * (width - len(row)))]
        there = np.arange(width) < np.array([len(row) for row in chosen])[:, None]
        ids, real = padded([self.ids[k] for k in which], self.pad_id)
        inputs: dict[str, NDArray[Any]] = {
            "input_ids": ids,
            "attention_mask": real.astype(np.int64),
        }
        if self.segments is not None:
            inputs["token_type_ids"], _ = padded([self.segments[k] for k in which], 0)
        shape = there.shape if self.several else (len(chosen),)
        inputs = {name: array.reshape(*shape, -1) for name, array in inputs.items()}
        if self.several:
            inputs["options"] = there
        targets = dict(targets)
        if self.lm_weight > 0:
            has_next = np.zeros_like(real)
            has_next[:, :-1] = real[:, 1:] & there.reshape(-1, 1)
            inputs["lm_cells"] = np.flatnonzero(has_next)
            targets["lm"] = np.where(there.ravel(), has_next.sum(1), IGNORE).reshape(shape)
        return as_batch(inputs, targets, real)


def _all_segments(parts: Sequence[tuple[Ids, ...] | None]) -> tuple[Ids, ...] | None:
    segments = [part for part in parts if part is not None]
    return tuple(row for part in segments for row in part) if segments else None


def pad_id_of(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id of padding; if the tokenizer has none, that of its end token."""
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return int(pad or 0)


# --- The class of the network with a head on whole texts ---


def head_class(model: str, kind: Literal["classification", "multiple_choice"]) -> Any:
    """The class of the network of a folder with its head, or an Auto class.

    Raises:
        ConfigError: There is none.
    """
    from plmctl.models.heads import classification  # noqa: F401  # declares its own networks
    from plmctl.models.load import config_of
    from plmctl.models.own_heads import no_head

    network = config_of(model)
    known_class = family_of(network).head_class(kind, network)
    if known_class is not None:
        return known_class
    text_to_text = "it writes text: use the task text_to_text"
    raise no_head(model, network, kind, text_to_text if network.is_encoder_decoder else "")


# --- Examples with one target per row, and GPT-1's second loss: the next tokens of the texts ---


class Readable(Protocol):
    """Rows as a network reads them: ``EncodedRows``, or words of characters (ELMo)."""

    @property
    def lm_weight(self) -> float:
        """Weight of the language model's loss; 0: next tokens are not predicted."""

    def __len__(self) -> int:
        """Rows."""

    def lengths(self) -> Ints:
        """[N] tokens of each row."""

    def batch(self, samples: Ints, targets: Mapping[str, NDArray[Any]]) -> Batch:
        """The rows ``samples`` with their targets."""


@dataclass(frozen=True)
class SequenceExamples(TaskExamples[C]):
    """Examples with one target per row, such as a label or the right option.

    Attributes:
        targets: [N, ...], None for rows without labels (``predict``).
    """

    term: ClassVar[str]
    rows: Readable
    targets: NDArray[Any] | None

    @abstractmethod
    def target_loss(self, logits: Tensor, targets: Tensor, *, training: bool) -> Tensor:
        """The loss of the targets, summed; class weights and smoothing are for training."""

    @abstractmethod
    def num_correct(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The number of right targets; nan if right and wrong are not defined."""

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """The target's; for GPT-1 the language model's too."""
        return (self.term, "lm") if self.rows.lm_weight > 0 else (self.term,)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of the mean of each loss term in the loss."""
        return {term: self.rows.lm_weight if term == "lm" else 1.0 for term in self.loss_terms}

    def __len__(self) -> int:
        """Rows."""
        return len(self.rows)

    def lengths(self) -> Ints:
        """[N] tokens of each row, or of the longest of its sequences."""
        return self.rows.lengths()

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The rows ``samples`` padded to the longest; see ``EncodedRows.batch``.

        Args:
            epochs: [B], not used: rows are the same in every epoch.
            samples: [B] row numbers.
        """
        targets = {} if self.targets is None else {self.term: self.targets[samples]}
        return self.rows.batch(samples, targets)

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The loss of the targets, and for GPT-1 the cross-entropy of next tokens, summed."""
        logits, targets = network(**batch.inputs), batch.targets[self.term]
        sums = {self.term: self.target_loss(logits[self.term], targets, training=True)}
        if "lm" in batch.targets:
            sums["lm"], _ = language_sums(logits["lm"], batch)
        return sums

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The loss without class weights and smoothing, and the number of right targets."""
        logits, targets = network(**batch.inputs), batch.targets[self.term]
        scores = {
            self.term: self.target_loss(logits[self.term], targets, training=False),
            f"{self.term}/correct": self.num_correct(logits[self.term], targets),
        }
        if "lm" in batch.targets:
            scores["lm"], scores["lm/correct"] = language_sums(logits["lm"], batch)
        return scores

    def logits(self, network: Network, batch: Batch) -> Tensor:
        """The logits of the target, without those of next tokens."""
        inputs = {name: value for name, value in batch.inputs.items() if name != "lm_cells"}
        logits: Tensor = network(**inputs)[self.term]
        return logits


def language_weight(weight: float, tokenizer: PreTrainedTokenizerBase, use: Use) -> float:
    """The weight of the next tokens' loss: only GPT-1 learns them, and rows that have labels."""
    return weight if format_ids(tokenizer) and use != "predict" else 0.0


def language_sums(logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy, and share of right guesses, of the next tokens of a text, summed."""
    from plmctl.models.losses import next_token_sums

    ids, counts = batch.inputs["input_ids"].flatten(0, -2), batch.targets["lm"].flatten()
    return next_token_sums(logits, ids, batch.inputs["lm_cells"], counts)
