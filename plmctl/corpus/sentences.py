"""Cutting text into sentences: one rule for scripts with spaces, one for Chinese and Japanese.

The rules are regular expressions with a table of abbreviations. They split tens of megabytes per
second, statistical splitters one or less. Errors cost little here: sentences are only the units of
pairs and of packing, and no text is lost.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from plmctl.characters import HAN, KANA

Rule = Literal["line", "en", "zh", "none"]

# Closing quotes and brackets stay with the sentence that they close.
_CLOSING = "\"'”’»)\\]}」』》）】〕〉"
_CJK_STOP = "。！？｡"
_STOP = ".!?…؟۔।॥։።།။។៕"

# A stop, what it closes, footnote marks such as [1], and space. Chinese stops need no space.
_EN_END = re.compile(
    rf"[{_STOP}][{_CLOSING}]*(?:\[\d{{1,3}}\])*\s+|[{_CJK_STOP}]+…*[{_CLOSING}]*\s*"
)
# An ASCII ! or ? also ends a Chinese sentence, but not inside an address such as x.cn/?id=1.
_ZH_END = re.compile(rf"(?:[{_CJK_STOP}]|[!?](?![A-Za-z0-9_/=&%]))+…*[{_CLOSING}]*")
_HAN_OR_KANA = re.compile(f"[{HAN}{KANA}]")

_OPENING = "\"'“‘«(["
# The next word, after quotes, brackets and dashes.
_WORD_AFTER = re.compile(r"[\"'“‘«(\[\s–—-]*([^\W_]+)")
_INITIALS = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]")  # "U.S" of "U.S.", "J.R.R"
_ENUMERATION = re.compile(r"[(\[]?(?:\d{1,3}|[ivxIVX]{1,4}|[A-Za-z])[.)]+\s*")

# A full stop after a title never ends a sentence. After a word of NUMBERED it does not end one if
# a number follows: "No. 5", but "He said no. Then ...". After a word of EITHER it ends one only if
# the next word usually starts sentences.
_TITLES = """
    mr mrs ms messrs mme mlle dr prof rev hon gov gen col capt cpt lt cmdr sgt maj adm rep sen pres
    supt st mt ft e.g i.e viz cf vs approx ca
"""
_NUMBERED = "no nos vol vols p pp art sec fig figs eq ch par"
_EITHER = """
    jr sr etc al inc ltd co corp bros dept est ave blvd jan feb mar apr jun jul aug sep sept oct nov
    dec ph.d esq
"""
_STARTERS = """
    a an the this that these those it its he his she her we our they their you your my there here
    in on at by for from with to of as if when while where what who why how since after before
    during under and but or so yet nor because although though however therefore thus then now
    once let such some many most all no not each every one another
