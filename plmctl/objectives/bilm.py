"""The bidirectional language model of ELMo (Peters et al., 2018, arXiv:1802.05365).

Sentences follow each other in random order, each between <S> and </S>; a forward stream reads them
as they are, a backward one reads another order of them, each from its end. Every row of a step is
such a stream, cut into windows; the LSTM's state continues from window to window and gradients stop
at the cut. Loss = mean of the two directions' mean cross-entropies.

Inputs are characters, targets are words. A word without an id is read as "<UNK>".
``target_words`` below the tokenizer's size makes rare words unknown as targets only, as published.

Source: allenai/bilm-tf, data.py and training.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from plmctl.arrays import Ints
from plmctl.config.base import ObjectiveConfig
from plmctl.config.units import Count
from plmctl.corpus.store import cached_array
from plmctl.errors import ConfigError
from plmctl.examples.inspection import Example, Piece
from plmctl.examples.keys import fold, permuted, stream, uniform
from plmctl.objectives.base import Objective, ObjectiveExamples

if TYPE_CHECKING:
    from torch import Tensor

    from plmctl.corpus.store import TokenStore
    from plmctl.models.batch import Batch
    from plmctl.models.network import Network
    from plmctl.tokenization.load import Vocab


_TOGETHER = 1 << 18  # sentences at once


class Config(ObjectiveConfig):
    """Predict the next and the previous word from characters, with recurrent state."""

    name: Literal["bilm"] = "bilm"
    softmax: Literal["full", "sampled"] = "full"
    """sampled: train on the true word and `samples` others (published); validation and evaluation
    always use the full softmax."""
    samples: Count = Field(default=8192, ge=1)
    """sampled only: other words per step and direction, frequent ones more often. If there are
    no more words than this, the softmax is full."""
    target_words: Count | None = Field(default=None, ge=4)
    """Predict only this many of the tokenizer's most frequent words, the rest as unknown; their
    characters are read too. Empty: all."""
    shuffle: bool = True
    """A new order of the sentences for every epoch and direction; false: the order of the text."""


@dataclass(frozen=True)
class Order:
    """Sentences in the order of a stream.

    Attributes:
        sentences: [S] sentence numbers.
        starts: [S+1] stream position where each starts; a sentence of n words has n + 1.
    """

    sentences: NDArray[np.integer]
    starts: Ints


class Marks(NamedTuple):
    """Ids of <S>, </S> and <UNK>."""

    begin: int
    end: int
    unknown: int


class BidirectionalLM(Objective[Config], config=Config):
    """Predict the next and the previous word."""

    LOSS_TERMS = ("forward", "backward")

    def over(self, store: TokenStore, vocab: Vocab, seq_len: int, seed: int) -> Streams:
        """The streams of a store in windows of ``seq_len`` words (published: 20).

        Raises:
            ConfigError: The tokenizer lacks words or sentence marks, or has fewer words than
                ``target_words``.
        """
        if vocab.words is None or vocab.bos is None or vocab.eos is None or vocab.unk is None:
            raise ConfigError(
                "the objective 'bilm' requires a tokenizer of words with <S>, </S> and <UNK>",
                "train one with `algorithm: word` and `family: elmo`",
            )
        wanted = self.config.target_words
        if wanted is not None and wanted > vocab.size:
            raise ConfigError(
                f"objective.target_words: {wanted:,}, but the tokenizer has {vocab.size:,} words",
                "lower it, or train a larger tokenizer",
            )
        marks = Marks(vocab.bos, vocab.eos, vocab.unk)
        return Streams(self, store, vocab.words, marks, seq_len, seed)

    def num_outputs(self, vocab_size: int) -> int:
        """``target_words``, if there are fewer of them than words."""
        return self.config.target_words or vocab_size

    def targets_per_token(self) -> float:
        """The next word in each direction."""
        return 2.0

    def outputs_per_target(self, outputs: int) -> int:
        """The true word and those of a sampled softmax."""
        sampled = self.config.softmax == "sampled"
        return min(outputs, 1 + self.config.samples) if sampled else outputs


class Streams(ObjectiveExamples[Config]):
    """The streams of one store, cut into windows.

    Attributes:
        marks: Ids of <S>, </S> and <UNK>.
        outputs: How many words are predicted.
        order: The order of an epoch (argument 1) and direction (argument 2).
        characters: [V, 50] of every word.
        key: The random key of the sampled softmax.
    """

    streamed = True

    def __init__(
        self,
        objective: BidirectionalLM,
        store: TokenStore,
        words: tuple[str, ...],
        marks: Marks,
        seq_len: int,
        seed: int,
    ) -> None:
        super().__init__(objective, store)
        self.marks, self.seq_len, shuffle = marks, seq_len, self.config.shuffle
        self.outputs = objective.num_outputs(len(words))
        self.characters = _characters(words, marks.begin, marks.end)
        self.key = int(fold(seed, stream("candidates"), seq_len))
        order_key = int(fold(seed, stream("sentences")))

        @lru_cache(maxsize=4)  # two directions, and two epochs if a batch has both
        def order(epoch: int, direction: int) -> Order:
            key = int(fold(order_key, epoch, direction)) if shuffle else None
            return _order(store, key)

        self.order = order

    @property
    def weights(self) -> dict[str, float]:
        """The loss is the mean of both directions."""
        return dict.fromkeys(self.loss_terms, 0.5)

    def __len__(self) -> int:
        """Windows in an epoch."""
        return (self.store.num_tokens + self.store.num_sentences) // self.seq_len

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The windows ``samples`` of both streams.

        Args:
            epochs: [B].
            samples: [B], each below ``len(self)``.

        Returns:
            inputs: characters [U, 50] of the distinct words, words [2, B, T], rows of it;
            targets: forward and backward, [B, T].
        """
        import torch

        from plmctl.models.batch import Batch

        pairs = [self._window(epochs, samples, direction) for direction in (0, 1)]
        distinct, words = np.unique(np.stack([ids for ids, _ in pairs]), return_inverse=True)
        size = len(samples) * self.seq_len
        return Batch(
            {
                "characters": torch.from_numpy(self.characters[distinct]),
                "words": torch.from_numpy(words.reshape(2, len(samples), self.seq_len)),
            },
            {
                term: torch.from_numpy(t)
                for term, (_, t) in zip(self.loss_terms, pairs, strict=True)
            },
            size,
            size,
            lists=(),
        )

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Summed cross-entropy of the next words of each stream, in nats."""
        import torch

        from plmctl.models.losses import are_many, cross_entropy_sums

        if self.config.softmax == "full" or self.config.samples >= self.outputs:
            if are_many(batch.targets["forward"].numel(), self.outputs):
                sums: dict[str, Tensor] = network(
                    rows=batch.rows, loss_on=batch.targets, **batch.inputs
                )
                return sums
            return cross_entropy_sums(network(rows=batch.rows, **batch.inputs), batch.targets)
        window = batch.rows.window if batch.rows else 0
        drawn = [
            log_uniform(fold(self.key, window, d), self.outputs, self.config.samples)
            for d in (0, 1)
        ]
        targets = torch.stack([batch.targets[term] for term in self.loss_terms])
        logits = network(
            rows=batch.rows,
            **batch.inputs,
            targets=targets,
            # A plain copy would make the host wait for all that the device still has to do.
            candidates=torch.from_numpy(np.stack([ids for ids, _ in drawn])).to(
                targets.device, non_blocking=True
            ),
            tries=torch.tensor([tries for _, tries in drawn]).to(targets.device, non_blocking=True),
        )
        first = {name: torch.zeros_like(target) for name, target in batch.targets.items()}
        return cross_entropy_sums(logits, first)

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The loss of the full softmax, and the number of correct predictions."""
        from plmctl.models.losses import score_sums

        return score_sums(network(rows=batch.rows, **batch.inputs), batch.targets)

    def example(self, epoch: int, sample: int) -> Example:
        """The words that each direction reads."""
        epochs, samples = np.array([epoch]), np.array([sample])
        marks = set(self.marks)
        rows = {}
        for direction, term in enumerate(self.loss_terms):
            (ids, *_), _ = self._window(epochs, samples, direction)
            rows[term] = tuple(Piece(i, "special" if i in marks else "text") for i in ids.tolist())
        return Example(rows)

    def _window(self, epochs: Ints, samples: Ints, direction: int) -> tuple[Ints, Ints]:
        """Inputs and targets [B, T] of one direction."""
        positions = samples[:, None] * self.seq_len + np.arange(self.seq_len)
        inputs, targets = np.empty_like(positions), np.empty_like(positions)
        for epoch in np.unique(epochs):
            rows = epochs == epoch
            inputs[rows], targets[rows] = self._read(
                self.order(int(epoch), direction), positions[rows], backward=bool(direction)
            )
        targets[targets >= self.outputs] = self.marks.unknown
        return inputs, targets

    def _read(self, order: Order, positions: Ints, *, backward: bool) -> tuple[Ints, Ints]:
        """The word at each stream position and the one after it, within its sentence."""
        at = np.searchsorted(order.starts, positions, side="right") - 1
        sentence, offset = order.sentences[at].astype(np.int64), positions - order.starts[at]
        first, end = self.store.sentences[sentence], self.store.sentences[sentence + 1]
        # Both of these and one place more: the mark before the sentence, or the one after it.
        before, after = (end - offset, end - 1 - offset) if backward else (
            first + offset - 1, first + offset
        )  # fmt: skip
        begin, close = self.marks.begin, self.marks.end
        if backward:
            begin, close = close, begin
        inside = offset > 0
        inputs = np.where(inside, self.store.tokens(np.where(inside, before, first)), begin)
        inside = offset < end - first
        targets = np.where(inside, self.store.tokens(np.where(inside, after, first)), close)
        return inputs.astype(np.int64), targets.astype(np.int64)


