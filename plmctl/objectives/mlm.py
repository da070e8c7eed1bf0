"""Masked language modeling on single segments (BERT's masks; RoBERTa trains without NSP).

Rows are runs of whole sentences of one document, ``[CLS] X [SEP]`` (RoBERTa's DOC-SENTENCES).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from plmctl.config.masking import MaskingConfig
from plmctl.objectives import _inspection
from plmctl.objectives._masked import Masker, masker
from plmctl.shaping.examples import Example, Tallies
from plmctl.shaping.packing import document_blocks
from plmctl.shaping.rows import layout

if TYPE_CHECKING:
    from torch import Tensor

    from plmctl.corpus.store import TokenStore
    from plmctl.modeling.batch import Batch
    from plmctl.modeling.network import Network
    from plmctl.tokenization.vocab import Vocab

Ints = NDArray[np.int64]

PARTS = ("mlm",)


class Config(MaskingConfig):
    """Predict masked tokens in runs of sentences of one document."""

    name: Literal["mlm"] = "mlm"


@dataclass(frozen=True)
class MaskedLm:
    """The rows of one store at one sequence length."""

    masker: Masker
    starts: Ints
    ends: Ints
    parts: tuple[str, ...] = PARTS

    def __len__(self) -> int:
        """Rows in an epoch."""
        return len(self.starts)

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The rows ``samples`` with the masks of their epochs; see ``Masker.batch``."""
        passes = np.array([self.masker.config.pass_of(int(epoch)) for epoch in epochs])
        rows = layout([self.starts[samples]], [self.ends[samples]])
        return self.masker.batch(rows, passes, samples)

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Summed cross-entropy of the masked tokens, in nats."""
        from plmctl.modeling.losses import cross_entropy_sums

        return cross_entropy_sums(network(**batch.inputs), batch.targets)

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The loss, and the number of right first guesses."""
        from plmctl.modeling.losses import score_sums

        return score_sums(network(**batch.inputs), batch.targets)

    def tally(self, epochs: Ints, samples: Ints) -> Tallies:
        """Statistics of the rows ``samples``."""
        return _inspection.tally(self.masker, self.collate(epochs, samples))

    def expected(self) -> dict[str, float]:
        """What some of the statistics should come to."""
        return _inspection.expected(self.masker)

    def example(self, epoch: int, sample: int) -> Example:
        """One row for reading."""
        batch = self.collate(np.array([epoch]), np.array([sample]))
        return _inspection.example(self.masker, batch)


def make(config: Config, store: TokenStore, vocab: Vocab, seq_len: int, seed: int) -> MaskedLm:
    """The objective over a store; ``seq_len`` counts [CLS] and [SEP]."""
    starts, ends = document_blocks(store.sentences, store.documents, seq_len - 2)
    return MaskedLm(masker(config, store, vocab, seed, seq_len), starts, ends)
