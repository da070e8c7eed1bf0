"""Denoising of independently chosen tokens: baseline and variants of the T5 paper (section 3.3).

Groups of 128 documents are cut into segments of `seq_len` - 1 tokens; each token is noise with
probability `density`. Source: google-research/text-to-text-transfer-transformer, preprocessors.py
(``denoise``, ``iid_noise_mask``) and its objectives iid_15_u_u, r10s90_f, m_f and d_d.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from plmctl.arrays import Bools, Ints
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
    ENCODER_DECODER,
    LOSS_TERMS,
    TOKENS,
    Pair,
    Specials,
    TextToText,
    TextToTextConfig,
    cut,
    key_of,
    specials,
)

if TYPE_CHECKING:
    from plmctl.corpus.store import TokenStore
    from plmctl.tokenization.load import Vocab

__all__ = ["ENCODER_DECODER", "LOSS_TERMS", "TOKENS", "Config", "make"]

_RANDOM_SHARE = {"bert": 0.1, "mass": 0.0}


class Config(TextToTextConfig):
    """Restore independently chosen tokens."""

    name: Literal["iid_denoising"] = "iid_denoising"
    style: Literal["replace_spans", "bert", "mass", "drop_tokens"] = "replace_spans"
    """replace_spans: neighbouring noise becomes one sentinel, the target has the hidden tokens;
    bert: 90 % of noise becomes one sentinel, 10 % random tokens, the target is the whole text;
    mass: all noise becomes one sentinel, the target is the whole text;
    drop_tokens: noise is left out, the target is what was left out."""
    density: float = Field(default=0.15, gt=0, lt=1)
    """Probability that a token is noise (the paper compares 0.10, 0.15, 0.25 and 0.50)."""


def make(config: Config, store: TokenStore, vocab: Vocab, seq_len: int, seed: int) -> TextToText:
    """The objective over a store; ``seq_len`` counts the end token.

    Raises:
        ConfigError: The tokenizer has no padding token, no end token, or too few sentinels.
    """
    size = seq_len - 1
    needed = specials(vocab, config.name, _sentinels(config, size))
    starts, ends = cut(store, size, CONCATENATED)
    shape = partial(_shape, config, needed, _random_range(vocab))

    def known() -> dict[str, float]:
        return {"noise_share": config.density}

    return TextToText(store, starts, ends, needed, shape, config.z_loss, key_of(seed), known)


def _sentinels(config: Config, size: int) -> int:
    """How many sentinels: for the mean number of runs and three standard deviations more."""
    if config.style == "drop_tokens":
        return 0
    if config.style != "replace_spans":
        return 1
    run = config.density * (1 - config.density)  # probability that one begins at a token
    return min(int(size * run + 3 * (size * run * (1 - 3 * run)) ** 0.5) + 2, size // 2 + 2)


def _random_range(vocab: Vocab) -> tuple[int, int]:
    """Ids after the special tokens at the vocabulary's beginning: from 3 on for T5's."""
    taken = {vocab.pad, vocab.eos, vocab.unk, vocab.bos}
    first = next(id_ for id_ in range(vocab.size) if id_ not in taken)
    return first, vocab.size


def _shape(
    config: Config, needed: Specials, bounds: tuple[int, int], ids: Ints, lengths: Ints, keys: Keys
) -> Pair:
    noise = iid_noise(lengths, ids.shape[1], config.density, keys)
    if config.style == "replace_spans":
        noise = limit_runs(noise, len(needed.sentinels))
        return Pair(*replace_runs(ids, lengths, noise, needed.sentinels), noise)
    if config.style == "drop_tokens":
        return _dropped(ids, lengths, noise)
    share = _RANDOM_SHARE[config.style]
    hidden = replace_tokens(ids, noise, int(needed.sentinels[0]), share, bounds, keys)
    return Pair(Ragged(hidden, lengths), Ragged(ids, lengths), noise)


def _dropped(ids: Ints, lengths: Ints, noise: Bools) -> Pair:
    text = real(lengths, ids.shape[1]) & ~noise
    return Pair(compact(ids, text), compact(ids, np.asarray(noise)), noise)
