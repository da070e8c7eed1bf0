"""Which positions are masked, and what stands there: exact counts, vectorised, keyed.

Source: google-research/bert, create_pretraining_data.py (``create_masked_lm_predictions``), and
fairseq's mask_tokens_dataset.py for the probabilistic count.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plmctl.shaping.keys import Keys, below, fold, stream, uniform

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Treatment:
    """What stands at a chosen position: the mask, a random token, or the token itself."""

    mask_id: int
    vocab_size: int
    mask: float = 0.8
    random: float = 0.1
    first_random_id: int = 0
    """Random tokens are uniform over [first_random_id, vocab_size); BERT's include specials."""


def count_exact(lengths: Ints, rate: float, maximum: int | None) -> Ints:
    """BERT's number of predictions: round(rate * length), at least 1, at most ``maximum``.

    Args:
        lengths: [B] lengths with special tokens.
        rate: Share of the length.
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
        counts: [B] how many; a row with fewer candidates gives them all.
        keys: [B] one key a row.

    Returns:
        [B, L] chosen positions.
    """
    draws = fold(keys[:, None], stream("choose"), np.arange(candidates.shape[1]))
    # One bit is given up to put non-candidates last; a tie of 63 bits is never seen.
    draws = np.where(candidates, draws >> np.uint64(1), np.uint64(2**64 - 1))
    wanted = np.minimum(counts, candidates.sum(axis=1))
    ordered = np.sort(draws, axis=1)
    limit = np.take_along_axis(ordered, np.maximum(wanted - 1, 0)[:, None], axis=1)
    chosen: Bools = candidates & (draws <= limit) & (wanted > 0)[:, None]
    return chosen


def replace(ids: Ints, chosen: Bools, keys: Keys, treatment: Treatment) -> Ints:
    """The input ids: each chosen position independently masked, random, or kept.

    Args:
        ids: [B, L] original ids.
        chosen: [B, L] positions to predict.
        keys: [B] one key a row.
        treatment: Shares and ids.

    Returns:
        [B, L] a new array.
    """
    row, column = np.nonzero(chosen)
    draws = fold(keys[row], stream("replace"), column)
    kind = uniform(fold(draws, 0))
    span = treatment.vocab_size - treatment.first_random_id
    random = treatment.first_random_id + below(fold(draws, 1), span)
    masked = ids.copy()
    masked[row, column] = np.select(
        [kind < treatment.mask, kind < treatment.mask + treatment.random],
        [np.int64(treatment.mask_id), random],
        ids[row, column],
    )
    return masked