"""
_ABBREVIATIONS = {
    word: kind
    for kind, words in (("title", _TITLES), ("numbered", _NUMBERED), ("either", _EITHER))
    for word in words.split()
}
_OF_STARTERS = frozenset(_STARTERS.split())

_BLANK_LINES = re.compile(r"\n\s*\n")
_AT_END = re.compile(rf"[{_STOP}{_CJK_STOP}:;：；][{_CLOSING}]*\s*$")

# A longer line is a separate paragraph; shorter lines are treated as wrapped text.
_WRAPPED = 120


def split_sentences(text: str, rule: Rule) -> list[str]:
    """The sentences of a text, in order, without the white space around them.

    Args:
        rule: See ``sentence_spans``. With "en" the white space within a sentence becomes one space.

    Returns:
        Sentences that are not empty; together they have all characters of the text except white
        space.
    """
    sentences = [text[start:end] for start, end in sentence_spans(text, rule)]
    return [" ".join(sentence.split()) for sentence in sentences] if rule == "en" else sentences


def sentence_spans(text: str, rule: Rule) -> list[tuple[int, int]]:
    """The first character and the end of each sentence, without the white space around it.

    Args:
        rule: "line" (one sentence per line, as in BERT's input files), "en" (scripts with spaces
            between words; a blank line ends a sentence, and a line end does in text that is not
            wrapped), "zh" (Chinese and Japanese; a line end ends a sentence), or "none" (the whole
            text is one).
    """
    if rule == "line":
        spans = _lines(text, "\n")
    elif rule == "zh":
        spans = (span for line in _lines(text) for span in _chinese(text, *line))
    elif rule == "en":
        spans = (span for block in _paragraphs(text) for span in _spaced(text, *block))
    else:
        spans = iter([(0, len(text))])
    return [span for start, end in spans if (span := _stripped(text, start, end))]


def sentence_starts(text: str, rule: Rule) -> list[int]:
    """The character where each sentence starts, the white space before it included.

    The first is 0, and the last sentence includes the white space at the end, so that the sentences
    together are the text. A text of only white space has no sentences.
    """
    spans = sentence_spans(text, rule)
    return [0, *(end for _, end in spans[:-1])] if spans else []


def choose_rule(texts: Iterable[str]) -> Rule:
    """The rule of a script: "zh" if a fifth of the letters are Han or kana, else "en"."""
    han, letters = _letters(texts)
    return "zh" if han > 0.2 * letters else "en"


@dataclass(frozen=True)
class SentenceRule:
    """A rule for sentences, and the reason for it as a message."""

    rule: Rule
    reason: str

    def __str__(self) -> str:
        return f"{self.rule} ({self.reason})"


def decide(openings: Sequence[str], files: Sequence[str]) -> SentenceRule:
    """Choose the rule for the sentences of a corpus from samples of its text.

    Args:
        openings: The beginnings of some of its sources.
        files: Those of them that are text files, with their blank lines.

    Returns:
        "line" if each file clearly has one sentence per line, like BERT's input files: blank lines
        between documents of several lines, hardly any line with two sentences, and either most
        lines end a sentence or all are short, and the text is not wrapped. Else the rule of the
        script.
    """
    han, letters = _letters(openings)
    script: Rule = "zh" if han > 0.2 * letters else "en"
    looks = [_look(text, script) for text in files]
    if looks and len(looks) == len(openings) and all(look.is_line_format for look in looks):
        single = sum(look.single for look in looks) / sum(look.lines for look in looks)
        return SentenceRule(
            "line", f"blank lines between documents, and {single:.0%} of the lines are one sentence"
        )
    share = han / letters if letters else 0.0
    return SentenceRule(script, f"{share:.0%} of the letters are Chinese or Japanese")


@dataclass(frozen=True)
class _Look:
    """How many lines of a text file are of which kind."""

    documents: int
    lines: int
    single: int  # one sentence
    ended: int  # that end with a stop
    wrapped: int  # that end because the next word did not fit, in the middle of a sentence
    longest: int

    @property
    def is_line_format(self) -> bool:
        followed = self.lines - self.documents  # lines that another line of their document follows
        if self.documents < 2 or self.lines < 2 * self.documents or self.wrapped > 0.5 * followed:
            return False
        short = self.longest <= _WRAPPED
        return self.single >= 0.9 * self.lines and (short or self.ended >= 0.8 * self.lines)


def _look(text: str, script: Rule) -> _Look:
    blocks = [block.split("\n") for block in re.split(r"\n(?:[^\S\n]*\n)+", text.strip())]
    lines = [line.strip() for block in blocks for line in block]
    longest = max(map(len, lines), default=0)
    wrapped = sum(
        len(line.strip()) + 1 + len(_first_word(following, script)) > longest
        and not _AT_END.search(line)
        for block in blocks
        for line, following in pairwise(block)
    )
    single = sum(len(sentence_spans(line, script)) == 1 for line in lines)
    ended = sum(bool(_AT_END.search(line)) for line in lines)
    return _Look(len(blocks), len(lines), single, ended, wrapped, longest)


def _first_word(line: str, script: Rule) -> str:
    """What could have been on the line before: a word, or a character of Chinese or Japanese."""
    line = line.strip()
    return line[:1] if script == "zh" else line.partition(" ")[0]


def _letters(texts: Iterable[str]) -> tuple[int, int]:
    """How many letters are Han or kana, and how many there are."""
    han = letters = 0
    for text in texts:
        han += len(_HAN_OR_KANA.findall(text))
        letters += sum(map(str.isalpha, text))
    return han, letters


def _stripped(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The span without the white space around it; None if it is only white space."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return (start, end) if start < end else None


def _lines(text: str, end: str | None = None) -> Iterator[tuple[int, int]]:
    """The spans of lines, line ends included; without ``end``, as ``str.splitlines`` cuts them."""
    at = 0
    for line in text.splitlines(keepends=True) if end is None else text.split(end):
        length = len(line) + len(end or "")
        yield at, min(at + length, len(text))
        at += length


def _paragraphs(text: str) -> Iterator[tuple[int, int]]:
    """The spans of the blocks between blank lines; of their lines, if they are not wrapped."""
    at = 0
    for gap in [*_BLANK_LINES.finditer(text), None]:
        block = text[at : None if gap is None else gap.start()]
        if max(map(len, block.splitlines()), default=0) > _WRAPPED:
            yield from ((at + start, at + end) for start, end in _lines(block))
        else:
            yield at, at + len(block)
        at = len(text) if gap is None else gap.end()


def _spaced(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    while start < end and text[start].isspace():
        start += 1
    for match in _EN_END.finditer(text, start, end):
        if _ends(text, start, match, end):
            yield start, match.end()
            start = match.end()
    yield start, end


def _ends(text: str, start: int, match: re.Match[str], end: int) -> bool:
    """Whether the stop and the space of ``match`` end the sentence that began at ``start``.

    Args:
        match: A match of ``_EN_END``.
        end: Where the block ends; text after it is not considered.
    """
    at, after = match.span()
    stop = text[at]
    if stop in _CJK_STOP:
        return True
    following = _WORD_AFTER.match(text, after, end)
    word = following[1] if following else ""
    if word[:1].islower():
        return False
    if stop != ".":
        return True
    if at - start < 6 and _ENUMERATION.fullmatch(text, start, after):
        return False  # "1. The first point": the number goes with its point
    before = text[max(start, at - 24) : at].rsplit(None, 1)
    return not before or _ends_after(before[-1].lstrip(_OPENING), word)


def _ends_after(word: str, following: str) -> bool:
    """Whether a full stop after ``word`` ends a sentence when ``following`` comes next."""
    kind = _ABBREVIATIONS.get(word.lower())
    if kind == "title":
        return False
    if kind == "numbered":
        return not following[:1].isdigit()
    if kind == "either" or (word[:1].isalpha() and (len(word) == 1 or _INITIALS.fullmatch(word))):
        return following.lower() in _OF_STARTERS
    return True


def _chinese(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    for match in _ZH_END.finditer(text, start, end):
        yield from _mixed(text, start, match.end())
        start = match.end()
    yield from _mixed(text, start, end)


def _mixed(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Text between Chinese stops; without a Chinese character it is foreign text in a quote."""
    if _HAN_OR_KANA.search(text, start, end):
        yield start, end
    else:
        yield from _spaced(text, start, end)
