"""Which positions are masked, and what replaces their tokens: exact counts, vectorised, keyed.

Sources: google-research/bert, create_pretraining_data.py (``create_masked_lm_predictions``), the
function of that name in google-research/albert for runs of words, and fairseq's
mask_tokens_dataset.py for the probabilistic count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plmctl.arrays import Bools, Floats, Ints
from plmctl.examples.keys import Keys, below, fold, stream, uniform


@dataclass(frozen=True)
class Treatment:
    """What replaces the token at a chosen position: the mask, a random token, or nothing."""

    mask_id: int
    vocab_size: int
    mask: float = 0.8
    random: float = 0.1
    never: tuple[int, ...] = ()
    """Random tokens are uniform over all ids but these; BERT's include special tokens."""


def count_exact(lengths: Ints, rate: float, maximum: int | None) -> Ints:
    """BERT's number of predictions: round(rate * length), at least 1, at most ``maximum``.

    Args:
        lengths: [B] lengths with special tokens.
        maximum: ``max_predictions_per_seq``, or None.

    Returns:
        [B] counts; halves round to even, as Python's ``round``.
    """
    counts: Ints = np.maximum(np.rint(rate * lengths).astype(np.int64), 1)
    return counts if maximum is None else np.minimum(counts, maximum)


def count_probabilistic(lengths: Ints, rate: float, keys: Keys) -> Ints:
    """RoBERTa's number of predictions, floor(rate * length + U): its mean is exact. [B] -> [B]."""
    draws = uniform(fold(keys, stream("count")))
    return np.asarray(np.floor(rate * lengths + draws), dtype=np.int64)


def choose(candidates: Bools, counts: Ints, keys: Keys) -> Bools:
    """Choose exactly ``counts`` of the candidates in each row, all subsets equally likely.

    Args:
        candidates: [B, L] positions that may be chosen.
        counts: [B] how many; in a row with fewer candidates all are chosen.
        keys: [B] one key per row.

    Returns:
        [B, L] chosen positions.
    """
    draws = fold(keys[:, None], stream("choose"), np.arange(candidates.shape[1]))
    # The lowest bit is dropped so that non-candidates come last; ties of 63 bits do not happen.
    draws = np.where(candidates, draws >> np.uint64(1), np.uint64(2**64 - 1))
    wanted = np.minimum(counts, candidates.sum(axis=1))
    ordered = np.sort(draws, axis=1)
    limit = ordered[np.arange(len(ordered)), np.maximum(wanted - 1, 0)][:, None]
    chosen: Bools = candidates & (draws <= limit) & (wanted > 0)[:, None]
    return chosen


def ngram_shares(longest: int, *, favor_shorter: bool = True) -> Floats:
    """ALBERT's probability of runs of 1 to ``longest`` words, in proportion to 1 / n. -> [longest].

    ``favor_shorter=False`` reverses them, as the flag of the published code does.
    """
    weights = 1 / np.arange(1, longest + 1)
    shares: Floats = weights / weights.sum()
    return shares if favor_shorter else shares[::-1]


def choose_words(
    candidates: Bools, starts: Bools, counts: Ints, keys: Keys, shares: Floats
) -> Bools:
    """Choose runs of whole words, in random order, until ``counts`` tokens are covered.

    From each word in turn, a run of n words starts, n drawn with probability ``shares``. A run that
    is longer than the rest of the count gets fewer words, and is skipped if even one word is too
    long; a run that overlaps a chosen one is skipped too. Runs end at the row's end. With
    ``shares`` [1.0] this is BERT's whole-word masking.

    Words are found in the sequence of a row's candidates: a token at the start of the second
    segment that starts no word (truncation may cut words) belongs to the last word of the first,
    and runs may cross the boundary, both as in the published code.

    Args:
        candidates: [B, L] positions that may be chosen.
        starts: [B, L] whether a word starts here.
        counts: [B] most positions to choose.
        keys: [B] one key per row.
        shares: [N] probability of each number of words.

    Returns:
        [B, L] chosen positions.
    """
    number, sizes = _words(candidates, starts)
    words, most = (sizes > 0).sum(axis=1), len(shares)
    which = np.arange(sizes.shape[1])
    draws = fold(keys[:, None], stream("choose"), which) >> np.uint64(1)
    order = np.argsort(np.where(sizes > 0, draws, np.uint64(2**64 - 1)), axis=1)
    chances = uniform(fold(keys[:, None], stream("ngram"), which))
    drawn = 1 + np.searchsorted(np.cumsum(shares)[:-1], chances, side="right")
    # Tokens before each word; beyond the last word the total, so that runs end there.
    before = np.cumsum(np.pad(sizes, ((0, 0), (1, most - 1))), axis=1)
    covered = np.zeros((len(keys), sizes.shape[1] + most), dtype=bool)
    left, step = counts.copy(), np.arange(most)
    for rank in range(sizes.shape[1]):  # each choice depends on those before; all rows at once
        rows = np.flatnonzero((left > 0) & (rank < words))
        if not len(rows):
            break
        word = order[rows, rank]
        run = word[:, None] + step
        tokens = before[rows[:, None], run + 1] - before[rows, word][:, None]
        inside = (tokens <= left[rows, None]) & (step < drawn[rows, word][:, None])
        fits = inside[:, 0] & ~(covered[rows[:, None], run] & inside).any(axis=1)
        rows, run, inside, tokens = rows[fits], run[fits], inside[fits], tokens[fits]
        covered[rows[:, None], run] |= inside
        left[rows] -= np.max(tokens, axis=1, initial=0, where=inside)
    chosen: Bools = candidates & np.take_along_axis(covered, number, axis=1)
    return chosen


