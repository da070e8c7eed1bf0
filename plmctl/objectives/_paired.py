"""Masked sentence pairs with a label: what the objectives on pairs share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from plmctl.arrays import Ints
from plmctl.corpus.kept import kept
from plmctl.errors import DataError
from plmctl.objectives import _inspection
from plmctl.objectives._masked import Masker
from plmctl.shaping.examples import Example, Tallies, merge, pair_tallies
from plmctl.shaping.keys import Keys, fold, stream
from plmctl.shaping.pairing import Pairs, Records, record_type
from plmctl.shaping.rows import layout

if TYPE_CHECKING:
    from torch import Tensor

    from plmctl.corpus.store import TokenStore
    from plmctl.modeling.batch import Batch
    from plmctl.modeling.network import Network


@dataclass(frozen=True)
class Label:
    """What the label of a pair is called, and what is said of a pair.

    Attributes:
        name: Of label 1 in statistics.
        meanings: Of label 0, of label 1, and of label 1 where the chunk had one sentence.
    """

    name: str
    meanings: tuple[str, str, str]


NEXT_SENTENCE = Label(
    "random_next", ("B follows A", "B is from another document", "B is from another document")
)
"""BERT's."""


@dataclass(frozen=True)
class MaskedPairs:
    """The pairs of one store at one sequence length."""

    masker: Masker
    pairs: Callable[[int], Records]
    """The pairs of a pass over the corpus."""
    parts: tuple[str, ...]
    """The part of the masked tokens, and that of the pairs' labels if they are asked for."""
    label: Label

    def __len__(self) -> int:
        """Pairs in an epoch.

        Passes differ by a few pairs, since their lengths are drawn. Every epoch has as many samples
        as pass 0 has pairs, so that the epoch of a step is plain division and seeking needs no
        history; the odd pairs of a longer pass are left out, those of a shorter one come twice.
        """
        return len(self.pairs(0))

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The pairs ``samples`` of their epochs, masked.

        Args:
            epochs: [B].
            samples: [B], each below ``len(self)``.

        Returns:
            As ``Masker.batch``, and the labels [B] as the target of the second part, if any.
        """
        import torch

        passes, pairs = self._chosen(epochs, samples)
        rows = layout([pairs.a_start, pairs.b_start], [pairs.a_end, pairs.b_end])
        batch = self.masker.batch(rows, passes, samples)
        for part in self.parts[1:]:
            batch.targets[part] = torch.from_numpy(pairs.label)
        return batch

    def _chosen(self, epochs: Ints, samples: Ints) -> tuple[Ints, Pairs]:
        """[B] the pass of each sample, and its pair."""
        passes = np.array([self.masker.config.pass_of(int(epoch)) for epoch in epochs])
        chosen = np.empty(len(samples), self.pairs(int(passes[0])).dtype)
        for pass_ in np.unique(passes):
            rows, pairs = passes == pass_, self.pairs(int(pass_))
            chosen[rows] = pairs[samples[rows] % len(pairs)]
        return passes, Pairs.of(chosen)

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Summed cross-entropy of the masked tokens and of the pairs' labels, in nats."""
        sums: dict[str, Tensor] = network(loss_on=batch.targets, **batch.inputs)
        return sums

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The losses, and the number of right first guesses of each."""
        from plmctl.modeling.losses import score_sums

        return score_sums(network(**batch.inputs), batch.targets)

    def tally(self, epochs: Ints, samples: Ints) -> Tallies:
        """Statistics of the pairs ``samples``."""
        batch, pairs = self.collate(epochs, samples), self._chosen(epochs, samples)[1]
        segments = batch.inputs["token_type_ids"].numpy()
        lengths = _inspection.lengths(batch)
        named = pair_tallies(lengths, segments, pairs.label, pairs.forced, self.label.name)
        return merge([_inspection.tally(self.masker, batch), named])

    def expected(self) -> dict[str, float]:
        """What some of the statistics should come to."""
        return {**_inspection.expected(self.masker), f"{self.label.name}_share_multi": 0.5}

    def example(self, epoch: int, sample: int) -> Example:
        """One pair for reading."""
        batch = self.collate(np.array([epoch]), np.array([sample]))
        which = self._chosen(np.array([epoch]), np.array([sample]))[1]
        kind = 2 if which.forced[0] else int(which.label[0])
        note = f"label {which.label[0]}: {self.label.meanings[kind]}"
        return _inspection.example(self.masker, batch, note)


def kept_pairs(
    store: TokenStore,
    seq_len: int,
    rule: tuple[object, ...],
    seed: int,
    make: Callable[[Keys], Iterator[Records]],
) -> Callable[[int], Records]:
    """The pairs of a pass, each found once.

    Args:
        store: The corpus.
        seq_len: Tokens a row.
        rule: The name of the way of pairing, and the options that it depends on.
        seed: Of the run.
        make: Finds the pairs of a pass, given its key.
    """
    key = int(fold(seed, stream("pairs"), seq_len))
    dtype = record_type(store.num_tokens, seq_len)

    @lru_cache(
        maxsize=3
    )  # a batch that straddles two epochs needs both, and every epoch's length 0
    def pairs(pass_: int) -> Records:
        wanted = ("pairs", *rule, seq_len, key, pass_)
        return kept(store, wanted, dtype, lambda: make(fold(key, pass_)))

    return pairs


def check_documents(name: str, store: TokenStore, hint: str) -> None:
    """Refuse a corpus in which no sentence of another document can be drawn.

    Raises:
        DataError: Fewer than two documents.
    """
    if store.num_documents < 2:
        raise DataError(
            f"the objective {name!r} needs two documents or more, and there is one",
            f"put a blank line between documents, or {hint}",
        )
