"""Span masking and the span-boundary objective: SpanBERT's pretraining (arXiv:1907.10529).

Spans of whole words are masked, and each token of a span is predicted twice: from its own place, as
in BERT, and from the two tokens around the span. Loss = mean cross-entropy of the masked tokens +
weight * mean cross-entropy of the boundary targets. Source: facebookresearch/SpanBERT, which drops
sentences that are longer than a row (here they are cut) and adds one to the second mean's count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from plmctl.arrays import Bools, Ints
from plmctl.config.base import ObjectiveConfig
from plmctl.errors import ConfigError
from plmctl.examples.inspection import Example, Tallies, masked_row, masked_tallies, tally
from plmctl.examples.keys import Keys, below, fold, stream
from plmctl.examples.packing import CLS, PAD, SEP, RowLayout, fill, layout
from plmctl.examples.spans import (
    Spans,
    boundaries,
    budget,
    choose_spans,
    replace_spans,
    span_shares,
)
from plmctl.objectives._masked import (
    ROW_TOKENS,
    document_rows,
    masked_word,
    special_ids,
    word_sizes,
)
from plmctl.objectives.base import Objective, ObjectiveExamples

if TYPE_CHECKING:
    from torch import Tensor

    from plmctl.corpus.store import TokenStore
    from plmctl.models.batch import Batch
    from plmctl.models.network import Network
    from plmctl.tokenization.load import Vocab


_PLACES = 15  # tokens of a span that its boundaries predict, as published
_TOO_LONG = 0.5  # share of the text in words of which a span has but a part, which it predicts


class Config(ObjectiveConfig):
    """Predict masked spans from within, and from the tokens around them."""

    name: Literal["mlm+sbo"] = "mlm+sbo"
    rate: float = Field(default=0.15, gt=0, lt=1)
    """Share of the tokens that is predicted, special ones not counted; rounded up."""
    span_p: float = Field(default=0.2, gt=0, lt=1)
    """Lengths in words are geometric: a span ends after each word with this probability."""
    max_span: int = Field(default=10, ge=1, le=100)
    """Most words of a span."""
    mask_share: float = Field(default=0.8, ge=0, le=1)
    """Share of the spans that is masked as a whole."""
    random_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the spans whose tokens are all replaced, by tokens drawn from the corpus."""
    sbo_weight: float = Field(default=1.0, gt=0)
    """Weight of the span-boundary loss."""

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.mask_share + self.random_share > 1:
            raise ValueError("mask_share and random_share are more than 1 together")
        return self


class SpanBoundaryObjective(Objective[Config], config=Config):
    """Masked spans, whose tokens are predicted twice."""

    LOSS_TERMS = ("mlm", "sbo")
    TOKENS = ROW_TOKENS
    SAMPLES = "fill-mask"
    COUNTED = "neighbours"

    def over(self, store: TokenStore, vocab: Vocab, seq_len: int, seed: int) -> SpanRows:
        """The rows of a store; ``seq_len`` counts [CLS] and [SEP]."""
        return SpanRows(self, store, vocab, seq_len, seed)

    def sample(self, ids: Ints, starts: Bools, key: int, vocab: Vocab) -> tuple[Ints, Ints] | None:
        """See ``masked_word``."""
        return masked_word(ids, starts, key, vocab)

    def check_text(self, store: TokenStore, seq_len: int) -> None:
        """Refuse text in which spans of whole words would only be the beginnings of words.

        Raises:
            ConfigError: Most of the text is in words with more tokens than a sequence predicts.
        """
        if not store.num_tokens:
            return
        sizes = word_sizes(store)
        most = int(budget(np.array([seq_len - 2]), self.config.rate)[0])
        long = sizes[sizes > most].sum() / sizes.sum()
        if long > _TOO_LONG:
            raise ConfigError(
                f"objective.name: mlm+sbo masks whole words, but {long:.0%} of the tokens are in "
                f"words of more than {most} tokens, the most that a sequence of {seq_len} predicts",
                "text without spaces is one long word to this tokenizer; use the objective 'mlm', "
                "a larger vocabulary, or longer sequences",
            )

    def targets_per_token(self) -> float:
        """The share of the tokens that is masked."""
        return self.config.rate


