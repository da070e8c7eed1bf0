"""Masked language modeling without pairs (Liu et al., 2019, arXiv:1907.11692: RoBERTa).

Source of the packings with separators: facebookresearch/fairseq, ``TokenBlockDataset`` with the
break modes ``complete`` and ``complete_doc``. There a line longer than a row is a separate row,
which is too long for the network; here it is cut, so that no text is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from plmctl.arrays import Ints
from plmctl.config.base import ObjectiveConfig
from plmctl.config.sections import MaskingConfig
from plmctl.corpus.store import cached_array
from plmctl.examples.packing import Layout, LineStream, layout, line_edges
from plmctl.examples.pairing import next_sentence_pairs
from plmctl.objectives._masked import (
    NEXT_SENTENCE,
    MaskedObjective,
    MaskedPairs,
    cached_pairs,
    check_documents,
    document_rows,
    masker,
    stripped_spans,
    white_key,
)
from plmctl.objectives.base import Objective

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


class MaskedLM(MaskedObjective, config=Config):
    """Rows of one store at one sequence length, for every packing but pairs.

    Attributes:
        starts: [N] where each row starts, in the store or in ``lines``.
        ends: [N].
        lines: Sentences with their separators, for RoBERTa's packings.
    """

    LOSS_TERMS = ("mlm",)

    @classmethod
    def make(
        cls, config: ObjectiveConfig, store: TokenStore, vocab: Vocab, seq_len: int, seed: int
    ) -> Objective:
        """Rows, or BERT's pairs without their label; ``seq_len`` counts special tokens.

        Raises:
            ConfigError: The tokenizer lacks a special token.
            DataError: Pairs of a corpus of one document.
        """
        assert isinstance(config, Config)
        if config.packing != "segment_pair":
            return cls(config, store, vocab, seq_len, seed)
        masks = masker(config, store, vocab, seed)
        check_documents("mlm", store, "choose another `objective.packing`")
        pairs = cached_pairs(
            store,
            seq_len,
            ("nsp", 0.1),
            seed,
            lambda key: next_sentence_pairs(store.sentences, store.documents, seq_len, key),
        )
        return MaskedPairs(masks, pairs, NEXT_SENTENCE)

    def __init__(
        self, config: Config, store: TokenStore, vocab: Vocab, seq_len: int, seed: int
    ) -> None:
        super().__init__(masker(config, store, vocab, seed))
        self.lines: LineStream | None = None
        if config.packing == "documents":
            self.starts, self.ends = document_rows(store, vocab, seq_len - 2)
            return
        across, documents = config.packing == "full_sentences", store.documents
        sentences = stripped_spans(
            store, vocab, ("sentences",), store.sentences[:-1], store.sentences[1:]
        )
        rule = ("lines", across, *white_key(vocab))
        starts = cached_array(
            store, rule, np.int64, lambda: line_edges(*sentences, documents, separated=across)
        )
        lines = self.lines = LineStream(starts, sentences[0], documents, separated=across)
        rule = ("rows of lines", across, seq_len - 1, *white_key(vocab))
        edges = cached_array(store, rule, np.int64, lambda: lines.edges(seq_len - 1))
        self.starts, self.ends = edges[:-1], edges[1:]

    def __len__(self) -> int:
        """Rows in an epoch."""
        return len(self.starts)

    def rows(self, passes: Ints, samples: Ints) -> Layout:
        """[CLS] and the text of each sample, with its separators."""
        starts, ends = self.starts[samples], self.ends[samples]
        return self.lines.layout(starts, ends) if self.lines else layout([starts], [ends])
