"""The loss of counts with context, beside the loss of a pretraining: what a network must beat.

For a causal model these are the n-grams of its training text, on the targets of its validation.
Each row begins without context, for the n-grams as for the network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plmctl.arrays import IGNORE, Bools, Ints
from plmctl.counting.ngrams import ORDER, depths_of, ngrams_of
from plmctl.errors import PlmError
from plmctl.run.display import say

if TYPE_CHECKING:
    from plmctl.corpus.prepared import PreparedText
    from plmctl.models.base import StoreExamples
    from plmctl.models.batch import Batch
    from plmctl.run.prepared import Prepared

NGRAMS = f"{ORDER}-gram"
"""The name of their loss among the metrics of a run."""
_FEWEST_TOKENS = 1_000
"""Of a shorter text, counts say nothing."""
_MOST_TARGETS = 2_000_000
"""Targets that are scored, at most: five seconds. More rows of a long validation are left out."""

Losses = dict[str, float]


def yardsticks(
    prepared: Prepared, text: PreparedText, valid: StoreExamples | None, rows: int | None
) -> dict[str, Losses]:
    """The losses, as of ``frequency_losses``, by the name of what is counted: ``5-gram``.

    If there is none, a line says why.

    Args:
        valid: The objective over the validation text.
        rows: Validation rows that the run scores; None: all.
    """
    objective, wanted = prepared.objective, prepared.config.log.ngram == "auto"
    if not (wanted and objective.COUNTED == "ngrams"):
        return {}
    try:
        if valid is None:
            raise PlmError("there is no validation text")
        if text.train.num_tokens < _FEWEST_TOKENS:
            raise PlmError(f"the training text has only {text.train.num_tokens:,} tokens")
        loss = _ngram_loss(prepared, text, valid, rows)
    except (PlmError, OSError, MemoryError) as error:
        say(f"no {NGRAMS} beside the loss: {error or 'out of memory'}")
        return {}
    return {NGRAMS: dict.fromkeys((*objective.LOSS_TERMS, "loss"), loss)}


def _ngram_loss(
    prepared: Prepared, text: PreparedText, valid: StoreExamples, rows: int | None
) -> float:
    from plmctl.training.data import scoring_batches
    from plmctl.training.plan import Slicing

    separator = prepared.objective.separator(prepared.vocab)
    grams = ngrams_of(text.train, separator, say)
    seq_len = prepared.config.train.phases[-1].seq_len
    most = min(rows or len(valid), max(1, _MOST_TARGETS // seq_len))
    total, count = 0.0, 0
    for batch in scoring_batches(valid, Slicing(512, 512), most):
        ids, scored = _running_text(batch)
        begins = ~scored if separator is None else ~scored | (ids == separator)
        given = grams.probabilities(ids.ravel(), depths_of(begins).ravel())
        total -= float(np.log(given[scored.ravel()]).sum())
        count += int(scored.sum())
    return total / count


def _running_text(batch: Batch) -> tuple[Ints, Bools]:
    """[B, T + 1] the tokens of each row with its last target, and which of them are targets."""
    (targets,) = (each.numpy() for each in batch.targets.values())
    scored = np.pad(targets != IGNORE, ((0, 0), (1, 0)))
    ids = np.concatenate([batch.inputs["input_ids"].numpy(), targets[:, -1:]], axis=1)
    return np.where(ids == IGNORE, 0, ids), scored
