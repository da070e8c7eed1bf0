"""The loss of token frequencies alone: what counting gives, beside the loss of a pretraining.

It is the cross-entropy, in nats, of the objective's own targets on the validation rows, predicted
by how often each target occurs in the training text and by nothing around it. A masked or causal
network learns this first; what it learns from context is below.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from plmctl.arrays import IGNORE, Floats, Ints
from plmctl.corpus.cooccurrence import blocks
from plmctl.corpus.store import Corpus, MixedStore, TokenStore, cached_array, stores_of

if TYPE_CHECKING:
    from plmctl.models.base import StoreExamples
    from plmctl.models.batch import Batch

_MOST_TOKENS = 20_000_000
"""Of a longer text, blocks at equal distances are counted."""
_TARGETS_FROM = 200_000
"""Tokens of the training rows whose targets are counted, for targets that are not in the text."""
_ROWS = 1_000
"""Validation rows that are scored, at most: as many as ``log.validate_samples`` has by default."""
_UNSEEN = 0.5
"""The count of a target that was not seen."""


def frequency_losses(
    corpus: Corpus, train: StoreExamples, valid: StoreExamples | None, rows: int | None
) -> dict[str, float]:
    """The loss of each term by counts alone, and ``loss``, their weighted sum.

    Targets that the text does not have (separators, sentinels, the classes of a pair) and those
    that an objective prefers are counted in training rows. Of both ways the lower loss is given.

    Args:
        valid: The objective over the validation text; None: training rows are scored.
        rows: Validation rows that the run scores; None: all.

    Returns:
        By term, those that are no cross-entropy of targets left out; ``loss`` only if none is.
    """
    from plmctl.training.data import scoring_batches
    from plmctl.training.plan import Slicing

    length = max(1, round(corpus.num_tokens / max(len(train), 1)))
    slicing = Slicing(64, 64)
    counted = _targets(scoring_batches(train, slicing, max(64, _TARGETS_FROM // length)))
    scored = counted
    if valid is not None:
        scored = _targets(scoring_batches(valid, slicing, min(rows or _ROWS, _ROWS)))
    shares, losses = _shares(corpus), {}
    terms = [term for term in train.counted_terms if len(scored[term]) and len(counted[term])]
    for term in terms:
        own = np.bincount(counted[term], minlength=scored[term].max() + 1).astype(np.float64)
        losses[term] = _cross_entropy(own, scored[term])  # classes of a pair are no tokens
        size = max(own.size, shares.size)
        own, text = (np.pad(each, (0, size - each.size)) for each in (own, shares))
        missing = own[text == 0].sum() / own.sum()  # separators, sentinels
        mixed = (1 - missing) * text + np.where(text == 0, own / own.sum(), 0)
        mixed *= max(own.sum(), corpus.num_tokens)
        losses[term] = min(losses[term], _cross_entropy(mixed, scored[term]))
    if set(losses) == set(train.loss_terms):
        losses["loss"] = sum(train.weights[term] * loss for term, loss in losses.items())
    return losses


def _targets(batches: Iterable[Batch]) -> dict[str, Ints]:
    """The targets [N] of each term."""
    parts = defaultdict(list)
    for batch in batches:
        for term, targets in batch.targets.items():
            ids = targets.numpy().ravel()
            parts[term].append(ids[ids != IGNORE])
    return defaultdict(
        lambda: np.empty(0, np.int64), {term: np.concatenate(ids) for term, ids in parts.items()}
    )


def _cross_entropy(counts: Floats, targets: Ints) -> float:
    """Cross-entropy in nats of targets [N] by counts [V]; what was not seen counts ``_UNSEEN``."""
    smooth = np.where(counts > 0, counts, _UNSEEN)
    return float(-np.log(smooth[targets] / smooth.sum()).mean())


def _shares(corpus: Corpus) -> Floats:
    """[V] share of each id in a text; of several, by their weights."""
    stores = stores_of(corpus)
    weights: Sequence[float] = corpus.weights if isinstance(corpus, MixedStore) else (1.0,)
    size = max(store.vocab_size for store in stores)
    total = np.zeros(size)
    for store, weight in zip(stores, weights, strict=True):
        counts = _counts(store)
        total[: counts.size] += weight * counts / max(counts.sum(), 1)
    return total / sum(weights)


def _counts(store: TokenStore) -> Ints:
    """[V] how often each id occurs; saved beside the text."""

    def count() -> list[Ints]:
        total = np.zeros(store.vocab_size, np.int64)
        for first, last in blocks(store.num_tokens, _MOST_TOKENS):
            total += np.bincount(store.tokens(np.arange(first, last)), minlength=store.vocab_size)
        return [total]

    return cached_array(store, ["frequencies", _MOST_TOKENS], np.int64, count)
