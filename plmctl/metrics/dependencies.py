"""Dependency trees, scored as the script of CoNLL 2018 does on gold words.

Every word counts, punctuation too. Subtypes of relations do not: ``acl:relcl`` is ``acl``.
Source: conll18_ud_eval.py of the shared task (universaldependencies.org/conll18).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from plmctl.errors import DataError

Trees = Sequence[Sequence[str]]
"""Of each sentence one text per word, ``arc`` of its head and its relation."""

_FUNCTIONAL = frozenset(("aux", "cop", "mark", "det", "clf", "case", "cc", "punct"))
"""Relations that CLAS leaves out."""


def arc(head: int, relation: str) -> str:
    """A head and a relation in one text, as ``2 nsubj``; the head 0 is ROOT."""
    return f"{head} {relation}"


def attachment(predictions: Trees, references: Trees) -> dict[str, Any]:
    """Metrics over all words together.

    Returns:
        las (head and relation are right), uas (the head is), clas (as las, of content words: F1 of
        the words that each side gives such a relation), words.

    Raises:
        DataError: Not as many words in both, or none.
    """
    if [len(one) for one in predictions] != [len(one) for one in references]:
        raise DataError("not as many words in the predictions as in the references")
    given, right = _arcs(predictions), _arcs(references)
    if not right:
        raise DataError("nothing to score: there are no words")
    same = [one == other for one, other in zip(given, right, strict=True)]
    heads = [one[0] == other[0] for one, other in zip(given, right, strict=True)]
    content = [relation not in _FUNCTIONAL for _, relation in right]
    both = sum(content) + sum(relation not in _FUNCTIONAL for _, relation in given)
    right_content = sum(a and b for a, b in zip(same, content, strict=True))
    return {
        "las": float(np.mean(same)),
        "uas": float(np.mean(heads)),
        "clas": 2 * right_content / both if both else 0.0,
        "words": len(right),
    }


def las(predictions: Trees, references: Trees) -> float:
    """The share of words whose head and relation are right; see ``attachment``."""
    return float(attachment(predictions, references)["las"])


def right_words(predictions: Sequence[str], references: Sequence[str]) -> tuple[int, int]:
    """How many heads of a sentence are right, and how many heads with their relation."""
    pairs = list(zip(_arcs([predictions]), _arcs([references]), strict=True))
    return sum(a[0] == b[0] for a, b in pairs), sum(a == b for a, b in pairs)


def _arcs(trees: Trees) -> list[tuple[str, str]]:
    """The head and the relation of every word, without subtypes."""
    split = (text.partition(" ") for tree in trees for text in tree)
    return [(head, relation.partition(":")[0]) for head, _, relation in split]
