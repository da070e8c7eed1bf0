"""Choosing rare tokens more often than frequent ones (XLM, DistilBERT).

Source: huggingface/transformers-research-projects, distillation/distiller.py, which chooses over a
batch as a whole; here each row has its own share, so that a row does not depend on its neighbours.
"""

import numpy as np

from plmctl.arrays import Bools, Floats, Ints
from plmctl.shaping.keys import Keys, fold, stream, uniform


def rarity(counts: Ints, smoothing: float) -> Floats:
    """Weights count ** -smoothing of tokens, those that were never seen like those seen once.

    Args:
        counts: [V] how often each token was seen.
        smoothing: 0: all alike; published: 0.7.
    """
    weights: Floats = np.maximum(counts, 1) ** -smoothing
    return weights


def choose_weighted(weights: Floats, counts: Ints, keys: Keys) -> Bools:
    """Choose ``counts`` positions in each row, one after the other in proportion to ``weights``.

    The method is that of exponential clocks (Efraimidis and Spirakis, 2006): draws divided by the
    weights, the smallest are chosen.

    Args:
        weights: [B, L], 0 where nothing may be chosen.
        counts: [B] how many; a row with fewer candidates gives them all.
        keys: [B] one key a row.

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
