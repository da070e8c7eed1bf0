"""What the masked objectives share: rows with masked tokens, and pairs of segments with a label."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np

from plmctl.arrays import Bools, Ints
from plmctl.config.sections import MaskingConfig, progress_at
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
from plmctl.examples.keys import Keys, below, fold, stream
from plmctl.examples.masking import (
    Treatment,
    choose,
    choose_words,
    count_exact,
    count_probabilistic,
    ngram_shares,
    replace,
)
from plmctl.examples.packing import (
    CLS,
    PAD,
    SEP,
    LineStream,
    RowLayout,
    WhiteSpace,
    block_edges,
    fill,
    layout,
)
from plmctl.examples.pairing import Pairs, Records, record_type
from plmctl.hashing import digest_of_json
from plmctl.objectives.base import Objective, ObjectiveExamples
from plmctl.tokenization.load import TOKEN_NAMES

if TYPE_CHECKING:
    from plmctl.corpus.store import TokenStore
    from plmctl.models.batch import Batch
    from plmctl.tokenization.load import Vocab


M = TypeVar("M", bound=MaskingConfig, covariant=True)

# --- From a layout to a masked batch ---


_TOGETHER = 1 << 18
"""Spans that are stripped together."""

ROW_TOKENS = ("mask", "cls", "sep", "pad")
"""Fields of ``Vocab`` that a masked objective requires."""


def white_space(vocab: Vocab) -> WhiteSpace | None:
    """What is white space among the tokens; None if the tokenizer keeps none."""
    return WhiteSpace(vocab.white, vocab.size) if vocab.white else None


def white_key(vocab: Vocab) -> tuple[str, ...]:
    """The part of a cache's key that says what is white space; nothing if there is none."""
    pieces = [(id_, data.hex()) for id_, data in vocab.white]
    return (digest_of_json(pieces),) if pieces else ()


def stripped_spans(
    store: TokenStore, vocab: Vocab, rule: tuple[object, ...], starts: Ints, ends: Ints
) -> tuple[Ints, Ints]:
    """Spans of a store without the white space at their edges, such as line ends.

    Args:
        rule: Names the spans: the cache's key.
        starts: [N] token positions.
        ends: [N].
    """
    white = white_space(vocab)
    if white is None:
        return starts, ends

    def parts(edge: int) -> Iterator[Ints]:
        for first in range(0, len(starts), _TOGETHER):
            part = slice(first, first + _TOGETHER)
            yield white.stripped(starts[part], ends[part], store.tokens)[edge]

    edges = (
        cached_array(
            store, ("stripped", edge, *white_key(vocab), *rule), np.int64, partial(parts, edge)
        )
        for edge in (0, 1)
    )
    return next(edges), next(edges)


def document_rows(store: TokenStore, vocab: Vocab, block: int) -> tuple[Ints, Ints]:
    """Rows of at most ``block`` tokens, whole sentences of one document; see ``block_edges``.

    Returns:
        starts, ends: token positions, each [rows], without the white space at the edges.
    """
    edges = cached_array(
        store,
        ("rows of documents", block),
        np.int64,
        lambda: block_edges(store.sentences, store.documents, block),
    )
    return stripped_spans(store, vocab, ("rows of documents", block), edges[:-1], edges[1:])


@dataclass(frozen=True)
class Masker:
    """Reads a layout's tokens and masks them.

    Attributes:
        white: What is white space among the tokens, if the tokenizer keeps it.
    """

    config: MaskingConfig
    store: TokenStore
    treatment: Treatment
    specials: dict[int, int]
    key: int
    rate: float
    white: WhiteSpace | None

    def batch(self, layout: RowLayout, passes: Ints, samples: Ints) -> Batch:
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

        from plmctl.models.batch import Batch, TargetList

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
            lists=(TargetList(("positions",), ("mlm",)),),
        )

    def _choose(self, layout: RowLayout, keys: Keys) -> Bools:
        """[B, L] the positions to predict."""
        config = self.config
        candidates = layout.source != PAD if config.mask_specials else layout.source >= 0
        if config.count == "exact":
            counts = count_exact(layout.lengths, self.rate, config.max_predictions)
        else:
            counts = count_probabilistic(layout.lengths, self.rate, keys)
            counts = np.minimum(counts, config.max_predictions or counts.max())
        if config.unit == "token":
            return choose(candidates, counts, keys)
        starts = self.store.word_starts(np.maximum(layout.source, 0))
        if config.mask_specials:  # a special token is a word, even before a truncated word
            special = layout.source < 0
            starts |= special
            starts[:, 1:] |= special[:, :-1]
        longest = config.max_ngram if config.unit == "ngram" else 1
        shares = ngram_shares(longest, favor_shorter=config.favor_shorter)
        return choose_words(candidates, starts, counts, keys, shares)


