"""Lemmas: the basic form of each word of a sentence, as treebanks have it.

A tagger whose labels are rules. A rule cuts letters at both ends of a form, adds others, and sets
the case, as in UDPipe 2 (Straka 2018): ``lower 0+ 3+y`` makes "body" of "Bodies". It is found
around the longest text that form and lemma share; if they share none, or no case fits, the rule is
the lemma itself: ``=be``. Rules of fewer than three words are not learned (train.py of HPLT).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from plmctl.arrays import IGNORE
from plmctl.errors import DataError
from plmctl.tasks._word_labels import WordConfig, WordExamples, WordTask, row_tags, row_words
from plmctl.tasks.base import Answer, Counted

if TYPE_CHECKING:
    from plmctl.corpus.labelled import Row


class Config(WordConfig):
    """Give every word of a sentence its lemma."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("tokens", "lemmas")

    name: Literal["lemmas"] = "lemmas"
    tags: str = "lemma"
    """Column of the lemmas, one per word: a list, or one text separated by spaces. In CoNLL-U it is
    `lemma`."""


# --- Rules ---


_UNKNOWN = "_"  # in CoNLL-U, unless the form is this too

_SEEN = 3  # words with a rule that is learned

_RULE = re.compile(r"(lower|keep|title|upper) (\d+)\+(\S*) (\d+)\+(\S*)")


@lru_cache(200_000)
def rule_of(form: str, lemma: str) -> str:
    """The rule that makes ``lemma`` of ``form``, and of as many other words as it can."""
    small, wanted = _lower(form), _lower(lemma)
    root = SequenceMatcher(None, small, wanted, autojunk=False).find_longest_match()
    before, after = wanted[: root.b], wanted[root.b + root.size :]
    back = len(small) - root.a - root.size
    for case in ("lower", "keep", "title", "upper") if root.size else ():
        rule = f"{case} {root.a}+{before} {back}+{after}"
        if apply(rule, form) == lemma:
            return rule
    return f"={lemma}"


def apply(rule: str, form: str) -> str:
    """The lemma that a rule makes of a form; the form if the rule would cut all of it.

    What is no rule, in a folder that plmctl has not written, is the lemma.
    """
    parts = _RULE.fullmatch(rule)
    if parts is None:
        return rule.removeprefix("=")
    case, front, before, back, after = parts.groups()
    kept = form[int(front) : len(form) - int(back)]
    if not kept or len(form) < int(front) + int(back):
        return form
    lemma = before + (kept if case == "keep" else _lower(kept)) + after
    if case == "title":
        return lemma[:1].upper() + lemma[1:]
    return lemma.upper() if case == "upper" else lemma


def _lower(text: str) -> str:
    """In lower case, with as many letters: of İ the lower case has two."""
    return "".join(low if len(low := one.lower()) == 1 else one for one in text)


def is_known(form: str, lemma: str) -> bool:
    """Whether a lemma says something."""
    return lemma != _UNKNOWN or form == _UNKNOWN


# --- The task ---


class Lemmas(WordTask[Config], config=Config):
    """Sentences with a lemma per word."""

    def right_answer(self, row: Row) -> str:
        """The words with their lemmas, as ``readable`` has them."""
        return " ".join(f"{word}/{lemma}" for word, lemma in self._pairs(row))

    def labels(self, rows: Sequence[Row]) -> tuple[str, ...]:
        """The rules of three words or more, in order; all, if fewer than two are so frequent.

        Raises:
            DataError: There is no lemma, or not one per word.
        """
        counted = Counter(rule for row in rows for rule in self._rules(row))
        if not counted:
            raise DataError(
                f"the training rows have no lemmas: all of {self.config.tags!r} are {_UNKNOWN}",
                "some treebanks have none; or name their column: task.tags",
            )
        often = [rule for rule, count in counted.items() if count >= _SEEN]
        return tuple(sorted(often if len(often) > 1 else counted))

    @property
    def examples(self) -> type[LemmaExamples]:
        """Sentences with their lemmas."""
        return LemmaExamples

    def count(self, rows: Sequence[Row], labels: tuple[str, ...]) -> Iterator[Counted]:
        """The most frequent rule of each word; of a new word that of its last three letters."""
        from plmctl.counting.tags import learn_most_frequent

        pairs = [[pair for pair in self._pairs(row) if is_known(*pair)] for row in rows]
        words = [[word for word, _ in row] for row in pairs]
        rule = learn_most_frequent(words, [[rule_of(*pair) for pair in row] for row in pairs])

        def answers(rows: Sequence[Row]) -> list[Answer]:
            words = [row_words(self.config, row) for row in rows]
            return [
                {"tokens": of, "prediction": list(map(apply, rules, of))}
                for of, rules in zip(words, rule(words), strict=True)
            ]

        yield Counted("most frequent lemma", lambda rows, _: answers(rows), len(rows))

    def _rules(self, row: Row) -> list[str]:
        """The rules of the words whose lemma is known."""
        return [rule_of(*pair) for pair in self._pairs(row) if is_known(*pair)]

    def _pairs(self, row: Row) -> Iterator[tuple[str, str]]:
        words = row_words(self.config, row)
        return zip(words, row_tags(self.config, row, words), strict=True)


class LemmaExamples(WordExamples[Config]):
    """Sentences with their lemmas."""

    def tag_of(self, word: str, label: str) -> str:
        """The lemma that a rule makes."""
        return apply(label, word)

    def label_of(self, word: str, tag: str) -> str:
        """The rule; of an unknown lemma none that there is."""
        return rule_of(word, tag) if is_known(word, tag) else ""

    @property
    def notices(self) -> tuple[str, ...]:
        """Words whose rule is not among the labels, and lemmas that are not known."""
        lines = []
        if self._unmade:
            lines.append(f"{self._unmade:,} words need a rule that was not learned")
        if self._unknown:
            lines.append(f"{self._unknown:,} words have no lemma ({_UNKNOWN}): any answer is right")
        return tuple(lines)

    def compute_metrics(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The metrics, and how many words need a rule that is no label, or have no lemma."""
        metrics = super().compute_metrics(answers)
        left = {"unmade_lemmas": self._unmade, "unknown_lemmas": self._unknown}
        return metrics | {name: count for name, count in left.items() if count}

    @cached_property
    def _unknown(self) -> int:
        rows = zip(self.sentences, self.references(), strict=True)
        return sum(not is_known(*pair) for row in rows for pair in zip(*row, strict=True))

    @property
    def _unmade(self) -> int:
        return sum(row.count(IGNORE) for row in self.label_ids) - self._unknown

    def predictions(self, answers: Sequence[Answer]) -> list[list[str]]:
        """The lemmas; where the right one is not known any is right, as in CoNLL 2018's script."""
        given = super().predictions(answers)
        if self.tags is None:
            return given
        return [
            [lemma if is_known(*pair) else pair[1] for lemma, *pair in zip(*row, strict=True)]
            for row in zip(given, self.sentences, self.tags, strict=True)
        ]
