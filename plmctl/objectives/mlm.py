"""Masked language modeling without pairs (Liu et al., 2019, arXiv:1907.11692: RoBERTa).

Source of the packings with separators: facebookresearch/fairseq, ``TokenBlockDataset`` with the
break modes ``complete`` and ``complete_doc``. There a line longer than a row is a separate row,
which is too long for the network; here it is cut, so that no text is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from plmctl.arrays import Ints
from plmctl.config.sections import MaskingConfig
from plmctl.corpus.store import cached_array
from plmctl.examples.packing import LineStream, line_edges
from plmctl.examples.pairing import next_sentence_pairs
from plmctl.objectives._masked import (
    NEXT_SENTENCE,
    MaskedExamples,
    MaskedObjective,
    MaskedPairs,
    MaskedRows,
    cached_pairs,
    check_documents,
    document_rows,
    masker,
    stripped_spans,
    white_key,
)

if TYPE_CHECKING:
    from plmctl.corpus.store import TokenStore
    from plmctl.tokenization.load import Vocab


class Config(MaskingConfig):
    """Predict masked tokens."""

    name: Literal["mlm"] = "mlm"
    packing: Literal["documents", "full_sentences", "doc_sentences", "segment_pair"] = "documents"
    """What a row is. documents: [CLS] X [SEP], X whole sentences of one document. full_sentences:
    RoBERTa's, as in its code: [CLS], then whole sentences with a [SEP] after each, continuing in
    the next document after one more [SEP]. doc_sentences: the same, ending with the document.
    segment_pair: BERT's [CLS] A [SEP] B [SEP], half of the B from another document, unlabelled."""


class MaskedLM(MaskedObjective[Config], config=Config):
    """Rows of whole sentences, or BERT's pairs without their label."""

    LOSS_TERMS = ("mlm",)

    def over(
        self, store: TokenStore, vocab: Vocab, seq_len: int, seed: int
    ) -> MaskedExamples[MaskingConfig]:
        """The rows or pairs of a store; ``seq_len`` counts special tokens.

        Raises:
            DataError: Pairs of a corpus of one document.
        """
        masks, packing = masker(self.config, store, vocab, seed), self.config.packing
        if packing == "documents":
            return MaskedRows(self, masks, *document_rows(store, vocab, seq_len - 2))
        if packing != "segment_pair":
            across = packing == "full_sentences"
            return MaskedRows(self, masks, *_line_rows(store, vocab, seq_len - 1, across=across))
        check_documents("mlm", store, "choose another `objective.packing`")
        pairs = cached_pairs(
            store,
            seq_len,
            ("nsp", 0.1),
            seed,
            lambda key: next_sentence_pairs(store.sentences, store.documents, seq_len, key),
        )
        return MaskedPairs(self, masks, pairs, NEXT_SENTENCE)


def _line_rows(
    store: TokenStore, vocab: Vocab, block: int, *, across: bool
) -> tuple[Ints, Ints, LineStream]:
    """RoBERTa's rows of at most ``block`` tokens: where each starts and ends, in which stream."""
    sentences = stripped_spans(
        store, vocab, ("sentences",), store.sentences[:-1], store.sentences[1:]
    )
    documents, white = store.documents, white_key(vocab)
    starts = cached_array(
        store,
        ("lines", across, *white),
        np.int64,
        lambda: line_edges(*sentences, documents, separated=across),
    )
    lines = LineStream(starts, sentences[0], documents, separated=across)
    rule = ("rows of lines", across, block, *white)
    edges = cached_array(store, rule, np.int64, lambda: lines.edges(block))
    return edges[:-1], edges[1:], lines
