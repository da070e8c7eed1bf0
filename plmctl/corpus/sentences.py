"""Cutting text into sentences: one rule for scripts with spaces, one for Chinese and Japanese.

The rules are regular expressions with a table of abbreviations. They cut tens of megabytes a
second where statistical splitters cut one or less, and an error costs little here: sentences are
the units of pairs and of packing, and no text is lost.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Literal

Rule = Literal["line", "en", "zh", "none"]

# Closing quotes and brackets stay with the sentence that they close.
_CLOSING = "\"'”’»)\\]}」』》）】〕〉"
_CJK_STOP = "。！？｡"
_STOP = ".!?…؟۔।॥։።။៕"

# A stop, what it closes, footnote marks such as [1], and space. Chinese stops need no space.
_EN_END = re.compile(
    rf"[{_STOP}][{_CLOSING}]*(?:\[\d{{1,3}}\])*\s+|[{_CJK_STOP}]+…*[{_CLOSING}]*\s*"
)
# An ASCII ! or ? also ends a Chinese sentence, but not inside an address such as x.cn/?id=1.
_ZH_END = re.compile(rf"(?:[{_CJK_STOP}]|[!?](?![A-Za-z0-9_/=&%]))+…*[{_CLOSING}]*")
_HAN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")

_OPENING = "\"'“‘«(["
# The next word, after quotes, brackets and dashes.
_WORD_AFTER = re.compile(r"[\"'“‘«(\[\s–—-]*([^\W_]+)")
_INITIALS = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]")  # "U.S" of "U.S.", "J.R.R"
_ENUMERATION = re.compile(r"[(\[]?(?:\d{1,3}|[ivxIVX]{1,4}|[A-Za-z])[.)]+\s*")

# A full stop after a title never ends a sentence: more of it always follows. After a word of
# NUMBERED it does not before a number: "No. 5", but "He said no. Then ...". After a word of EITHER
# it does if the next word is one that usually begins sentences.
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

# Lines longer than this are paragraphs of their own; shorter ones are taken for wrapped text.
_WRAPPED = 120


def split_sentences(text: str, rule: Rule) -> list[str]:
    """The sentences of a text, in order, without the space around them.

    Args:
        text: Any text.
        rule: "line" (one a line, as in BERT's input files), "en" (scripts with spaces between
            words; a blank line ends a sentence, and a line end does in text that is not wrapped),
            "zh" (Chinese and Japanese; a line end ends a sentence), or "none" (one sentence).

    Returns:
        Sentences that are not empty; together they have every character of the text but spaces.
    """
    if rule == "line":
        found: Iterable[str] = text.split("\n")
    elif rule == "zh":
        found = (piece for line in text.splitlines() for piece in _chinese(line))
    elif rule == "en":
        found = (piece for block in _paragraphs(text) for piece in _spaced(block))
    else:
        found = [text]
    return [sentence for piece in found if (sentence := piece.strip())]


def choose_rule(texts: Iterable[str]) -> Rule:
    """The rule for a corpus: "zh" if a fifth of its letters are Han or kana, else "en"."""
    han = letters = 0
    for text in texts:
        han += len(_HAN.findall(text))
        letters += sum(map(str.isalpha, text))
    return "zh" if han > 0.2 * letters else "en"


def _paragraphs(text: str) -> Iterator[str]:
    """Blocks between blank lines on one line each; the lines of a block if they are not wrapped."""
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        if max(map(len, lines), default=0) > _WRAPPED:
            yield from (" ".join(line.split()) for line in lines)
        else:
            yield " ".join(block.split())


def _spaced(block: str) -> Iterator[str]:
    start = 0
    for match in _EN_END.finditer(block):
        if _ends(block, start, match):
            yield block[start : match.end()]
            start = match.end()
    yield block[start:]


def _ends(block: str, start: int, match: re.Match[str]) -> bool:
    """Whether the stop and the space of ``match`` end the sentence that began at ``start``."""
    at, end = match.span()
    stop = block[at]
    if stop in _CJK_STOP:
        return True
    following = _WORD_AFTER.match(block, end)
    word = following[1] if following else ""
    if word[:1].islower():
        return False
    if stop != ".":
        return True
    if at - start < 6 and _ENUMERATION.fullmatch(block, start, end):
        return False  # "1. The first point": the number goes with its point
    before = block[max(start, at - 24) : at].rsplit(None, 1)
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


def _chinese(line: str) -> Iterator[str]:
    start = 0
    for match in _ZH_END.finditer(line):
        yield from _mixed(line[start : match.end()])
        start = match.end()
    yield from _mixed(line[start:])


def _mixed(piece: str) -> Iterator[str]:
    """A piece between Chinese stops; without a Chinese character it is foreign text in a quote."""
    if _HAN.search(piece) or not piece:
        yield piece
    else:
        yield from _spaced(piece)
