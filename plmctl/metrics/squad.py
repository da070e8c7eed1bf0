"""Scores of extracted answers, as the scripts of SQuAD 1.1, SQuAD 2.0 and CMRC 2018 count them.

An answer is compared with every reference of its question and has the best of the comparisons.
Scores are per cent of all questions. The scripts differ where nothing is left of an answer: "the"
for "a" is exact in both versions of SQuAD, but its F1 is 0 in 1.1 and 1 in 2.0.

Sources: rajpurkar/SQuAD-explorer, evaluate-v1.1.py and evaluate-v2.0.py; ymcui/cmrc2018,
cmrc2018_evaluate.py.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

import numpy as np

from plmctl.characters import SYLLABLES, marks
from plmctl.errors import DataError
from plmctl.metrics import statistics
from plmctl.metrics.text import normalized, word_f1

Metric = Literal["squad", "squad2", "cmrc"]

# CMRC's list. It has an ellipsis as two characters too, which its code compares to single ones.
_NO_CHINESE_MARKS = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
# The range of CMRC's script, narrower than `characters.HAN`: other Chinese characters are parts of
# words there, and published scores count them so.
# Letters of Thai and its like are units too: they have no spaces, and CMRC has none of them.
_CHINESE_UNITS = re.compile(
    rf"[\u4e00-\u9fa5]|(?=\w)[{SYLLABLES}][{marks()}]*|[^\W\u4e00-\u9fa5{SYLLABLES}]+|[^\w\s]"
)


@dataclass(frozen=True)
class Scores:
    """The scores of answers, one per question.

    Attributes:
        exact: [N] 1 where the answer is that of a reference, else 0.
        f1: [N] from 0 to 1.
        answerable: [N] whether the question has a reference.
    """

    exact: tuple[float, ...]
    f1: tuple[float, ...]
    answerable: tuple[bool, ...]


def scores(
    predictions: Sequence[str], references: Sequence[Sequence[str]], metric: Metric
) -> Scores:
    """Exact match and F1 of each question.

    Args:
        predictions: [N] answers; "" for none.
        references: [N] the right answers to each; none where the question has no answer.
        metric: Whose rules. squad2 leaves out references of which nothing is left but articles
            and marks.

    Raises:
        DataError: Nothing to score, or not one prediction for each question.
    """
    if len(predictions) != len(references):
        raise DataError(f"{len(predictions)} answers to {len(references)} questions")
    if not predictions:
        raise DataError("nothing to score: there are no questions")
    exact, f1 = _MEASURES[metric]
    pairs = list(zip(predictions, (_compared(r, metric) for r in references), strict=True))
    return Scores(
        tuple(max(exact(prediction, text) for text in texts) for prediction, texts in pairs),
        tuple(max(f1(prediction, text) for text in texts) for prediction, texts in pairs),
        tuple(bool(texts) for texts in references),
    )


def answer_metrics(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    metric: Metric,
    version2: bool = False,
) -> dict[str, float]:
    """``exact_match`` and ``f1`` in per cent, and ``total``; for squad2 also HasAns and NoAns.

    Args:
        predictions: [N] answers; "" for none.
        references: [N] the right answers to each; none where the question has no answer.
        version2: Questions may have no answer, whatever the rules: HasAns and NoAns too.
    """
    per_question = scores(predictions, references, metric)
    return (
        by_answerability(per_question) if version2 or metric == "squad2" else summary(per_question)
    )


def summary(per_question: Scores) -> dict[str, float]:
    """``exact_match`` and ``f1`` in per cent, and ``total``, the number of questions."""
    return {
        "exact_match": _per_cent(per_question.exact),
        "f1": _per_cent(per_question.f1),
        "total": len(per_question.exact),
    }


def uncertainty(per_question: Scores) -> dict[str, dict[str, float]]:
    """Standard error and interval of ``exact_match`` and ``f1`` (``metrics.statistics``)."""
    values = {"exact_match": np.array(per_question.exact), "f1": np.array(per_question.f1)}
    return {
        name: statistics.uncertainty(lambda drawn, _: 100 * float(drawn.mean()), of, of)
        for name, of in values.items()
    }


def by_answerability(per_question: Scores) -> dict[str, float]:
    """``summary`` of all questions, of those with an answer (HasAns) and of the others (NoAns)."""
    metrics = summary(per_question)
    for prefix, wanted in (("HasAns", True), ("NoAns", False)):
        which = [n for n, answerable in enumerate(per_question.answerable) if answerable == wanted]
        if which:
            metrics |= {
                f"{prefix}_exact_match": _per_cent([per_question.exact[n] for n in which]),
                f"{prefix}_f1": _per_cent([per_question.f1[n] for n in which]),
                f"{prefix}_total": len(which),
            }
    return metrics


def forced(per_question: Scores, no_answer: Sequence[float], threshold: float) -> Scores:
    """The scores when questions with ``no_answer`` above the threshold are left unanswered.

    Args:
        no_answer: [N] how likely it is that there is none, on any scale.
        threshold: On the same scale.
    """
    silent = [score > threshold for score in no_answer]

    def changed(values: Sequence[float]) -> tuple[float, ...]:
        return tuple(
            float(not answerable) if is_silent else value
            for value, answerable, is_silent in zip(
                values, per_question.answerable, silent, strict=True
            )
        )

    return Scores(changed(per_question.exact), changed(per_question.f1), per_question.answerable)


def best_threshold(
    predictions: Sequence[str],
    values: Sequence[float],
    answerable: Sequence[bool],
    no_answer: Sequence[float],
    silent: float = 0.0,
) -> tuple[float, float]:
    """The best mean in per cent over all thresholds on ``no_answer``, and that threshold.

    The sweep begins with no question answered, and answers one question more at a time, in the
    order of ``no_answer``; the first best one wins.

    Args:
        predictions: [N] the answers, "" where there is none at any threshold.
        values: [N] the exact matches or the F1 of these answers.
        answerable: [N] whether the question has an answer.
        no_answer: [N] how likely it is that there is none, on any scale.
        silent: The threshold where it is best to answer nothing: 0 in the script, though that may
            let answers through.
    """
    score: float = sum(not has_answer for has_answer in answerable)
    best, threshold = score, silent
    for n in sorted(range(len(values)), key=lambda n: no_answer[n]):
        score += values[n] if answerable[n] else -bool(predictions[n])
        if score > best:
            best, threshold = score, no_answer[n]
    return 100 * best / len(values), threshold


def chinese_units(text: str) -> list[str]:
    """What CMRC's F1 counts: a Chinese character, or a word of other characters, without marks.

    CMRC's script cuts what is not Chinese with NLTK's English tokenizer; here a run of letters and
    digits is a word and any other character is one, which differs for such as "don't".
    """
    return _CHINESE_UNITS.findall(text.lower().strip().translate(_NO_CHINESE_MARKS))


def _compared(references: Sequence[str], metric: Metric) -> Sequence[str]:
    if metric == "squad2":
        references = [text for text in references if normalized(text)]
    return references or [""]


def _exact(prediction: str, reference: str) -> float:
    return float(normalized(prediction) == normalized(reference))


def _f1(prediction: str, reference: str) -> float:
    return word_f1(normalized(prediction), normalized(reference))


def _f1_or_silent(prediction: str, reference: str) -> float:
    predicted, expected = normalized(prediction), normalized(reference)
    return _f1(prediction, reference) if predicted and expected else float(predicted == expected)


def _chinese_exact(prediction: str, reference: str) -> float:
    predicted, expected = (
        text.lower().strip().translate(_NO_CHINESE_MARKS) for text in (prediction, reference)
    )
    return float(predicted == expected)


def _chinese_f1(prediction: str, reference: str) -> float:
    """F1 of the longest run of units that both have, not of all that they share.

    CMRC's questions all have answers; to one that has none, silence is right here.
    """
    if not reference:
        return float(not prediction)
    predicted, expected = chinese_units(prediction), chinese_units(reference)
    match = SequenceMatcher(None, predicted, expected, autojunk=False).find_longest_match()
    return 2 * match.size / (len(predicted) + len(expected)) if match.size else 0.0


def _per_cent(values: Sequence[float]) -> float:
    return 100 * sum(values) / len(values)


Measure = Callable[[str, str], float]

_MEASURES: dict[Metric, tuple[Measure, Measure]] = {
    "squad": (_exact, _f1),
    "squad2": (_exact, _f1_or_silent),
    "cmrc": (_chinese_exact, _chinese_f1),
}
