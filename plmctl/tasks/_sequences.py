"""Texts as token sequences: from a text, a pair or several options to padded batches and losses.

The special tokens around texts are the tokenizer's own template, so that a finetuned folder reads
texts the same way wherever it is loaded. If a family's template is not in its tokenizer, it is
added:

- GPT-1: ``_start_ A _classify_`` and ``_start_ A _delimiter_ B _classify_``, three new tokens.
- GPT-2, GPT-3: a line break between the texts of a pair; nothing is published.
- RoBERTa with another family's tokenizer: two separators, no segments.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import IGNORE, Ints, padded
from plmctl.errors import DataError
from plmctl.tasks.base import C, TaskExamples, Use, as_batch
from plmctl.tokenization.units import plain_copy

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from plmctl.models.batch import Batch
    from plmctl.models.network import Network


# --- The family's template ---


Ids = tuple[int, ...]

START, DELIMITER, CLASSIFY = GPT1_TOKENS = ("_start_", "_delimiter_", "_classify_")
"""In the order of their ids, which follow the vocabulary's."""


def with_format(tokenizer: PreTrainedTokenizerBase, model_type: str) -> PreTrainedTokenizerBase:
    """The tokenizer with its family's template for finetuning.

    Args:
        tokenizer: Is changed.
        model_type: The network's, in transformers.
    """
    if model_type == "openai-gpt":
        return _gpt1_template(tokenizer)
    if model_type == "gpt2":
        return _gpt2_template(tokenizer)
    if model_type == "roberta" and len(layout_of(tokenizer, pair=True).between) == 1:
        return _roberta_template(tokenizer)
    return tokenizer


def gpt1_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of GPT-1's three tokens; empty: the tokenizer has none."""
    known = tokenizer.get_vocab()
    return [known[token] for token in GPT1_TOKENS if token in known]


def _gpt1_template(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    if not gpt1_ids(tokenizer):
        tokenizer.add_tokens(list(GPT1_TOKENS), special_tokens=True)
    if tokenizer.pad_token is None:  # not the last token, by which a text's end is found
        tokenizer.pad_token = tokenizer.unk_token or START
    ids = gpt1_ids(tokenizer)
    single, pair = f"{START} $A {CLASSIFY}", f"{START} $A {DELIMITER} $B {CLASSIFY}"
    return _with_template(tokenizer, single, pair, dict(zip(GPT1_TOKENS, ids, strict=True)))


def _gpt2_template(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    ids = encode_texts(tokenizer, ["\n"])[0]
    known = {tokenizer.convert_ids_to_tokens(id_): id_ for id_ in ids}
    if len(ids) != 1:  # no token for a line break
        _check_tokens(tokenizer, "eos_token")
        known = {str(tokenizer.eos_token): int(tokenizer.eos_token_id)}
    return _with_template(tokenizer, "$A", f"$A {next(iter(known))} $B", known)


def _check_tokens(tokenizer: PreTrainedTokenizerBase, *names: str) -> None:
    """Refuse a tokenizer without a special token of its network's family.

    Raises:
        DataError: It has none.
    """
    for name in names:
        if getattr(tokenizer, name) is None:
            raise DataError(
                f"{tokenizer.name_or_path}: the tokenizer has no {name}, which the network of its "
                "config.json needs",
                "one of the two is of another model: copy the folder again",
            )


def _roberta_template(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    _check_tokens(tokenizer, "cls_token", "sep_token")
    first, last = str(tokenizer.cls_token), str(tokenizer.sep_token)
    ids = {first: int(tokenizer.cls_token_id), last: int(tokenizer.sep_token_id)}
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    pair = f"{first} $A:0 {last} {last} $B:0 {last}"
    return _with_template(tokenizer, f"{first} $A {last}", pair, ids)


def _with_template(
    tokenizer: PreTrainedTokenizerBase, single: str, pair: str, ids: dict[Any, int]
) -> PreTrainedTokenizerBase:
    from tokenizers.processors import TemplateProcessing

    whole: Any = tokenizer
    whole.backend_tokenizer.post_processor = TemplateProcessing(
        single=single, pair=pair, special_tokens=list(ids.items())
    )
    return tokenizer


@dataclass(frozen=True)
class Layout:
    """Special tokens around the texts of one sequence, and segments.

    Attributes:
        before: Ids before the first text.
        between: Ids between the texts of a pair.
        after: Ids after the last text.
        second: Segment of the second text and of what follows it.
    """

    before: Ids
    between: Ids
    after: Ids
    second: int = 0

    @property
    def special(self) -> int:
        """Special tokens of a sequence."""
        return len(self.before) + len(self.between) + len(self.after)

    def offset(self, first: int) -> int:
        """The position of the second text, after a first of so many tokens."""
        return len(self.before) + first + len(self.between)

    def join(self, texts: Sequence[Sequence[int] | NDArray[np.integer[Any]]]) -> tuple[Ids, Ids]:
        """The sequence of one text or of a pair, and its segments."""
        first = (*self.before, *texts[0], *self.between)
        second = (*(texts[1] if len(texts) == 2 else ()), *self.after)
        if len(texts) == 1:
            return first + second, (0,) * (len(first) + len(second))
        return first + second, (0,) * len(first) + (self.second,) * len(second)


def layout_of(tokenizer: PreTrainedTokenizerBase, *, pair: bool) -> Layout:
    """The template of a tokenizer, found by encoding a text."""
    encoded: Any = tokenizer("a", "a") if pair else tokenizer("a")
    encoding = encoded.encodings[0]
    texts: list[int | None] = encoding.sequence_ids
    ids: list[int] = encoding.ids
    first = texts.index(0)
    end = len(texts) - texts[::-1].index(1 if pair else 0)
    if not pair:
        return Layout(tuple(ids[:first]), (), tuple(ids[end:]))
    inner = zip(ids[first:end], texts[first:end], strict=True)
    between = tuple(id_ for id_, text in inner if text is None)
    return Layout(tuple(ids[:first]), between, tuple(ids[end:]), encoding.type_ids[texts.index(1)])


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
        first: Ids of the first texts.
        second: Ids of the second texts.
        max_length: In tokens, special ones included.
        whole_second: Cut the first text alone, as long as there is any of it.
    """
    layout = layout_of(tokenizer, pair=True)
    room = max(0, max_length - layout.special)
    each = max(1, max_length // 2 - 2)  # GPT-1's; finetune-transformer-lm, train.py, max_len
    rows, gpt1 = [], bool(gpt1_ids(tokenizer))
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


def encode_texts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Ids of texts without special tokens; text that looks like one is only text."""
    if not texts:
        return []
    if tokenizer.is_fast:
        encodings = plain_copy(tokenizer).encode_batch(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]
    encoded = tokenizer(
        list(texts),
        add_special_tokens=False,
        split_special_tokens=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    ids: list[list[int]] = encoded["input_ids"]
    return ids


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
        ids: The ids of every sequence.
        segments: As ids; None: the network has none.
        pad_id: The id of the padding token.
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
        term: The loss term of the target.
        rows: As the network reads them.
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
    return weight if gpt1_ids(tokenizer) and use != "predict" else 0.0


def language_sums(logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy, and share of right guesses, of the next tokens of a text, summed."""
    from plmctl.models.losses import next_token_sums

    ids, counts = batch.inputs["input_ids"].flatten(0, -2), batch.targets["lm"].flatten()
    return next_token_sums(logits, ids, batch.inputs["lm_cells"], counts)
