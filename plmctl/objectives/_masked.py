"""From a layout to a masked batch: what the masked objectives share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from plmctl.arrays import Bools, Ints
from plmctl.config.masking import MaskingConfig
from plmctl.corpus.kept import kept
from plmctl.errors import ConfigError
from plmctl.shaping.keys import Keys, fold, stream
from plmctl.shaping.masking import (
    Treatment,
    choose,
    choose_words,
    count_exact,
    count_probabilistic,
    ngram_shares,
    replace,
)
from plmctl.shaping.packing import block_edges
from plmctl.shaping.rows import CLS, PAD, SEP, Layout, fill
from plmctl.tokenization.vocab import TOKEN_NAMES

if TYPE_CHECKING:
    from plmctl.corpus.store import TokenStore
    from plmctl.modeling.batch import Batch
    from plmctl.tokenization.vocab import Vocab


ROW_TOKENS = ("mask", "cls", "sep", "pad")
"""What the tokenizer of a masked objective must have."""


def document_rows(store: TokenStore, block: int) -> tuple[Ints, Ints]:
    """Rows of at most ``block`` tokens, whole sentences of one document; see ``block_edges``.

    Returns:
        starts, ends: token positions, each [rows].
    """
    found = partial(block_edges, store.sentences, store.documents, block)
    edges = kept(store, ("rows of documents", block), np.int64, found)
    return edges[:-1], edges[1:]


@dataclass(frozen=True)
class Masker:
    """Reads a layout's tokens and masks them.

    Attributes:
        config: Rates and the kind of masking.
        store: Where the tokens are.
        treatment: What stands at a masked position.
        specials: Ids of the layout's special cells.
        key: Key of all masks.
    """

    config: MaskingConfig
    store: TokenStore
    treatment: Treatment
    specials: dict[int, int]
    key: int

    def batch(self, layout: Layout, passes: Ints, samples: Ints) -> Batch:
        """The batch of a layout.

        Args:
            layout: B rows of width L.
            passes: [B] which set of masks.
            samples: [B] which sample; with ``passes`` it decides the masks.

        Returns:
            inputs: input_ids, attention_mask, token_type_ids [B, L], positions [K];
            targets: mlm [K].
        """
        import torch

        from plmctl.modeling.batch import Batch

        keys = fold(self.key, passes, samples)
        real = layout.source != PAD
        ids = fill(layout.source, self.store.tokens(np.maximum(layout.source, 0)), self.specials)
        chosen = self._choose(layout, keys)
        positions = np.flatnonzero(chosen)
        inputs = {
            "input_ids": replace(ids, chosen, keys, self.treatment),
            "attention_mask": real.astype(np.int64),
            "token_type_ids": layout.segments,
            "positions": positions,
        }
        return Batch(
            {name: torch.from_numpy(array) for name, array in inputs.items()},
            {"mlm": torch.from_numpy(ids.reshape(-1)[positions])},
            int(layout.lengths.sum()),
            real.size,
        )

    def _choose(self, layout: Layout, keys: Keys) -> Bools:
        """[B, L] the positions to predict."""
        config = self.config
        candidates = layout.source != PAD if config.mask_specials else layout.source >= 0
        if config.count == "exact":
            counts = count_exact(layout.lengths, config.rate, config.max_predictions)
        else:
            counts = count_probabilistic(layout.lengths, config.rate, keys)
            counts = np.minimum(counts, config.max_predictions or counts.max())
        if config.unit == "token":
            return choose(candidates, counts, keys)
        starts = self.store.word_starts(np.maximum(layout.source, 0))
        if config.mask_specials:  # a special token is a word, whatever truncation left after it
            special = layout.source < 0
            starts |= special
            starts[:, 1:] |= special[:, :-1]
        longest = config.max_ngram if config.unit == "ngram" else 1
        shares = ngram_shares(longest, favor_shorter=config.favor_shorter)
        return choose_words(candidates, starts, counts, keys, shares)


def masker(config: MaskingConfig, store: TokenStore, vocab: Vocab, seed: int) -> Masker:
    """A masker for a tokenizer.

    Raises:
        ConfigError: The tokenizer lacks a special token that masked rows need.
    """
    mask, cls, sep, pad = special_ids(config.name, vocab)
    special = (vocab.pad, vocab.unk, vocab.cls, vocab.sep, vocab.mask, vocab.bos, vocab.eos)
    never = () if config.random_specials else tuple(id_ for id_ in special if id_ is not None)
    treatment = Treatment(mask, vocab.size, config.mask_share, config.random_share, never)
    key = int(fold(seed, stream("mask")))
    return Masker(config, store, treatment, {PAD: pad, CLS: cls, SEP: sep}, key)


def special_ids(name: str, vocab: Vocab) -> list[int]:
    """Ids of ``ROW_TOKENS``.

    Args:
        name: Of the objective.
        vocab: The tokenizer's.

    Raises:
        ConfigError: The tokenizer lacks one of them.
    """
    ids = {name: getattr(vocab, name) for name in ROW_TOKENS}
    missing = [TOKEN_NAMES[name] for name, id_ in ids.items() if id_ is None]
    if missing:
        raise ConfigError(
            f"the objective {name!r} needs a tokenizer with {', '.join(missing)}",
            "train one with `family: bert`",
        )
    return [int(id_) for id_ in ids.values() if id_ is not None]
