"""Masked tokens and next-sentence prediction: BERT's pretraining (Devlin et al., 2019).

Loss = mean cross-entropy of the masked tokens + mean cross-entropy of the pair's label, where label
1 says that the second segment is from another document. Source: google-research/bert,
create_pretraining_data.py and run_pretraining.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from plmctl.config.masking import MaskingConfig
from plmctl.errors import DataError
from plmctl.objectives import _inspection
from plmctl.objectives._masked import Masker, masker
from plmctl.shaping.examples import Example, Tallies, merge, pair_tallies
from plmctl.shaping.keys import fold, stream
from plmctl.shaping.pairing import Pairs, next_sentence_pairs
from plmctl.shaping.rows import layout

if TYPE_CHECKING:
    from torch import Tensor

    from plmctl.corpus.store import TokenStore
    from plmctl.modeling.batch import Batch
    from plmctl.modeling.network import Network
    from plmctl.tokenization.vocab import Vocab

Ints = NDArray[np.int64]

PARTS = ("mlm", "nsp")


class Config(MaskingConfig):
    """Predict masked tokens, and whether the second segment follows the first."""

    name: Literal["mlm+nsp"] = "mlm+nsp"
    short_seq_prob: float = Field(default=0.1, ge=0, le=1)
    """Share of documents whose pairs are cut to a random shorter length."""


@dataclass(frozen=True)
class MaskedLmWithNsp:
    """The pairs of one store at one sequence length."""

    masker: Masker
    pairs: Callable[[int], Pairs]
    """The pairs of a pass over the corpus."""
    parts: tuple[str, ...] = PARTS

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
            As ``Masker.batch``, and the target nsp [B].
        """
        import torch

        passes, pairs = self._chosen(epochs, samples)
        rows = layout([pairs.a_start, pairs.b_start], [pairs.a_end, pairs.b_end])
        batch = self.masker.batch(rows, passes, samples)
        batch.targets["nsp"] = torch.from_numpy(pairs.label)
        return batch

    def _chosen(self, epochs: Ints, samples: Ints) -> tuple[Ints, Pairs]:
        """[B] the pass of each sample, and its pair."""
        passes = np.array([self.masker.config.pass_of(int(epoch)) for epoch in epochs])
        columns: dict[str, NDArray[Any]] = {}
        for pass_ in np.unique(passes):
            rows = np.flatnonzero(passes == pass_)
            pairs = self.pairs(int(pass_))
            for name, column in vars(pairs).items():
                chosen = columns.setdefault(name, np.empty(len(samples), dtype=column.dtype))
                chosen[rows] = column[samples[rows] % len(pairs)]
        return passes, Pairs(**columns)

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Summed cross-entropy of the masked tokens and of the pairs' labels, in nats."""
        from plmctl.modeling.losses import cross_entropy_sums

        return cross_entropy_sums(network(**batch.inputs), batch.targets)

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The losses, and the number of right first guesses of each."""
        from plmctl.modeling.losses import score_sums

        return score_sums(network(**batch.inputs), batch.targets)

    def tally(self, epochs: Ints, samples: Ints) -> Tallies:
        """Statistics of the pairs ``samples``."""
        batch, pairs = self.collate(epochs, samples), self._chosen(epochs, samples)[1]
        segments = batch.inputs["token_type_ids"].numpy()
        lengths = _inspection.lengths(batch)
        named = pair_tallies(lengths, segments, pairs.label, pairs.forced, "random_next")
        return merge([_inspection.tally(self.masker, batch), named])

    def expected(self) -> dict[str, float]:
        """What some of the statistics should come to."""
        return {**_inspection.expected(self.masker), "random_next_share_multi": 0.5}

    def example(self, epoch: int, sample: int) -> Example:
        """One pair for reading."""
        batch = self.collate(np.array([epoch]), np.array([sample]))
        random = bool(batch.targets["nsp"].item())
        note = "label 1: B is from another document" if random else "label 0: B follows A"
        return _inspection.example(self.masker, batch, note)


def make(
    config: Config, store: TokenStore, vocab: Vocab, seq_len: int, seed: int
) -> MaskedLmWithNsp:
    """The objective over a store; ``seq_len`` counts [CLS] and both [SEP].

    Raises:
        DataError: Fewer than two documents, so that no random next segment can be drawn.
    """
    if store.num_documents < 2:
        raise DataError(
            f"the objective {config.name!r} needs two documents or more, and there is one",
            "put a blank line between documents, or use the objective 'mlm'",
        )
    key = int(fold(seed, stream("pairs"), seq_len))

    @lru_cache(maxsize=2)  # a batch that straddles two epochs needs both
    def pairs(pass_: int) -> Pairs:
        return next_sentence_pairs(
            store.sentences,
            store.documents,
            seq_len,
            fold(key, pass_),
            short_seq_prob=config.short_seq_prob,
        )

    return MaskedLmWithNsp(masker(config, store, vocab, seed), pairs)
