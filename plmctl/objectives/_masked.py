"""What the masked objectives share: masked batches, masked sentence pairs, and their statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np

from plmctl.arrays import Bools, Ints
from plmctl.config.sections import MaskingConfig
from plmctl.corpus.store import cached_array
from plmctl.errors import ConfigError, DataError
from plmctl.examples.inspection import (
    Example,
    Tallies,
    expected_shares,
    masked_row,
    masked_tallies,
    merge,
    pair_tallies,
)
from plmctl.examples.keys import Keys, fold, stream
from plmctl.examples.masking import (
    Treatment,
    choose,
    choose_words,
    count_exact,
    count_probabilistic,
    ngram_shares,
    replace,
)
from plmctl.examples.packing import CLS, PAD, SEP, Layout, block_edges, fill, layout
from plmctl.examples.pairing import Pairs, Records, record_type
from plmctl.models.base import Examples
from plmctl.tokenization.load import TOKEN_NAMES

if TYPE_CHECKING:
    from torch import Tensor

    from plmctl.corpus.store import TokenStore
    from plmctl.models.batch import Batch
    from plmctl.models.network import Network
    from plmctl.tokenization.load import Vocab


# --- From a layout to a masked batch ---


ROW_TOKENS = ("mask", "cls", "sep", "pad")
"""What the tokenizer of a masked objective must have."""


def document_rows(store: TokenStore, block: int) -> tuple[Ints, Ints]:
    """Rows of at most ``block`` tokens, whole sentences of one document; see ``block_edges``.

    Returns:
        starts, ends: token positions, each [rows].
    """
    found = partial(block_edges, store.sentences, store.documents, block)
    edges = cached_array(store, ("rows of documents", block), np.int64, found)
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

        from plmctl.models.batch import Batch

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


# --- Masked sentence pairs with a label ---


@dataclass(frozen=True)
class Label:
    """What the label of a pair is called, and what is said of a pair.

    Attributes:
        name: Of label 1 in statistics.
        meanings: Of label 0, of label 1, and of label 1 where the chunk had one sentence.
    """

    name: str
    meanings: tuple[str, str, str]


NEXT_SENTENCE = Label(
    "random_next", ("B follows A", "B is from another document", "B is from another document")
)
"""BERT's."""


@dataclass(frozen=True)
class MaskedPairs(Examples):
    """The pairs of one store at one sequence length."""

    masker: Masker
    pairs: Callable[[int], Records]
    """The pairs of a pass over the corpus."""
    label: Label
    loss_terms: tuple[str, ...] = ("mlm",)
    """That of the masked tokens, and that of the pairs' labels if they are predicted."""

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
            As ``Masker.batch``, and the labels [B] as the target of the second part, if any.
        """
        import torch

        passes, pairs = self._chosen(epochs, samples)
        rows = layout([pairs.a_start, pairs.b_start], [pairs.a_end, pairs.b_end])
        batch = self.masker.batch(rows, passes, samples)
        for part in self.loss_terms[1:]:
            batch.targets[part] = torch.from_numpy(pairs.label)
        return batch

    def _chosen(self, epochs: Ints, samples: Ints) -> tuple[Ints, Pairs]:
        """[B] the pass of each sample, and its pair."""
        passes = np.array([self.masker.config.pass_of(int(epoch)) for epoch in epochs])
        chosen = np.empty(len(samples), self.pairs(int(passes[0])).dtype)
        for pass_ in np.unique(passes):
            rows, pairs = passes == pass_, self.pairs(int(pass_))
            chosen[rows] = pairs[samples[rows] % len(pairs)]
        return passes, Pairs.of(chosen)

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Summed cross-entropy of the masked tokens and of the pairs' labels, in nats."""
        sums: dict[str, Tensor] = network(loss_on=batch.targets, **batch.inputs)
        return sums

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The losses, and the number of right first guesses of each."""
        from plmctl.models.losses import score_sums

        return score_sums(network(**batch.inputs), batch.targets)

    def tally(self, epochs: Ints, samples: Ints) -> Tallies:
        """Statistics of the pairs ``samples``."""
        batch, pairs = self.collate(epochs, samples), self._chosen(epochs, samples)[1]
        segments = batch.inputs["token_type_ids"].numpy()
        lengths = row_lengths(batch)
        named = pair_tallies(lengths, segments, pairs.label, pairs.forced, self.label.name)
        return merge([masked_batch_tallies(self.masker, batch), named])

    def expected(self) -> dict[str, float]:
        """What some of the statistics should come to."""
        return {**expected_masking(self.masker), f"{self.label.name}_share_multi": 0.5}

    def example(self, epoch: int, sample: int) -> Example:
        """One pair for reading."""
        batch = self.collate(np.array([epoch]), np.array([sample]))
        which = self._chosen(np.array([epoch]), np.array([sample]))[1]
        kind = 2 if which.forced[0] else int(which.label[0])
        note = f"label {which.label[0]}: {self.label.meanings[kind]}"
        return masked_example(self.masker, batch, note)


def cached_pairs(
    store: TokenStore,
    seq_len: int,
    rule: tuple[object, ...],
    seed: int,
    make: Callable[[Keys], Iterator[Records]],
) -> Callable[[int], Records]:
    """The pairs of a pass, each found once.

    Args:
        store: The corpus.
        seq_len: Tokens a row.
        rule: The name of the way of pairing, and the options that it depends on.
        seed: Of the run.
        make: Finds the pairs of a pass, given its key.
    """
    key = int(fold(seed, stream("pairs"), seq_len))
    dtype = record_type(store.num_tokens, seq_len)

    @lru_cache(
        maxsize=3
    )  # a batch that straddles two epochs needs both, and every epoch's length 0
    def pairs(pass_: int) -> Records:
        wanted = ("pairs", *rule, seq_len, key, pass_)
        return cached_array(store, wanted, dtype, lambda: make(fold(key, pass_)))

    return pairs


def check_documents(name: str, store: TokenStore, hint: str) -> None:
    """Refuse a corpus in which no sentence of another document can be drawn.

    Raises:
        DataError: Fewer than two documents.
    """
    if store.num_documents < 2:
        raise DataError(
            f"the objective {name!r} needs two documents or more, and there is one",
            f"put a blank line between documents, or {hint}",
        )


# --- What masked batches show: statistics, and examples for reading ---


def masked_batch_tallies(masker: Masker, batch: Batch) -> Tallies:
    """See ``examples.inspection.masked_tallies``."""
    return masked_tallies(
        batch.inputs["input_ids"].numpy(),
        row_lengths(batch),
        batch.inputs["positions"].numpy(),
        batch.targets["mlm"].numpy(),
        masker.treatment.mask_id,
    )


def expected_masking(masker: Masker) -> dict[str, float]:
    """The shares that the config asks for."""
    treatment = masker.treatment
    shares = expected_shares(treatment.mask, treatment.random, treatment.vocab_size)
    return {"masked_share": masker.config.rate, **shares}


def masked_example(masker: Masker, batch: Batch, note: str = "") -> Example:
    """The one row of a batch."""
    size = batch.tokens
    row = masked_row(
        batch.inputs["input_ids"].numpy()[0, :size],
        batch.inputs["positions"].numpy(),
        batch.targets["mlm"].numpy(),
        masker.treatment.mask_id,
        set(masker.specials.values()),
    )
    return Example({"input": row}, note)


def row_lengths(batch: Batch) -> Ints:
    """[B] tokens of each row that are no padding."""
    return np.asarray(batch.inputs["attention_mask"].numpy().sum(axis=1), dtype=np.int64)
