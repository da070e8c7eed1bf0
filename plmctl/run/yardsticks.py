"""The loss of counts with context, beside the loss of a pretraining: what a network must beat.

For a causal model these are the n-grams of its training text, for a masked one its tokens between
both neighbours, on the targets of the run's validation. Each row begins without context, for the
counts as for the network. Terms of the loss that are of another kind, such as the class of a pair,
have the loss of frequencies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plmctl.arrays import IGNORE, Bools, Floats, Ints
from plmctl.counting.neighbours import Neighbours, neighbours_of
from plmctl.counting.ngrams import ORDER, depths_of, ngrams_of
from plmctl.errors import PlmError
from plmctl.run.display import say

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plmctl.config.base import ObjectiveConfig
    from plmctl.corpus.prepared import PreparedText
    from plmctl.models.base import StoreExamples
    from plmctl.models.batch import Batch
    from plmctl.objectives.base import Objective
    from plmctl.run.prepared import Prepared
    from plmctl.tokenization.load import Vocab

    AnyObjective = Objective[ObjectiveConfig]

NGRAMS = f"{ORDER}-gram"
"""The name of their loss among the metrics of a run."""
_FEWEST_TOKENS = 1_000
"""Of a shorter text, counts say nothing."""
_MOST_TARGETS = 2_000_000
"""Tokens of the rows that are scored, at most: five seconds. More rows of a long validation are
left out."""

Losses = dict[str, float]


def yardsticks(
    prepared: Prepared,
    text: PreparedText,
    valid: StoreExamples | None,
    rows: int | None,
    alone: Losses,
) -> dict[str, Losses]:
    """The losses by the name of what is counted: ``5-gram``, ``both neighbours``.

    If there is none, a line says why. Each objective of a mixture has its own: ``5-gram and both
    neighbours``.

    Args:
        valid: The objective over the validation text.
        rows: Validation rows that the run scores; None: all.
        alone: The losses of frequencies.
    """
    losses, methods = dict(alone), list[str]()
    wanted = prepared.config.log.ngram == "auto"
    for name, objective in prepared.objective.alone().items() if wanted else ():
        if objective.COUNTED is None:
            continue
        counted, score = {
            "ngrams": (NGRAMS, _ngrams),
            "neighbours": ("both neighbours", _neighbours),
        }[objective.COUNTED]
        term = f"{name}/{objective.first_term}" if name else objective.first_term
        try:
            if valid is None:
                raise PlmError("there is no validation text")
            if text.train.num_tokens < _FEWEST_TOKENS:
                raise PlmError(f"the training text has only {text.train.num_tokens:,} tokens")
            batches = _batches(prepared, valid.alternatives()[name], rows)
            loss = score(prepared.vocab, objective, text, batches, term)
        except (PlmError, OSError, MemoryError) as error:
            say(f"no {counted} beside the loss: {error or 'out of memory'}")
            continue
        losses[term] = loss
        if "loss" in alone:
            losses["loss"] += valid.weights[term] * (loss - alone[term])
        methods += [] if counted in methods else [counted]
    return {" and ".join(methods): losses} if methods else {}


def _batches(prepared: Prepared, valid: StoreExamples, rows: int | None) -> Iterator[Batch]:
    from plmctl.training.data import scoring_batches
    from plmctl.training.plan import Slicing

    seq_len = prepared.config.train.phases[-1].seq_len
    most = min(rows or len(valid), max(1, _MOST_TARGETS // seq_len))
    return scoring_batches(valid, Slicing(512, 512), most)


# --- Causal models ---


def _ngrams(
    vocab: Vocab, objective: AnyObjective, text: PreparedText, batches: Iterator[Batch], term: str
) -> float:
    separator = objective.separator(vocab)
    grams = ngrams_of(text.train, separator, say)
    total, count = 0.0, 0
    for batch in batches:
        ids, scored = _running_text(batch, term)
        begins = ~scored if separator is None else ~scored | (ids == separator)
        given = grams.probabilities(ids.ravel(), depths_of(begins).ravel())
        total -= float(np.log(given[scored.ravel()]).sum())
        count += int(scored.sum())
    return total / count


def _running_text(batch: Batch, term: str) -> tuple[Ints, Bools]:
    """[B, T + 1] the tokens of each row with its last target, and which of them are targets."""
    targets = batch.targets[term].numpy()
    scored = np.pad(targets != IGNORE, ((0, 0), (1, 0)))
    ids = np.concatenate([batch.inputs["input_ids"].numpy(), targets[:, -1:]], axis=1)
    return np.where(ids == IGNORE, 0, ids), scored


# --- Masked models ---


def _neighbours(
    vocab: Vocab, objective: AnyObjective, text: PreparedText, batches: Iterator[Batch], term: str
) -> float:
    parts = [_around(batch, term, vocab, objective.TARGETS_AFTER) for batch in batches]
    *around, targets = np.concatenate(parts, axis=1)
    given = _given(neighbours_of(text.train, vocab.size, say), around, targets)
    # [CLS] and [SEP], which RoBERTa may predict, are known by their places.
    given[np.isin(targets, _ids(vocab.cls, vocab.sep))] = 1
    return float(-np.log(given).mean())


def _around(batch: Batch, term: str, vocab: Vocab, after: int) -> Ints:
    """[4, K] the token before each target, what stands in its place, the one after it, and it.

    A neighbour is what the network sees: masked or special it is not known, which is -1. A place
    that is masked is -1 too. A target is ``after`` tokens behind its position.
    """
    ids, targets = batch.inputs["input_ids"].numpy(), batch.targets[term].numpy()
    places = batch.inputs["positions"].numpy()[targets != IGNORE]
    seen = np.where(ids == vocab.mask, -1, ids)
    row, column = np.divmod(places, ids.shape[1])
    known = np.where(np.isin(ids, _ids(vocab.mask, vocab.cls, vocab.sep, vocab.pad)), -1, ids)
    sides = np.pad(known, ((0, 0), (1, 1 + after)), constant_values=-1)
    shown = np.pad(seen, ((0, 0), (0, after)), constant_values=-1)
    column = column + after
    around = sides[row, column], shown[row, column], sides[row, column + 2]
    return np.stack([*around, targets[targets != IGNORE]])


def _ids(*ids: int | None) -> list[int]:
    return [one for one in ids if one is not None]


def _given(counted: Neighbours, around: Sequence[Ints], targets: Ints) -> Floats:
    """[K] the probability of each target.

    A token that stands in its place is the target or a random one, all of them alike. Which, is
    weighed by how often tokens stay and by how probable it is between its neighbours.
    """
    before, seen, after = around
    given = counted.probabilities(before, targets, after)
    shown = np.flatnonzero(seen >= 0)
    stays = seen[shown] == targets[shown]
    share = (stays.sum() + 1) / (len(shown) + 2)
    expected = counted.probabilities(before[shown], seen[shown], after[shown])
    kept, drawn = share * expected, (1 - share) / counted.alone.vocab_size
    given[shown] = (kept * stays + drawn * given[shown]) / (kept + drawn)
    return given
