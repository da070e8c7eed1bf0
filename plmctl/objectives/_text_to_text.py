"""What T5's objectives share: each segment of text becomes an input and a target."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from plmctl.arrays import Bools, Ints
from plmctl.config.base import ObjectiveConfig
from plmctl.corpus.store import cached_array
from plmctl.errors import ConfigError
from plmctl.examples.inspection import Example, Kind, Piece, Tallies, tally
from plmctl.examples.keys import Keys, fold, stream
from plmctl.examples.noise import Ragged, closed, real, runs
from plmctl.examples.packing import segment_edges
from plmctl.objectives.base import Objective

if TYPE_CHECKING:
    from torch import Tensor

    from plmctl.corpus.store import TokenStore
    from plmctl.models.batch import Batch
    from plmctl.models.network import Network
    from plmctl.tokenization.load import Vocab


class TextToTextConfig(ObjectiveConfig):
    """The settings of all objectives of T5."""

    reads_sentences = False
    z_loss: float = Field(default=1e-4, ge=0)
    """Weight of the squared logarithm of the softmax's normalizer, added to the loss of every
    target token (T5: 1e-4); logged as a separate loss term. 0: no z-loss."""


@dataclass(frozen=True)
class Pair:
    """Inputs and targets of a batch, without end tokens, and which tokens were noise."""

    inputs: Ragged
    targets: Ragged
    noise: Bools | None = None
    """[B, W] of the segments; None if no token is hidden."""


@dataclass(frozen=True)
class Specials:
    """Ids that the objectives insert."""

    pad: int
    eos: int
    sentinels: Ints


class TextToText(Objective):
    """Segments of one store, each made into an input and a target by ``shape``.

    The decoder reads the target shifted right by one, with the padding token first; the loss is
    over all tokens of the target, sentinels and the end token included.

    Args:
        config: The config of the objective.
        store: The tokens.
        vocab: Ids of the special tokens.
        seed: The run's.
        size: Tokens per segment, at most.
        group: Documents that are concatenated before they are cut.
        sentinels: How many the objective requires.
    """

    LOSS_TERMS = ("lm", "z_loss")
    TOKENS: ClassVar[tuple[str, ...]] = ("pad", "eos")
    ENCODER_DECODER = True

    def __init__(
        self,
        config: TextToTextConfig,
        store: TokenStore,
        vocab: Vocab,
        seed: int,
        *,
        size: int,
        group: int = 1,
        sentinels: int = 0,
    ) -> None:
        self.store, self.z_loss = store, config.z_loss
        self.specials = specials(vocab, config.name, sentinels)
        self.key = int(fold(seed, stream("noise")))
        bounds = cached_array(
            store,
            ("segments", size, group),
            np.int64,
            lambda: segment_edges(store.sentences, store.documents, size, 2, group),
        ).reshape(-1, 2)
        self.starts, self.ends = bounds[:, 0], bounds[:, 1]

    @abstractmethod
    def shape(self, ids: Ints, lengths: Ints, keys: Keys) -> Pair:
        """The inputs and targets of segments.

        Args:
            ids: [B, W], W >= 2, with anything after the end.
            lengths: [B].
            keys: [B] the random key of each.
        """

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """The cross-entropy, and the z-loss if it has a weight."""
        return self.LOSS_TERMS if self.z_loss else self.LOSS_TERMS[:1]

    def __len__(self) -> int:
        """Segments in an epoch."""
        return len(self.starts)

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The segments ``samples`` with the draws of their epochs.

        Args:
            epochs: [B].
            samples: [B], each below ``len(self)``.

        Returns:
            inputs: input_ids, attention_mask [B, L], decoder_input_ids [B, T], positions [K];
            targets: lm [K], and z_loss, the same tensor. Tokens and positions are counted in both
            encoder and decoder.
        """
        import torch

        from plmctl.models.batch import Batch

        pair, _ = self._pair(epochs, samples)
        ids, real_inputs = closed(pair.inputs, self.specials.eos, self.specials.pad)
        labels, real_labels = closed(pair.targets, self.specials.eos, self.specials.pad)
        shifted = np.full_like(labels, self.specials.pad)
        shifted[:, 1:] = labels[:, :-1]
        positions = np.flatnonzero(real_labels)
        inputs = {
            "input_ids": ids,
            "attention_mask": real_inputs.astype(np.int64),
            "decoder_input_ids": shifted,
            "positions": positions,
        }
        targets = torch.from_numpy(labels.reshape(-1)[positions])
        return Batch(
            {name: torch.from_numpy(array) for name, array in inputs.items()},
            dict.fromkeys(self.loss_terms, targets),
            int(real_inputs.sum()) + len(positions),
            real_inputs.size + real_labels.size,
        )

    @property
    def counted_terms(self) -> tuple[str, ...]:
        """Without z_loss."""
        return self.LOSS_TERMS[:1]

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
        """Statistics of the segments ``samples``; lengths count the end token."""
        pair, lengths = self._pair(epochs, samples)
        shown = {
            "mean_length": tally(pair.inputs.lengths + 1),
            "mean_target_length": tally(pair.targets.lengths + 1),
        }
        if pair.noise is None:
            return shown
        noise, spans = int(pair.noise.sum()), runs(pair.noise)
        return shown | {
            "noise_share": (float(noise), int(lengths.sum())),
            "mean_run": (float(noise), int(spans.sum())),
            "mean_runs": tally(spans),
        }

    def example(self, epoch: int, sample: int) -> Example:
        """One input and its target for reading."""
        pair, _ = self._pair(np.array([epoch]), np.array([sample]))
        inserted = {*self.specials.sentinels.tolist(), self.specials.eos}

        def row(side: Ragged, kind: Kind) -> tuple[Piece, ...]:
            ids, _ = closed(side, self.specials.eos, self.specials.pad)
            return tuple(
                Piece(id_, "special" if id_ in inserted else kind) for id_ in ids[0].tolist()
            )

        return Example({"input": row(pair.inputs, "text"), "target": row(pair.targets, "target")})

    def _pair(self, epochs: Ints, samples: Ints) -> tuple[Pair, Ints]:
        starts = self.starts[samples]
        lengths = self.ends[samples] - starts
        width = max(int(lengths.max()), 2)
        at = starts[:, None] + np.where(real(lengths, width), np.arange(width), 0)
        ids = self.store.tokens(at).astype(np.int64)
        return self.shape(ids, lengths, fold(self.key, epochs, samples)), lengths

    def _losses(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        from plmctl.models.losses import cross_entropy_and_z, cross_entropy_sums

        if not self.z_loss:
            return cross_entropy_sums({"lm": logits}, batch.targets)
        sums = cross_entropy_and_z(logits, batch.targets["lm"], self.z_loss)
        return dict(zip(self.LOSS_TERMS, sums, strict=True))


def specials(vocab: Vocab, name: str, sentinels: int) -> Specials:
    """The special tokens' ids that an objective requires.

    Args:
        vocab: The tokenizer's ids.
        name: The objective's, for messages.
        sentinels: How many it requires.

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
    return Specials(vocab.pad, vocab.eos, np.array(vocab.sentinels, dtype=np.int64))
