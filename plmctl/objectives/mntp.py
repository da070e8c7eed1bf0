"""Masked next-token prediction (Charpentier and Samuel, 2024, arXiv:2410.24159: GPT-BERT).

A causal decoder sees both sides of each position in training. Some tokens are masked, and the token
at position i is predicted from the output at i - 1, as in causal language modeling: so one network
learns both, and its folder is an ordinary causal model. Source: ltgoslo/gpt-bert,
pretraining/dataset.py.

There a row is made of segments of documents, each masked by itself; here rows are ``clm``'s
windows. There the choice depends on how often each token of a segment was masked before, in the
whole run; here on the earlier ones of ``_MEMORY`` passes, so that a step needs no history.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from plmctl.arrays import IGNORE, Bools, Ints
from plmctl.config.sections import MaskRate, RateSchedule, progress_at, rate_at
from plmctl.errors import ConfigError
from plmctl.examples.inspection import (
    Example,
    Tallies,
    expected_shares,
    masked_row,
    masked_tallies,
)
from plmctl.examples.keys import fold, stream
from plmctl.examples.masking import Treatment, choose_spans, replace_spans, spans_of
from plmctl.objectives._windows import WindowConfig, WindowObjective, Windows

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

    from plmctl.corpus.store import TokenStore
    from plmctl.models.batch import Batch
    from plmctl.tokenization.load import Vocab

_MEMORY = 8
"""Passes over the corpus after which the counts of masked tokens begin again: in so many, each
token is masked once or twice. A batch costs as many choices as there are passes in its memory."""


class Config(WindowConfig):
    """Predict masked tokens from the position before them, seeing both sides (GPT-BERT)."""

    name: Literal["mntp"] = "mntp"
    rate: MaskRate | RateSchedule = RateSchedule(start=0.3, end=0.15)
    """Share of the tokens that is predicted, and slightly more: all tokens of the last span. The
    default changes linearly over the steps of the run, and validation has the last rate."""
    max_span: int = Field(default=3, ge=1, le=10)
    """Spans of 1 to this many tokens, all as likely, are masked together."""
    mask_share: float = Field(default=0.8, ge=0, le=1)
    """Share of the spans that the mask token replaces."""
    random_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the spans that random tokens replace; the rest stays unchanged."""

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.mask_share + self.random_share > 1:
            raise ValueError("mask_share and random_share add up to more than 1")
        return self


class MaskedNextToken(WindowObjective[Config], config=Config):
    """Predict masked tokens from the position before them."""

    BOTH_SIDES = True
    COUNTED = "neighbours"
    TARGETS_AFTER = 1

    def over(self, store: TokenStore, vocab: Vocab, seq_len: int, seed: int) -> MaskedWindows:
        """The windows of a store; errors as ``check``, or a corpus with not one of them."""
        return MaskedWindows(self, store, seq_len, self.separator(vocab), vocab, seed)

    def check(
        self, tokenizer: PreTrainedTokenizerBase, network: PreTrainedConfig, seq_len: int
    ) -> None:
        """Refuse a tokenizer without a mask token, too."""
        from plmctl.tokenization.load import Vocab

        super().check(tokenizer, network, seq_len)
        mask_of(Vocab.of(tokenizer))

    def targets_per_token(self) -> float:
        """The share of the tokens that is masked, on average over the run."""
        return rate_at(self.config.rate, 0.5)


def mask_of(vocab: Vocab) -> int:
    """The id of the mask token.

    Raises:
        ConfigError: The tokenizer has none.
    """
    if vocab.mask is None:
        raise ConfigError(
            "tokenizer: no mask token, which mntp puts in place of tokens",
            'train one with `special_tokens: ["<mask>"]`',
        )
    return vocab.mask