def _order(store: TokenStore, key: int | None) -> Order:
    """All sentences in the order of a key; None: as they are."""
    count = store.num_sentences
    dtype = "<u4" if count < 1 << 32 else "<i8"
    sentences = cached_array(store, ("sentences", key), dtype, lambda: permuted(count, key))
    starts = cached_array(
        store, ("starts", key), np.int64, lambda: _starts(store.sentences, sentences)
    )
    return Order(sentences, starts)


def _starts(sentences: Ints, order: NDArray[np.integer]) -> Iterator[Ints]:
    """Where each sentence starts in the stream, in parts [S + 1]."""
    end = np.zeros(1, dtype=np.int64)
    yield end
    for first in range(0, len(order), _TOGETHER):
        chosen = order[first : first + _TOGETHER].astype(np.int64)
        starts = end + np.cumsum(sentences[chosen + 1] - sentences[chosen] + 1)
        yield starts
        end = starts[-1:]


@lru_cache(maxsize=1)  # training and every validation have the same words
def _characters(words: tuple[str, ...], bos: int, eos: int) -> NDArray[np.int16]:
    from plmctl.models.elmo import BEGIN_SENTENCE, END_SENTENCE, boundary, encode_words

    table = encode_words(words)
    table[bos], table[eos] = boundary(BEGIN_SENTENCE), boundary(END_SENTENCE)
    return table


# --- Candidates of the sampled softmax, drawn by a key ---


def log_uniform(key: ArrayLike, size: int, count: int) -> tuple[Ints, int]:
    """Distinct ids, id k with probability log((k + 2) / (k + 1)) / log(size + 1) per draw.

    That is nearly Zipf's law for ids that are sorted by frequency. Source: TensorFlow's
    ``log_uniform_candidate_sampler`` with ``unique=True``, which also draws until it has enough.

    Args:
        key: The key of these draws.
        size: Ids are below this.
        count: How many, fewer than ``size``.

    Returns:
        The ids [count] as they came, and the number of draws.
    """
    draws = 2 * count
    while True:
        chance = uniform(fold(key, np.arange(draws)))
        ids = np.expm1(chance * np.log(size + 1)).astype(np.int64)
        ids = np.minimum(ids, size - 1)  # rounding at the upper end
        _, first = np.unique(ids, return_index=True)
        if len(first) >= count:
            first = np.sort(first)[:count]
            return ids[first], int(first[-1]) + 1
        draws *= 2