def masker(config: MaskingConfig, store: TokenStore, vocab: Vocab, seed: int) -> Masker:
    """The masker of a config, a store and a tokenizer, with the rate of the run's last step.

    Raises:
        ConfigError: The tokenizer lacks a special token that masked rows need.
    """
    mask, cls, sep, pad = special_ids(config.name, vocab)
    special = (vocab.pad, vocab.unk, vocab.cls, vocab.sep, vocab.mask, vocab.bos, vocab.eos)
    never = () if config.random_specials else tuple(id_ for id_ in special if id_ is not None)
    treatment = Treatment(mask, vocab.size, config.mask_share, config.random_share, never)
    key = int(fold(seed, stream("mask")))
    specials = {PAD: pad, CLS: cls, SEP: sep}
    rate, white = config.rate_at(1.0), white_space(vocab)
    return Masker(config, store, treatment, specials, key, rate, white)


def special_ids(name: str, vocab: Vocab) -> list[int]:
    """Ids of ``ROW_TOKENS``.

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


# --- Objectives over rows with masked tokens ---


# Share of tokens that start a word. English has 0.86 (8,000 ids) to 0.96 (ids learned from little
# text), Chinese characters have 0.995.
_ALL_START = 0.99

_TOO_LONG = 0.2  # share of the text in words that are too long to be masked


class MaskedObjective(Objective[M]):
    """Predict masked tokens."""

    TOKENS = ROW_TOKENS
    SAMPLES = "fill-mask"
    COUNTED = "neighbours"

    def sample(self, ids: Ints, starts: Bools, key: int, vocab: Vocab) -> tuple[Ints, Ints] | None:
        """See ``masked_word``."""
        return masked_word(ids, starts, key, vocab)

    def check_text(self, store: TokenStore, seq_len: int) -> None:
        """Refuse text with which whole-word masking would not do what the config says.

        Raises:
            ConfigError: Nearly every token is a word, so that masking words is masking tokens; or
                much of the text is in words with more tokens than a sequence predicts, which would
                never be masked.
        """
        config = self.config
        if config.unit == "token" or not store.num_tokens:
            return
        sizes = word_sizes(store)
        share = len(sizes) / sizes.sum()
        if config.unit == "word" and share > _ALL_START:
            raise ConfigError(
                f"objective.unit: word, but {share:.1%} of the tokens are whole words, so this "
                "would mask tokens",
                "for Chinese set `data.words: jieba`, which finds words of several characters, or "
                "`data.words: marked` for text that is already segmented; otherwise use "
                "`unit: token`",
            )
        rate = max(config.rate_at(0.0), config.rate_at(1.0))
        most = int(count_exact(np.array([seq_len]), rate, config.max_predictions)[0])
        long = sizes[sizes > most].sum() / sizes.sum()
        if long > _TOO_LONG:
            raise ConfigError(
                f"objective.unit: {config.unit}, but {long:.0%} of the tokens are in words of more "
                f"than {most} tokens, the most that a sequence of {seq_len} predicts: they would "
                "never be masked",
                "text without spaces is one long word to this tokenizer; use `unit: token`, a "
                "larger vocabulary or, if words are only a little longer, longer sequences",
            )

    def targets_per_token(self) -> float:
        """The share of the tokens that is masked, on average over the run."""
        return self.config.rate_at(0.5)


def masked_word(ids: Ints, starts: Bools, key: int, vocab: Vocab) -> tuple[Ints, Ints] | None:
    """A sentence with a mask for a word of one token, neither its first nor its last."""
    words = 1 + np.flatnonzero(starts[1:-1] & starts[2:])
    if not len(words):
        return None
    at = int(words[below(key, len(words))])
    assert vocab.mask is not None
    masked = ids.copy()
    masked[at] = vocab.mask
    return masked, ids[at : at + 1]


class MaskedExamples(ObjectiveExamples[M]):
    """Rows with masked tokens; a subclass lays them out."""

    def __init__(self, objective: MaskedObjective[M], masker: Masker) -> None:
        super().__init__(objective, masker.store)
        self.masker = masker

    @abstractmethod
    def rows(self, passes: Ints, samples: Ints) -> RowLayout:
        """The rows of the samples [B] of the passes [B] over the corpus."""

    def passes(self, epochs: Ints) -> Ints:
        """[B] which set of masks and pairs each epoch has; epochs may share one."""
        return np.array([self.masker.config.pass_of(epoch) for epoch in epochs.tolist()])

    def masked(self, epochs: Ints, samples: Ints) -> Batch:
        """The rows ``samples`` with the masks of their epochs; see ``Masker.batch``."""
        passes = self.passes(epochs)
        return self.masker.batch(self.rows(passes, samples), passes, samples)

    def at_step(self, step: int, steps: int) -> Self:
        """The same rows, masked at the rate of a step."""
        rate = self.masker.config.rate_at(progress_at(step, steps))
        if rate == self.masker.rate:
            return self
        changed = copy(self)
        changed.masker = dataclasses.replace(self.masker, rate=rate)
        return changed

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """``masked``; a subclass may add targets."""
        return self.masked(epochs, samples)

    def tally(self, epochs: Ints, samples: Ints) -> Tallies:
        """Statistics of the rows ``samples``."""
        batch = self.masked(epochs, samples)
        return masked_tallies(
            batch.inputs["input_ids"].numpy(),
            row_lengths(batch),
            batch.inputs["positions"].numpy(),
            batch.targets["mlm"].numpy(),
            self.masker.treatment.mask_id,
        )

    def expected(self) -> dict[str, float]:
        """The shares that the config sets."""
        treatment = self.masker.treatment
        shares = expected_shares(treatment.mask, treatment.random, treatment.vocab_size)
        return {"masked_share": self.masker.rate, **shares}

    def example(self, epoch: int, sample: int) -> Example:
        """One row for reading."""
        batch = self.masked(np.array([epoch]), np.array([sample]))
        row = masked_row(
            batch.inputs["input_ids"].numpy()[0, : batch.tokens],
            batch.inputs["positions"].numpy(),
            batch.targets["mlm"].numpy(),
            self.masker.treatment.mask_id,
            set(self.masker.specials.values()),
        )
        return Example({"input": row})


def row_lengths(batch: Batch) -> Ints:
    """[B] tokens of each row that are not padding."""
    return np.asarray(batch.inputs["attention_mask"].numpy().sum(axis=1), dtype=np.int64)


class MaskedRows(MaskedExamples[M]):
    """Rows of one stretch of text each.

    Attributes:
        starts: [N] where each row starts, in the store or in ``lines``.
        ends: [N].
        lines: Sentences with their separators, for RoBERTa's packings.
    """

    def __init__(
        self,
        objective: MaskedObjective[M],
        masker: Masker,
        starts: Ints,
        ends: Ints,
        lines: LineStream | None = None,
    ) -> None:
        super().__init__(objective, masker)
        self.starts, self.ends, self.lines = starts, ends, lines

    def __len__(self) -> int:
        """Rows in an epoch."""
        return len(self.starts)

    def rows(self, passes: Ints, samples: Ints) -> RowLayout:
        """[CLS] and the text of each sample; with its separators, or with one [SEP] after it."""
        starts, ends = self.starts[samples], self.ends[samples]
        return self.lines.layout(starts, ends) if self.lines else layout([starts], [ends])


# --- Pairs of segments with a label ---


@dataclass(frozen=True)
class Label:
    """The label of a pair.

    Attributes:
        name: The name of label 1 in statistics.
        meanings: The meanings of label 0, of label 1, and of label 1 if the chunk had one sentence.
    """

    name: str
    meanings: tuple[str, str, str]


NEXT_SENTENCE = Label(
    "random_next", ("B follows A", "B is from another document", "B is from another document")
)
"""BERT's."""


