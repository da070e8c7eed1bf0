"""Figures with their standard errors, and what they were counted on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from plmctl.arrays import Floats, Ints
from plmctl.errors import DataError
from plmctl.evaluation.likelihood.reader import Reader, Tokens
from plmctl.evaluation.likelihood.scores import Scores
from plmctl.evaluation.likelihood.texts import Corpus
from plmctl.metrics.statistics import error_of_ratio


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
        error = error_of_ratio(numerator, below, seed, function)
    return {name: value, f"{name}_se": error}


def bits_of(reader: Reader, tokens: Sequence[Tokens], scores: Scores) -> tuple[Floats, Floats]:
    """What each text costs in bits, and how much of that is for the bytes of unknown text.

    Two things cost what a softmax over a closed vocabulary gets for nothing, so that no model gains
    by them: a token that stands for unknown text has 8 bits for each of its bytes besides its own
    likelihood, and a first token that a model cannot predict log2 of the vocabulary.

    Raises:
        DataError: The tokenizer leaves nothing of all the texts.
    """
    if not any(len(text.ids) for text in tokens):
        raise DataError(f"nothing to score: the tokenizer of {reader.name} leaves no token")
    spelt = 8.0 * np.array([text.unknown_bytes for text in tokens])
    return scores.nll / np.log(2) + scores.first * np.log2(reader.outputs) + spelt, spelt


BITS = (
    "8 bits a byte of unknown text, log2(vocabulary) for a first token without a prediction; "
    "document separators are not scored"
)
"""What else ``bits_of`` counts, for definitions."""


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
