"""An answer as a span of a context: the sliding window, as SQuAD's paper has it.

The sentence that shares most words and pairs of words with the question is searched; of its runs of
words that are not in the question, the one with most of the question around it is the answer. The
paper takes candidates from a parser, which most languages do not have.

Sources: Richardson et al. (2013), MCTest; Rajpurkar et al. (2016), SQuAD.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from plmctl.characters import HAN, KANA, SYLLABLES

_UNSPACED = f"{HAN}{KANA}{SYLLABLES}"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
_END = re.compile(r"[.!?](?=\s)|[。！？\n]")
_COMMON = 50  # the most frequent words: no answer begins or ends with one


@dataclass(frozen=True)
class Span:
    """An answer, where it starts, and how much of the question its sentence has, from 0 to 1."""

    text: str
    start: int
    score: float


@dataclass(frozen=True)
class _Place:
    """A word in lower case, and its characters in the context."""

    word: str
    start: int
    end: int


def find_spans(questions: Sequence[str], contexts: Sequence[str], longest: int) -> list[Span]:
    """The answer to each question; a word weighs log(1 + 1 / its number in all contexts).

    Args:
        contexts: [N] as the questions.
        longest: Words of an answer at most.
    """
    sentences = {context: _sentences(context) for context in dict.fromkeys(contexts)}
    words = (place.word for of in sentences.values() for sentence in of for place in sentence)
    counts = Counter(words)
    weights = {word: float(np.log1p(1 / count)) for word, count in counts.items()}
    common = {word for word, _ in counts.most_common(min(_COMMON, len(counts) // 10))}
    answers = []
    for question, context in zip(questions, contexts, strict=True):
        question_words = [place.word for place in _places(question, 0)]
        total = _shared(question_words, question_words, weights) or 1.0
        scores = [
            _shared(question_words, [place.word for place in of], weights)
            for of in sentences[context]
        ]
        if not scores:
            answers.append(Span("", 0, 0.0))
            continue
        best = int(np.argmax(scores))
        runs = _runs(sentences[context][best], set(question_words), common, context)
        near = [
            _nearness(run, sentences[context][best], set(question_words), weights) for run in runs
        ]
        run = runs[int(np.argmax(near))][:longest]
        text = context[run[0].start : run[-1].end]
        answers.append(Span(text, run[0].start, min(1.0, scores[best] / total)))
    return answers


def _places(text: str, offset: int) -> list[_Place]:
    return [
        _Place(match[0].lower(), offset + match.start(), offset + match.end())
        for match in _WORD.finditer(text)
    ]


def _sentences(context: str) -> list[list[_Place]]:
    ends = [match.end() for match in _END.finditer(context)]
    both = zip([0, *ends], [*ends, len(context)], strict=True)
    return [places for start, end in both if (places := _places(context[start:end], start))]


def _shared(
    question_words: Sequence[str], words: Sequence[str], weights: Mapping[str, float]
) -> float:
    """The weights of the question's words and pairs of words that a sentence has.

    A pair weighs as much as its two words; a word that no context has weighs nothing.
    """
    pairs = set(zip(question_words, question_words[1:], strict=False)) & set(
        zip(words, words[1:], strict=False)
    )
    parts = [word for pair in sorted(pairs) for word in pair] + sorted(
        set(question_words) & set(words)
    )
    return sum(weights.get(word, 0.0) for word in parts)


def _runs(
    sentence: list[_Place], question_words: set[str], common: set[str], context: str
) -> list[list[_Place]]:
    """Words that follow each other without a mark between them, and are not of the question.

    Without any the whole sentence.
    """
    runs: list[list[_Place]] = [[]]
    for place in sentence:
        if runs[-1] and re.search(r"[^\s\w'’-]", context[runs[-1][-1].end : place.start]):
            runs.append([])
        if place.word in question_words:
            runs.append([])
        else:
            runs[-1].append(place)
    trimmed = []
    for run in runs:
        kept = [number for number, place in enumerate(run) if place.word not in common]
        if kept:
            trimmed.append(run[kept[0] : kept[-1] + 1])
    return trimmed or [sentence]


def _nearness(
    run: list[_Place],
    sentence: list[_Place],
    question_words: set[str],
    weights: Mapping[str, float],
) -> float:
    """The weights of the question's words around a run, each divided by its distance in words."""
    first, last = sentence.index(run[0]), sentence.index(run[-1])
    return sum(
        weights.get(place.word, 0.0) / max(first - number, number - last, 1)
        for number, place in enumerate(sentence)
        if place.word in question_words
    )