class MaskedPairs(MaskedExamples[MaskingConfig]):
    """Pairs of segments with masked tokens; the second loss term, if any, predicts their label.

    Args:
        pairs: The pairs of a pass over the corpus, by its number.
    """

    def __init__(
        self,
        objective: MaskedObjective[MaskingConfig],
        masker: Masker,
        pairs: Callable[[int], Records],
        label: Label,
    ) -> None:
        super().__init__(objective, masker)
        self.pairs, self.label = pairs, label

    def __len__(self) -> int:
        """Pairs in an epoch.

        Passes differ by a few pairs, since their lengths are random. Every epoch has as many
        samples as pass 0 has pairs, so that the epoch of a step is plain division and resuming
        needs no history. A longer pass is cut; of a shorter one the first pairs come twice.
        """
        return len(self.pairs(0))

    def chosen(self, passes: Ints, samples: Ints) -> Pairs:
        """[B] the pair of each sample."""
        chosen = np.empty(len(samples), self.pairs(int(passes[0])).dtype)
        for pass_ in set(passes.tolist()):
            rows, pairs = passes == pass_, self.pairs(pass_)
            chosen[rows] = pairs[samples[rows] % len(pairs)]
        return Pairs.of(chosen)

    def rows(self, passes: Ints, samples: Ints) -> RowLayout:
        """[CLS] A [SEP] B [SEP], without the white space at the edges of A and B."""
        pairs, white = self.chosen(passes, samples), self.masker.white
        segments = [(pairs.a_start, pairs.a_end), (pairs.b_start, pairs.b_end)]
        if white is not None:
            segments = [white.stripped(*segment, self.masker.store.tokens) for segment in segments]
        starts, ends = zip(*segments, strict=True)
        return layout(list(starts), list(ends))

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The pairs ``samples`` of their epochs, masked.

        Args:
            epochs: [B].
            samples: [B], each below ``len(self)``.

        Returns:
            As ``Masker.batch``, and the labels [B] as the target of the second loss term, if any.
        """
        import torch

        passes = self.passes(epochs)
        batch = self.masker.batch(self.rows(passes, samples), passes, samples)
        for term in self.loss_terms[1:]:
            batch.targets[term] = torch.from_numpy(self.chosen(passes, samples).label)
        return batch

    def tally(self, epochs: Ints, samples: Ints) -> Tallies:
        """Statistics of the masks and of the pairs."""
        batch, pairs = self.masked(epochs, samples), self.chosen(self.passes(epochs), samples)
        segments = batch.inputs["token_type_ids"].numpy()
        named = pair_tallies(
            row_lengths(batch), segments, pairs.label, pairs.forced, self.label.name
        )
        return merge([super().tally(epochs, samples), named])

    def expected(self) -> dict[str, float]:
        """The shares of masks, and half of the pairs for each label."""
        return {**super().expected(), f"{self.label.name}_share_multi": 0.5}

    def example(self, epoch: int, sample: int) -> Example:
        """One pair for reading, with the meaning of its label."""
        pair = self.chosen(self.passes(np.array([epoch])), np.array([sample]))
        meaning = self.label.meanings[2 if pair.forced[0] else int(pair.label[0])]
        rows = super().example(epoch, sample).rows
        return Example(rows, f"label {pair.label[0]}: {meaning}")


def cached_pairs(
    store: TokenStore,
    seq_len: int,
    rule: tuple[object, ...],
    seed: int,
    make: Callable[[Keys], Iterator[Records]],
) -> Callable[[int], Records]:
    """The pairs of a pass by its number; each pass is computed once.

    Args:
        rule: Names the kind of pairs and the options that they depend on: the cache's key.
        make: The pairs of a pass, given its random key.
    """
    key = int(fold(seed, stream("pairs"), seq_len))
    dtype = record_type(store.num_tokens, seq_len)

    @lru_cache(maxsize=3)  # a batch may need two epochs, and their length is that of pass 0
    def pairs(pass_: int) -> Records:
        wanted = ("pairs", *rule, seq_len, key, pass_)
        return cached_array(store, wanted, dtype, lambda: make(fold(key, pass_)))

    return pairs


_WINDOWS, _WINDOW = 64, 4096  # stretches whose words are counted, and tokens of each


def word_sizes(store: TokenStore) -> Ints:
    """Tokens of each word, in stretches spread evenly over the store."""
    size = min(_WINDOW, store.num_tokens)
    count = min(_WINDOWS, store.num_tokens // size)
    first = np.linspace(0, store.num_tokens - size, count).astype(np.int64)
    starts = store.word_starts(first[:, None] + np.arange(size))
    starts[:, 0] = True  # of a word that begins before, the tokens inside count
    return np.diff(np.append(np.flatnonzero(starts), starts.size))


def check_documents(name: str, store: TokenStore, hint: str) -> None:
    """Refuse a corpus without a second document to draw random sentences from.

    Raises:
        DataError: Fewer than two documents.
    """
    if store.num_documents < 2:
        raise DataError(
            f"the objective {name!r} needs at least two documents; the corpus has one",
            f"put a blank line between documents, or {hint}",
        )
