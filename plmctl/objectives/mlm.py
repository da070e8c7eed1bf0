"""Masked language modeling alone (Liu et al., 2019, arXiv:1907.11692: RoBERTa), four ways of rows.

Source of the ways with separators: facebookresearch/fairseq, ``TokenBlockDataset`` with the break
modes ``complete`` and ``complete_doc``. There a line longer than a row is a row of its own, which
is too long for the network; here it is cut, so that no text is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from plmctl.arrays import Ints
from plmctl.config.sections import MaskingConfig
from plmctl.corpus.store import cached_array
from plmctl.examples.inspection import Example, Tallies
from plmctl.examples.keys import Keys
from plmctl.examples.packing import LineStream, layout, line_edges
from plmctl.examples.pairing import Records, next_sentence_pairs
from plmctl.models.base import Examples
from plmctl.objectives._masked import (
    NEXT_SENTENCE,
    ROW_TOKENS,
    MaskedPairs,
    Masker,
    cached_pairs,
    check_documents,
    document_rows,
    expected_masking,
    masked_batch_tallies,
    masked_example,
    masker,
)

if TYPE_CHECKING:
    from torch import Tensor

    from plmctl.corpus.store import TokenStore
    from plmctl.models.batch import Batch
    from plmctl.models.network import Network
    from plmctl.tokenization.load import Vocab


LOSS_TERMS = ("mlm",)
TOKENS = ROW_TOKENS


class Config(MaskingConfig):
    """Predict masked tokens."""

    name: Literal["mlm"] = "mlm"
    packing: Literal["documents", "full_sentences", "doc_sentences", "segment_pair"] = "documents"
    """What a row is. documents: [CLS] X [SEP], X whole sentences of one document. full_sentences:
    RoBERTa's, as its code has them: [CLS], then whole sentences with a [SEP] after each, running on
    into the next document after one more [SEP]. doc_sentences: the same, ending with the document.
    segment_pair: BERT's [CLS] A [SEP] B [SEP], half of the B from another document, unlabelled."""


@dataclass(frozen=True)
class MaskedLm(Examples):
    """The rows of one store at one sequence length."""

    masker: Masker
    starts: Ints
    ends: Ints
    stream: LineStream | None = None
    """What starts and ends are places of; None: of the store."""
    loss_terms: tuple[str, ...] = LOSS_TERMS

    def __len__(self) -> int:
        """Rows in an epoch."""
        return len(self.starts)

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The rows ``samples`` with the masks of their epochs; see ``Masker.batch``."""
        passes = np.array([self.masker.config.pass_of(int(epoch)) for epoch in epochs])
        starts, ends = self.starts[samples], self.ends[samples]
        rows = self.stream.layout(starts, ends) if self.stream else layout([starts], [ends])
        return self.masker.batch(rows, passes, samples)

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Summed cross-entropy of the masked tokens, in nats."""
        sums: dict[str, Tensor] = network(loss_on=batch.targets, **batch.inputs)
        return sums

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The loss, and the number of right first guesses."""
        from plmctl.models.losses import score_sums

        return score_sums(network(**batch.inputs), batch.targets)

    def tally(self, epochs: Ints, samples: Ints) -> Tallies:
        """Statistics of the rows ``samples``."""
        return masked_batch_tallies(self.masker, self.collate(epochs, samples))

    def expected(self) -> dict[str, float]:
        """What some of the statistics should come to."""
        return expected_masking(self.masker)

    def example(self, epoch: int, sample: int) -> Example:
        """One row for reading."""
        batch = self.collate(np.array([epoch]), np.array([sample]))
        return masked_example(self.masker, batch)


def make(
    config: Config, store: TokenStore, vocab: Vocab, seq_len: int, seed: int
) -> MaskedLm | MaskedPairs:
    """The objective over a store; ``seq_len`` counts special tokens.

    Raises:
        ConfigError: The tokenizer lacks a special token.
        DataError: Fewer than two documents, and segments of other documents are asked for.
    """
    masks = masker(config, store, vocab, seed)
    if config.packing == "segment_pair":
        return _pairs(masks, seq_len, seed)
    if config.packing == "documents":
        return MaskedLm(masks, *document_rows(store, seq_len - 2))
    parted = config.packing == "full_sentences"
    found = partial(line_edges, store.sentences, store.documents, part=parted)
    lines = LineStream(
        cached_array(store, ("lines", parted), np.int64, found), None if parted else store.documents
    )
    rule = ("rows of lines", parted, seq_len - 1)
    edges = cached_array(store, rule, np.int64, lambda: lines.edges(seq_len - 1))
    return MaskedLm(masks, edges[:-1], edges[1:], lines)


def _pairs(masks: Masker, seq_len: int, seed: int) -> MaskedPairs:
    store = masks.store
    check_documents("mlm", store, "choose another `objective.packing`")

    def make_pairs(key: Keys) -> Iterator[Records]:
        return next_sentence_pairs(store.sentences, store.documents, seq_len, key)

    pairs = cached_pairs(store, seq_len, ("nsp", 0.1), seed, make_pairs)
    return MaskedPairs(masks, pairs, NEXT_SENTENCE, LOSS_TERMS)