class SpanRows(ObjectiveExamples[Config]):
    """Rows of one store: [CLS], sentences of a document, [SEP]."""

    def __init__(
        self,
        objective: SpanBoundaryObjective,
        store: TokenStore,
        vocab: Vocab,
        seq_len: int,
        seed: int,
    ) -> None:
        super().__init__(objective, store)
        self.mask_id, cls, sep, pad = special_ids(self.config.name, vocab)
        self.specials = {PAD: pad, CLS: cls, SEP: sep}
        self.key = int(fold(seed, stream("mask")))
        self.starts, self.ends = document_rows(store, vocab, seq_len - 2)

    def __len__(self) -> int:
        """Rows in an epoch."""
        return len(self.starts)

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The rows ``samples`` with the spans of their epochs.

        Args:
            epochs: [B].
            samples: [B], each below ``len(self)``.

        Returns:
            inputs: input_ids, attention_mask, token_type_ids [B, L], positions [K], and left,
            right, place [T]; targets: mlm [K], sbo [T].
        """
        import torch

        from plmctl.models.batch import Batch, TargetList

        rows = layout([self.starts[samples]], [self.ends[samples]])
        ids = fill(rows.source, self.store.tokens(np.maximum(rows.source, 0)), self.specials)
        keys = fold(self.key, epochs, samples)
        spans = self._spans(rows, keys)
        sbo = boundaries(spans, rows.source >= 0, _PLACES)
        random_tokens = self._random_tokens(spans, keys)
        shares = (self.config.mask_share, self.config.random_share)
        inputs = {
            "input_ids": replace_spans(ids, spans, keys, shares, (self.mask_id, random_tokens)),
            "attention_mask": (rows.source != PAD).astype(np.int64),
            "token_type_ids": rows.segments,
            "positions": spans.positions,
            "left": sbo.left,
            "right": sbo.right,
            "place": sbo.place,
        }
        flat_ids = ids.reshape(-1)
        targets = {"mlm": flat_ids[spans.positions], "sbo": flat_ids[sbo.target]}
        return Batch(
            {name: torch.from_numpy(array) for name, array in inputs.items()},
            {term: torch.from_numpy(array) for term, array in targets.items()},
            int(rows.lengths.sum()),
            ids.size,
            lists=(
                TargetList(("positions",), ("mlm",)),
                TargetList(("left", "right"), ("sbo",), ("place",)),
            ),
        )

    def _spans(self, rows: RowLayout, keys: Keys) -> Spans:
        candidates = rows.source >= 0
        starts = self.store.word_starts(np.maximum(rows.source, 0))
        counts = budget(candidates.sum(axis=1), self.config.rate)
        shares = span_shares(self.config.span_p, self.config.max_span)
        return Spans.of(choose_spans(candidates, starts, counts, keys, shares))

    def _random_tokens(self, spans: Spans, keys: Keys) -> Ints:
        """[K] tokens from anywhere in the corpus: frequent ones are drawn often."""
        row, column = np.divmod(spans.positions, spans.width)
        places = below(fold(keys[row], stream("filler"), column), self.store.num_tokens)
        return self.store.tokens(places).astype(np.int64)

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Summed cross-entropy of the masked tokens and of the boundary targets, in nats."""
        return self._weighted(super().loss(network, batch))

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The losses, with the number of correct predictions of each loss term."""
        return self._weighted(super().score(network, batch))

    def _weighted(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**sums, "sbo": self.config.sbo_weight * sums["sbo"]}

    def tally(self, epochs: Ints, samples: Ints) -> Tallies:
        """Statistics of the rows ``samples``."""
        batch = self.collate(epochs, samples)
        rows = layout([self.starts[samples]], [self.ends[samples]])
        spans = self._spans(rows, fold(self.key, epochs, samples))
        sources = np.maximum(rows.source.reshape(-1)[spans.positions], 0)
        starts = self.store.word_starts(sources)
        starts[np.diff(spans.number, prepend=-1) != 0] = True  # a word may be cut in two
        tokens = np.bincount(spans.number)
        return {
            **masked_tallies(
                batch.inputs["input_ids"].numpy(),
                rows.lengths,
                spans.positions,
                batch.targets["mlm"].numpy(),
                self.mask_id,
            ),
            "mean_span_tokens": tally(tokens),
            "mean_span_words": tally(np.bincount(spans.number, weights=starts)),
            "mean_spans": (float(len(tokens)), len(samples)),
        }

    def expected(self) -> dict[str, float]:
        """The expected values of some of the statistics."""
        return {"mask_share": self.config.mask_share}

    def example(self, epoch: int, sample: int) -> Example:
        """One row for reading."""
        batch = self.one(epoch, sample)
        row = masked_row(
            batch.inputs["input_ids"].numpy()[0, : batch.tokens],
            batch.inputs["positions"].numpy(),
            batch.targets["mlm"].numpy(),
            self.mask_id,
            set(self.specials.values()),
        )
        return Example({"input": row})