def _words(candidates: Bools, starts: Bools) -> tuple[Ints, Ints]:
    """The number of the word at each position [B, L], and the tokens of each word [B, words]."""
    place = np.cumsum(candidates, axis=1)
    begins = candidates & (starts | (place == 1))  # a row's first candidate starts a word
    number: Ints = np.maximum(np.cumsum(begins, axis=1) - 1, 0)
    width = int(number.max()) + 1
    flat = (number + width * np.arange(len(number))[:, None])[candidates]
    sizes = np.bincount(flat, minlength=width * len(number)).reshape(-1, width)
    return number, sizes


def replace(ids: Ints, chosen: Bools, keys: Keys, treatment: Treatment) -> Ints:
    """The input ids: each chosen position independently masked, random, or kept.

    Args:
        ids: [B, L] original ids.
        chosen: [B, L] positions to predict.
        keys: [B] one key per row.

    Returns:
        [B, L] a new array.
    """
    at = np.flatnonzero(chosen)
    row, column = np.divmod(at, chosen.shape[1])
    draws = fold(fold(keys, stream("replace"))[row], column)
    kind = uniform(fold(draws, 0))
    random = random_ids(fold(draws, 1), treatment)
    flat = ids.flatten()
    changed = np.where(kind < treatment.mask + treatment.random, random, flat[at])
    flat[at] = np.where(kind < treatment.mask, treatment.mask_id, changed)
    return flat.reshape(ids.shape)


def random_ids(keys: Keys, treatment: Treatment) -> Ints:
    """Ids [...] drawn by keys [...], all alike but those of ``never``."""
    never = sorted(set(treatment.never))
    random = below(keys, treatment.vocab_size - len(never))
    for id_ in never:  # a handful: each shifts the ids from it on up by one
        random = random + (random >= id_)
    return random


# --- Spans that tile a row, each treated as one (GPT-BERT) ---
#
# Source: ltgoslo/gpt-bert, pretraining/dataset.py (``SpanMaskingStrategy`` and ``apply_mask``).


def spans_of(keys: Keys, width: int, longest: int) -> Ints:
    """[B, width] the number of the span at each position; spans have 1 to ``longest`` positions.

    Args:
        keys: [B] one key per row.
    """
    draws = fold(keys[:, None], stream("spans"), np.arange(width))
    starts = np.cumsum(1 + below(draws, longest), axis=1)  # of all but the first
    row, number = np.nonzero(starts < width)
    begins = np.zeros((len(keys), width), dtype=np.int64)
    begins[row, starts[row, number]] = 1
    return np.cumsum(begins, axis=1)


def choose_spans(candidates: Bools, spans: Ints, times: Ints, rate: float, keys: Keys) -> Bools:
    """[B, W] the positions to predict: spans in random order, until they have enough candidates.

    Enough are max(1, floor(rate * candidates + U)); of the last span all positions are chosen. A
    position that was masked before comes later: the draw of its span counts e times as much for
    each time.

    Args:
        candidates: [B, W] positions that may be chosen.
        spans: [B, W] as of ``spans_of``.
        times: [B, W] how often each position was masked before.
        keys: [B] one key per row.
    """
    counts = count_probabilistic(candidates.sum(axis=1), rate, keys)
    order = uniform(fold(keys[:, None], stream("choose"), spans)) * np.exp(times)
    order = np.where(candidates, order, np.inf)
    last = np.sort(order, axis=1)[np.arange(len(order)), np.maximum(counts, 1) - 1]
    return np.asarray(candidates & (order <= last[:, None]), dtype=bool)


def replace_spans(ids: Ints, chosen: Bools, spans: Ints, keys: Keys, treatment: Treatment) -> Ints:
    """The ids [B, W] with each chosen span masked, random or kept as one.

    Args:
        ids: [B, W] original ids.
        chosen: [B, W].
        spans: [B, W].
        keys: [B] one key per row.
    """
    kind = uniform(fold(keys[:, None], stream("treat"), spans))
    places = np.arange(ids.shape[1])
    random = random_ids(fold(keys[:, None], stream("replace"), places), treatment)
    changed = np.where(kind < treatment.random, random, ids)
    masked = kind >= 1 - treatment.mask
    return np.where(chosen, np.where(masked, treatment.mask_id, changed), ids)


# --- Choosing rare tokens more often than frequent ones (XLM, DistilBERT) ---
#
# Source: huggingface/transformers-research-projects, distillation/distiller.py, which chooses over
# a batch as a whole; here each row has its own share, so that a row does not depend on its
# neighbours.


def rarity(counts: Ints, smoothing: float) -> Floats:
    """Weights count ** -smoothing of tokens; a count of 0 is treated as 1.

    Args:
        counts: [V] how often each token occurs.
        smoothing: 0: all weights are equal; published: 0.7.
    """
    weights: Floats = np.maximum(counts, 1) ** -smoothing
    return weights


def choose_weighted(weights: Floats, counts: Ints, keys: Keys) -> Bools:
    """Choose ``counts`` positions in each row, one after the other in proportion to ``weights``.

    The method is that of exponential clocks (Efraimidis and Spirakis, 2006): draws divided by the
    weights, the smallest are chosen.

    Args:
        weights: [B, L], 0 at positions that may not be chosen.
        counts: [B] how many; in a row with fewer candidates all are chosen.
        keys: [B] one key per row.

    Returns:
        [B, L] chosen positions.
    """
    draws = uniform(fold(keys[:, None], stream("choose"), np.arange(weights.shape[1])))
    candidates = weights > 0
    clocks = np.full(weights.shape, np.inf)
    np.divide(-np.log1p(-draws), weights, out=clocks, where=candidates)
    rank = np.argsort(np.argsort(clocks, axis=1), axis=1)
    chosen: Bools = candidates & (rank < counts[:, None])
    return chosen
