"""Answers compared as text: SQuAD's and TriviaQA's normalisation, and exact match."""

import re
import string
from collections.abc import Callable, Sequence
from typing import Literal

Normalisation = Literal["squad", "triviaqa"]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_DELETED = str.maketrans("", "", string.punctuation)
_SPACED = str.maketrans(dict.fromkeys(string.punctuation + "‘’´`_", " "))


def normalise_squad(text: str) -> str:
    """Lower case, ASCII punctuation deleted, articles left out, single spaces.

    Source: the official evaluate-v1.1.py of SQuAD (Rajpurkar et al., 2016). Curved quotes stay.
    """
    bare = text.lower().translate(_DELETED)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def normalise_triviaqa(text: str) -> str:
    """As SQuAD's, but punctuation becomes a space, single curved quotes and accents among it.

    Source: evaluation/qa_utils.py of T5, after triviaqa_evaluation.py (Joshi et al., 2017).
    """
    bare = text.lower().translate(_SPACED)
    return " ".join(_ARTICLES.sub(" ", bare).split())


_NORMALISE: dict[Normalisation, Callable[[str], str]] = {
    "squad": normalise_squad,
    "triviaqa": normalise_triviaqa,
}


def exact_match(answer: str, aliases: Sequence[str], normalisation: Normalisation) -> bool:
    """Whether an answer is one of the right ones, once all are normalised.

    Args:
        answer: What was said.
        aliases: Every right answer.
        normalisation: By SQuAD's rules (also Natural Questions and WebQuestions) or TriviaQA's.
    """
    normalise = _NORMALISE[normalisation]
    return normalise(answer) in {normalise(alias) for alias in aliases}
