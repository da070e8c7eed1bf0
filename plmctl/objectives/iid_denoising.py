"""Denoising of independently chosen tokens: baseline and variants of the T5 paper (section 3.3).

Groups of 128 documents are cut into segments of `seq_len` - 1 tokens; each token is noise with
probability `density`. Source: google-research/text-to-text-transfer-transformer, preprocessors.py
(``denoise``, ``iid_noise_mask``) and its objectives iid_15_u_u, r10s90_f, m_f and d_d.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from plmctl.arrays import Ints
from plmctl.examples.keys import Keys
from plmctl.examples.noise import (
    Ragged,
    compact,
    iid_noise,
    limit_runs,
    real,
    replace_runs,
    replace_tokens,
)
from plmctl.examples.packing import CONCATENATED
from plmctl.objectives._text_to_text import (
    Pair,
    Segments,
    Specials,
    TextToText,
    TextToTextConfig,
)

if TYPE_CHECKING:
    from plmctl.corpus.store import TokenStore
    from plmctl.tokenization.load import Vocab

_RANDOM_SHARE = {"bert": 0.1, "mass": 0.0}


class Config(TextToTextConfig):
    """Restore independently chosen tokens."""

    name: Literal["iid_denoising"] = "iid_denoising"
    style: Literal["replace_spans", "bert", "mass", "drop_tokens"] = "replace_spans"
    """replace_spans: adjacent noise becomes one sentinel, the target has the hidden tokens;
    bert: 90 % of noise becomes one sentinel, 10 % random tokens, the target is the whole text;
    mass: all noise becomes one sentinel, the target is the whole text;
    drop_tokens: noise is dropped, the target is the dropped tokens."""
    density: float = Field(default=0.15, gt=0, lt=1)
    """Probability that a token is noise (the paper compares 0.10, 0.15, 0.25 and 0.50)."""


class IidDenoising(TextToText[Config], config=Config):
    """Some tokens of the input are hidden, dropped or replaced, by the style."""

    def over(self, store: TokenStore, vocab: Vocab, seq_len: int, seed: int) -> Segments:
        """Segments of groups of documents; ``seq_len`` counts the end token."""
        size = seq_len - 1
        sentinels = _sentinels(self.config, size)
        return Segments(
            self, store, vocab, seed, size=size, group=CONCATENATED, sentinels=sentinels
        )

    def shape(self, ids: Ints, lengths: Ints, keys: Keys, specials: Specials) -> Pair:
        """The text with noise, by the style, and what was hidden or the whole text."""
        style, width = self.config.style, ids.shape[1]
        sentinels = specials.sentinels
        noise = iid_noise(lengths, width, self.config.density, keys)
        if style == "replace_spans":
            noise = limit_runs(noise, len(sentinels))
            return Pair(*replace_runs(ids, lengths, noise, sentinels), noise)
        if style == "drop_tokens":
            remaining = real(lengths, width) & ~noise
            return Pair(compact(ids, remaining), compact(ids, np.asarray(noise)), noise)
        share = _RANDOM_SHARE[style]
        hidden = replace_tokens(ids, noise, int(sentinels[0]), share, specials.others, keys)
        return Pair(Ragged(hidden, lengths), Ragged(ids, lengths), noise)

    def expected(self, lengths: Ints, rows: int) -> dict[str, float]:
        """The share of noise."""
        return {"noise_share": self.config.density}


def _sentinels(config: Config, size: int) -> int:
    """Sentinels needed: the mean number of runs plus three standard deviations."""
    if config.style == "drop_tokens":
        return 0
    if config.style != "replace_spans":
        return 1
    run = config.density * (1 - config.density)  # probability that a run starts at a token
    return min(int(size * run + 3 * (size * run * (1 - 3 * run)) ** 0.5) + 2, size // 2 + 2)
