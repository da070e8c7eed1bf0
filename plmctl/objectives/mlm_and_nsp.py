"""Masked tokens and next-sentence prediction: BERT's pretraining (Devlin et al., 2019).

Loss = mean cross-entropy of the masked tokens + mean cross-entropy of the pair's label, where label
1 says that the second segment is from another document. Source: google-research/bert,
create_pretraining_data.py and run_pretraining.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from plmctl.config.masking import MaskingConfig
from plmctl.errors import DataError
from plmctl.objectives._masked import Masker, masker
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

        passes = np.array([self.masker.config.pass_of(int(epoch)) for epoch in epochs])
        columns = np.empty((5, len(samples)), dtype=np.int64)
        for pass_ in np.unique(passes):
            rows = np.flatnonzero(passes == pass_)
            pairs = self.pairs(int(pass_))
            at = samples[rows] % len(pairs)
            columns[:, rows] = (
                pairs.a_start[at],
                pairs.a_end[at],
                pairs.b_start[at],
                pairs.b_end[at],
                pairs.label[at],
            )
        a_start, a_end, b_start, b_end, label = columns
        batch = self.masker.batch(layout([a_start, b_start], [a_end, b_end]), passes, samples)
        batch.targets["nsp"] = torch.from_numpy(label)
        return batch

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Summed cross-entropy of the masked tokens and of the pairs' labels, in nats."""
        from plmctl.modeling.losses import cross_entropy_sums

        return cross_entropy_sums(network(**batch.inputs), batch.targets)

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The losses, and the number of right first guesses of each."""
        from plmctl.modeling.losses import score_sums

        return score_sums(network(**batch.inputs), batch.targets)


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