class MaskedWindows(Windows[Config]):
    """Windows with masked spans."""

    def __init__(
        self,
        objective: MaskedNextToken,
        store: TokenStore,
        seq_len: int,
        end_of_text: int | None,
        vocab: Vocab,
        seed: int,
    ) -> None:
        super().__init__(objective, store, seq_len, end_of_text)
        special = (vocab.pad, vocab.unk, vocab.cls, vocab.sep, vocab.mask, vocab.bos, vocab.eos)
        self.treatment = Treatment(
            mask_of(vocab),
            vocab.size,
            self.config.mask_share,
            self.config.random_share,
            tuple({id_ for id_ in special if id_ is not None}),
        )
        self.key = int(fold(seed, stream("mask")))
        self.rate = rate_at(self.config.rate, 1.0)

    def at_step(self, step: int, steps: int) -> Self:
        """The same windows, masked at the rate of a step."""
        changed = copy(self)
        changed.rate = rate_at(self.config.rate, progress_at(step, steps))
        return changed

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The windows ``samples`` with the masks of their epochs.

        Args:
            epochs: [B].
            samples: [B], each below ``len(self)``.

        Returns:
            inputs: those of ``Windows``, and positions [K], each before a masked token; targets:
            lm [K], that token, and z_loss, the same tensor. The token after the window can be one.
        """
        import torch

        from plmctl.models.batch import Batch, TargetList

        plain, seen, chosen = self._masked(epochs, samples)
        first = plain.inputs["input_ids"][:, :1]
        ids = torch.cat([first, torch.from_numpy(seen[:, :-1])], dim=1)
        positions = torch.from_numpy(np.flatnonzero(chosen))
        return Batch(
            {**plain.inputs, "input_ids": ids, "positions": positions},
            dict.fromkeys(self.loss_terms, plain.targets["lm"].flatten()[positions]),
            plain.tokens,
            plain.padded_tokens,
            lists=(TargetList(("positions",), self.loss_terms),),
        )

    def _masked(self, epochs: Ints, samples: Ints) -> tuple[Batch, Ints, Bools]:
        """The windows with their masks.

        Returns:
            The windows as ``clm`` has them; the token after each position as the network sees it
            [B, T], and whether it is predicted [B, T].
        """
        plain = super().collate(epochs, samples)
        following = plain.targets["lm"].numpy()
        candidates = (following != IGNORE) & ~np.isin(following, self.treatment.never)
        chosen = np.zeros(candidates.shape, dtype=bool)
        times = np.zeros(candidates.shape, dtype=np.int64)  # each was masked before
        for back in range(int((epochs % _MEMORY).max()) + 1):
            keys = fold(self.key, epochs // _MEMORY * _MEMORY + back, samples)
            spans = spans_of(keys, candidates.shape[1], self.config.max_span)
            now = choose_spans(candidates, spans, times, self.rate, keys)
            chosen = np.where((epochs % _MEMORY == back)[:, None], now, chosen)
            times += now
        keys = fold(self.key, epochs, samples)
        spans = spans_of(keys, candidates.shape[1], self.config.max_span)
        return plain, replace_spans(following, chosen, spans, keys, self.treatment), chosen

    def tally(self, epochs: Ints, samples: Ints) -> Tallies:
        """Statistics of the masks."""
        plain, seen, chosen = self._masked(epochs, samples)
        positions = np.flatnonzero(chosen)
        return masked_tallies(
            seen,
            np.full(len(samples), self.seq_len),
            positions,
            plain.targets["lm"].numpy().ravel()[positions],
            self.treatment.mask_id,
        )

    def expected(self) -> dict[str, float]:
        """The shares that the config sets."""
        treatment = self.treatment
        others = treatment.vocab_size - len(treatment.never)
        shares = expected_shares(treatment.mask, treatment.random, others)
        return {"mean_length": self.seq_len, **shares}

    def example(self, epoch: int, sample: int) -> Example:
        """One window for reading, with the token after it."""
        plain, seen, chosen = self._masked(np.array([epoch]), np.array([sample]))
        positions = np.flatnonzero(chosen)
        row = masked_row(
            np.concatenate([plain.inputs["input_ids"].numpy()[0, :1], seen[0]]),
            positions + 1,
            plain.targets["lm"].numpy()[0, positions],
            self.treatment.mask_id,
            () if self.end_of_text is None else {self.end_of_text},
        )
        return Example({"input": row})
