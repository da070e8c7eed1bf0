"""What T5's objectives share: each segment of text becomes an input and a target."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np
from pydantic import Field

from plmctl.arrays import Bools, Ints
from plmctl.config.base import ObjectiveConfig
from plmctl.corpus.store import cached_array
from plmctl.errors import ConfigError
from plmctl.examples.inspection import Example, ExampleToken, Kind, Tallies, tally
from plmctl.examples.keys import Keys, below, fold, permute, stream
from plmctl.examples.noise import Ragged, closed, real, runs
from plmctl.examples.packing import packed, packed_starts, segment_edges
from plmctl.objectives.base import Objective, ObjectiveExamples, SampleKind

if TYPE_CHECKING:
    from torch import Tensor

    from plmctl.corpus.store import TokenStore
    from plmctl.models.batch import Batch
    from plmctl.models.network import Network
    from plmctl.tokenization.load import Vocab


_TOGETHER = 1 << 18
"""Segments that are packed together."""


class TextToTextConfig(ObjectiveConfig):
    """The settings of all objectives of T5."""

    reads_sentences = False
    z_loss: float = Field(default=1e-4, ge=0)
    """Weight of the squared logarithm of the softmax's normalizer, added to the loss of every
    target token (T5: 1e-4); logged as a separate loss term. 0: no z-loss."""


T = TypeVar("T", bound=TextToTextConfig, covariant=True)


@dataclass(frozen=True)
class Pair:
    """Inputs and targets of a batch, without end tokens, and which tokens were noise."""

    inputs: Ragged
    targets: Ragged
    noise: Bools | None = None
    """[B, W] of the segments; None if no token is hidden."""


@dataclass(frozen=True)
class Specials:
    """Ids that the objectives insert, and those of the tokens after the special ones.

    Attributes:
        others: The first of them, and the number of all ids.
    """

    pad: int
    eos: int
    sentinels: Ints
    others: tuple[int, int]


class TextToText(Objective[T]):
    """Segments of text, each made into an input and a target by ``shape``."""

    LOSS_TERMS = ("lm", "z_loss")
    TOKENS: tuple[str, ...] = ("pad", "eos")
    ENCODER_DECODER = True
    SAMPLES: SampleKind | None = "fill-span"

    def sample(self, ids: Ints, starts: Bools, key: int, vocab: Vocab) -> tuple[Ints, Ints]:
        """A sentinel, if there is one, for two tokens or more of whole words, not the first."""
        at = np.flatnonzero(starts)
        after = at[at > 0]
        first = int(after[below(key, len(after))]) if len(after) else len(ids) // 2
        ends = at[at >= first + 2]
        past = int(ends[0]) if len(ends) else len(ids)
        remaining = np.concatenate([ids[:first], vocab.sentinels[:1], ids[past:]])
        return remaining.astype(np.int64), ids[first:past]

    @abstractmethod
    def shape(self, ids: Ints, lengths: Ints, keys: Keys, specials: Specials) -> Pair:
        """The inputs and targets of segments.

        Args:
            ids: [B, W], W >= 2, with anything after the end.
            lengths: [B].
            keys: [B] the random key of each.
        """

    @abstractmethod
    def expected(self, lengths: Ints, rows: int) -> dict[str, float]:
        """The expected values of the statistics that have one.

        Args:
            lengths: [N] of the segments.
        """


class Segments(ObjectiveExamples[TextToTextConfig]):
    """The segments of a store, one per row.

    The decoder reads the target shifted right by one, with the padding token first; the loss is
    over all tokens of the target, sentinels and the end token included.

    Args:
        size: Tokens per segment, at most.
        group: Documents that are concatenated before they are cut.
        sentinels: How many the objective requires.
    """

    objective: TextToText[TextToTextConfig]
    PACKS: ClassVar[bool] = False
    """Whether a row has several segments, none of which attends to another."""

    def __init__(
        self,
        objective: TextToText[TextToTextConfig],
        store: TokenStore,
        vocab: Vocab,
        seed: int,
        *,
        size: int,
        group: int = 1,
        sentinels: int = 0,
    ) -> None:
        super().__init__(objective, store)
        self.z_loss = self.config.z_loss
        self.specials = specials(vocab, self.config.name, sentinels)
        self.key = int(fold(seed, stream("noise")))
        bounds = cached_array(
            store,
            ("segments", size, group),
            np.int64,
            lambda: segment_edges(store.sentences, store.documents, size, 2, group),
        ).reshape(-1, 2)
        self.starts, self.ends = bounds[:, 0], bounds[:, 1]

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """The cross-entropy, and the z-loss if it has a weight."""
        terms = self.objective.LOSS_TERMS
        return terms if self.z_loss else terms[:1]

    def __len__(self) -> int:
        """Rows in an epoch."""
        return len(self.starts)

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The segments ``samples`` with the draws of their epochs.

        Args:
            epochs: [B].
            samples: [B], each below ``len(self)``.

        Returns:
            inputs: input_ids, attention_mask [B, L], decoder_input_ids [B, T], positions [K]; with
            several segments per row, attention_mask has their numbers from 1, and decoder_texts
            [B, T] those of the decoder; targets: lm [K], and z_loss, the same tensor. Tokens and
            positions are counted in both encoder and decoder.
        """
        import torch

        from plmctl.models.batch import Batch, TargetList

        epochs, segments, row = self.segments_of(epochs, samples)
        pair, _ = self._pair(epochs, segments)
        ids, real_inputs = closed(pair.inputs, self.specials.eos, self.specials.pad)
        labels, real_labels = closed(pair.targets, self.specials.eos, self.specials.pad)
        shifted = np.full_like(labels, self.specials.pad)
        shifted[:, 1:] = labels[:, :-1]
        ids, number = packed(ids, real_inputs, row, self.specials.pad)
        shifted, decoder_number = packed(shifted, real_labels, row, self.specials.pad)
        positions = np.flatnonzero(decoder_number)
        inputs = {
            "input_ids": ids,
            "attention_mask": number,
            "decoder_input_ids": shifted,
            "positions": positions,
        }
        if self.PACKS:
            inputs["decoder_texts"] = decoder_number
        targets = torch.from_numpy(labels[real_labels])
        return Batch(
            {name: torch.from_numpy(array) for name, array in inputs.items()},
            dict.fromkeys(self.loss_terms, targets),
            int(np.count_nonzero(number)) + len(positions),
            ids.size + shifted.size,
            lists=(TargetList(("positions",), self.loss_terms),),
        )

    def segments_of(self, epochs: Ints, samples: Ints) -> tuple[Ints, Ints, Ints]:
        """The segments of the rows ``samples``.

        Args:
            epochs: [B].
            samples: [B].

        Returns:
            epochs, segments, row: [E] of each segment; its row is below B.
        """
        return epochs, samples, np.arange(len(samples))

    @property
    def counted_terms(self) -> tuple[str, ...]:
        """The loss terms without z_loss."""
        return self.loss_terms[:1]

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Summed cross-entropy of the target tokens, in nats, and the summed z-loss."""
        sums: dict[str, Tensor] = network(loss_on=batch.targets, z_loss=self.z_loss, **batch.inputs)
        return sums

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The losses, and the number of correct predictions: nan for the z-loss."""
        import torch

        logits = network(**batch.inputs)["lm"]
        sums = self._losses(logits, batch)
        hits = logits.argmax(-1) == batch.targets["lm"]
        sums["lm/correct"] = hits.sum().to(torch.float32)
        return sums | {f"{term}/correct": torch.tensor(math.nan) for term in self.loss_terms[1:]}

    def tally(self, epochs: Ints, samples: Ints) -> Tallies:
        """Statistics of the rows ``samples``; lengths count the end tokens."""
        epochs, segments, row = self.segments_of(epochs, samples)
        pair, lengths = self._pair(epochs, segments)
        shown = {
            "mean_length": tally(np.bincount(row, pair.inputs.lengths + 1)),
            "mean_target_length": tally(np.bincount(row, pair.targets.lengths + 1)),
        }
        if self.PACKS:
            shown["mean_examples"] = tally(np.bincount(row))
        if pair.noise is None:
            return shown
        noise, spans = int(pair.noise.sum()), runs(pair.noise)
        return shown | {
            "noise_share": (float(noise), int(lengths.sum())),
            "mean_run": (float(noise), int(spans.sum())),
            "mean_runs": tally(spans),
        }

    def expected(self) -> dict[str, float]:
        """Those of the objective."""
        return self.objective.expected(self.ends - self.starts, len(self))

    def example(self, epoch: int, sample: int) -> Example:
        """The inputs of one row and their targets for reading."""
        epochs, segments, _ = self.segments_of(np.array([epoch]), np.array([sample]))
        pair, _ = self._pair(epochs, segments)
        inserted = {*self.specials.sentinels.tolist(), self.specials.eos}

        def row(side: Ragged, kind: Kind) -> tuple[ExampleToken, ...]:
            ids, real_ids = closed(side, self.specials.eos, self.specials.pad)
            return tuple(
                ExampleToken(id_, "special" if id_ in inserted else kind)
                for id_ in ids[real_ids].tolist()
            )

        return Example({"input": row(pair.inputs, "text"), "target": row(pair.targets, "target")})

    def _pair(self, epochs: Ints, samples: Ints) -> tuple[Pair, Ints]:
        starts = self.starts[samples]
        lengths = self.ends[samples] - starts
        width = max(int(lengths.max()), 2)
        at = starts[:, None] + np.where(real(lengths, width), np.arange(width), 0)
        ids = self.store.tokens(at).astype(np.int64)
        keys = fold(self.key, epochs, samples)
        return self.objective.shape(ids, lengths, keys, self.specials), lengths

    def _losses(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        from plmctl.models.losses import cross_entropy_and_z, cross_entropy_sums

        if not self.z_loss:
            return cross_entropy_sums({"lm": logits}, batch.targets)
        sums = cross_entropy_and_z(logits, batch.targets["lm"], self.z_loss)
        return dict(zip(self.loss_terms, sums, strict=True))


class PackedTextToText(TextToText[T]):
    """Segments of one document each, as many in a row as fit."""

    @property
    def keeps_texts_apart(self) -> bool:
        """See the base class."""
        return True

    @abstractmethod
    def sizes(self, lengths: Ints, keys: Keys) -> tuple[Ints, Ints]:
        """Tokens of the inputs and targets of ``shape``, without end tokens, [B] each."""

    def over(self, store: TokenStore, vocab: Vocab, seq_len: int, seed: int) -> PackedSegments:
        """The rows of a store; ``seq_len`` counts end tokens."""
        return PackedSegments(self, store, vocab, seq_len, seed)


class PackedSegments(Segments):
    """Segments of one document each, in random order, as many in a row as fit.

    An input and a target have at most ``seq_len`` tokens, end tokens included. Epochs differ by a
    few rows. Each has as many samples as epoch 0 has rows, so that resuming needs no history: a
    longer epoch is cut, and of a shorter one the first rows come twice.
    """

    objective: PackedTextToText[TextToTextConfig]
    PACKS = True

    def __init__(
        self,
        objective: PackedTextToText[TextToTextConfig],
        store: TokenStore,
        vocab: Vocab,
        seq_len: int,
        seed: int,
    ) -> None:
        super().__init__(objective, store, vocab, seed, size=seq_len - 1)
        self._order = int(fold(seed, stream("packing"), seq_len))

        @lru_cache(maxsize=3)  # a batch may need two epochs, and their length is that of epoch 0
        def row_starts(epoch: int) -> Ints:
            rule = ("packed rows", self.config.name, seq_len, self.key, self._order, epoch)
            return cached_array(store, rule, np.int64, lambda: self._row_starts(epoch, seq_len))

        self._rows = row_starts

    def __len__(self) -> int:
        """Rows in an epoch."""
        return len(self._rows(0)) - 1

    def segments_of(self, epochs: Ints, samples: Ints) -> tuple[Ints, Ints, Ints]:
        """See the base class."""
        bounds = np.empty((len(samples), 2), dtype=np.int64)
        for epoch in set(epochs.tolist()):
            chosen, starts = epochs == epoch, self._rows(epoch)
            number = samples[chosen] % (len(starts) - 1)
            bounds[chosen] = np.stack([starts[number], starts[number + 1]], axis=1)
        counts = bounds[:, 1] - bounds[:, 0]
        row = np.repeat(np.arange(len(samples)), counts)
        place = np.arange(counts.sum()) + np.repeat(bounds[:, 1] - np.cumsum(counts), counts)
        return epochs[row], self._in_order(place, epochs[row]), row

    def _in_order(self, place: Ints, epochs: Ints) -> Ints:
        """The segments at places [E] of the random orders of their epochs."""
        segments = np.empty_like(place)
        for epoch in set(epochs.tolist()):
            key, chosen = fold(self._order, epoch), epochs == epoch
            segments[chosen] = permute(place[chosen], len(self.starts), key)
        return segments

    def _row_starts(self, epoch: int, seq_len: int) -> Iterator[Ints]:
        count, together = len(self.starts), max(1, _TOGETHER // seq_len) * seq_len
        for first in range(0, count, together):
            place = np.arange(first, min(first + together, count))
            segments = self._in_order(place, np.full_like(place, epoch))
            lengths = self.ends[segments] - self.starts[segments]
            inputs, targets = self.objective.sizes(lengths, fold(self.key, epoch, segments))
            yield first + packed_starts(inputs + 1, targets + 1, seq_len)
        yield np.array([count])


def specials(vocab: Vocab, name: str, sentinels: int) -> Specials:
    """The special tokens' ids that an objective requires.

    Raises:
        ConfigError: The tokenizer lacks some of them.
    """
    if vocab.pad is None or vocab.eos is None or (sentinels and not vocab.sentinels):
        named = {
            "a padding token": vocab.pad is None,
            "an end token": vocab.eos is None,
            "sentinels (<extra_id_0>, <extra_id_1> ...)": sentinels > 0 and not vocab.sentinels,
        }
        missing = ", ".join(what for what, lacking in named.items() if lacking)
        raise ConfigError(
            f"the objective {name!r} needs a tokenizer with {missing}",
            "train one with `family: t5`",
        )
    if len(vocab.sentinels) < sentinels:
        raise ConfigError(
            f"the objective {name!r} needs {sentinels} sentinels for a sequence of this length, "
            f"and the tokenizer has {len(vocab.sentinels)}",
            "shorten train.phases[].seq_len, lower objective.density, or hide longer spans",
        )
    special = {vocab.pad, vocab.eos, vocab.unk, vocab.bos}
    first = next(n for n in range(vocab.size) if n not in special)
    sentinel_ids = np.array(vocab.sentinels, dtype=np.int64)
    return Specials(vocab.pad, vocab.eos, sentinel_ids, (first, vocab.size))
