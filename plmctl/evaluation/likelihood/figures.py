"""Figures with their standard errors, and what they were counted on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from plmctl.errors import DataError
from plmctl.evaluation.likelihood import uncertainty
from plmctl.evaluation.likelihood.reader import Tokens
from plmctl.evaluation.likelihood.rows import Ints
from plmctl.evaluation.likelihood.scores import Floats, Scores
from plmctl.evaluation.likelihood.texts import Corpus


def ratio_figures(
    name: str,
    numerator: Floats,
    denominator: Floats | Ints,
    seed: int,
    function: Callable[[Floats], Floats] = lambda ratio: ratio,
) -> dict[str, float | None]:
    """``name``, a function of a ratio of sums over documents, and ``name_se``, by the bootstrap.

    Raises:
        DataError: There is nothing to divide by.
    """
    below = np.asarray(denominator, dtype=np.float64)
    if not below.sum():
        raise DataError("nothing to score: no text has a token that is predicted")
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        value = float(function(np.array([numerator.sum() / below.sum()]))[0])
        error = uncertainty.of_ratio(numerator, below, seed, function)
    return {name: value, f"{name}_se": error}


def counts(corpus: Corpus, tokens: Sequence[Tokens], scores: Scores) -> dict[str, Any]:
    """How much was scored."""
    size, characters, words = corpus.sizes.sum(1).tolist()
    return {
        "documents": len(corpus.texts),
        "bytes": size,
        "characters": characters,
        "words": words,
        "tokens": sum(len(text.ids) for text in tokens),
        "scored": int(scores.scored.sum()),
        "unknown": sum(text.unknown for text in tokens),
    }
