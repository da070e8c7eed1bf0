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
_ZH_END = re.compile(rf"(?:[{_CJK_STOP}]|[!?](?![\w/=&]*[A-Za-z0-9_/=&]))+…*[{_CLOSING}]*")
_HAN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")

_OPENING = "\"'“‘«(["
_WORD_BEFORE = re.compile(r"([^\W_]+(?:\.[^\W_]+)*)\.[^\w.]*$")
_WORD_AFTER = re.compile(r"[^\W_]+")
_ENUMERATION = re.compile(r"[(\[]?(?:\d{1,3}|[ivxIVX]{1,4}|[A-Za-z])[.)]+\s*")

# A full stop after one of these never ends a sentence: more of it always follows.
_TITLES = frozenset(
    "mr mrs ms messrs mme mlle dr prof rev hon gov gen col capt cpt lt cmdr sgt maj adm rep sen pres "
    "supt st mt ft e.g i.e viz cf vs approx ca".split()
)
# These are abbreviations before a number only: "No. 5", but "He said no. Then ...".
_NUMBERED = frozenset("no nos vol vols p pp art sec fig figs eq ch par".split())
# These may end a sentence: they do if the next word is one that usually begins sentences.
_EITHER = frozenset(
    "jr sr etc al inc ltd co corp bros dept est ave blvd jan feb mar apr jun jul aug sep sept oct "
    "nov dec ph.d esq".split()
)
_STARTERS = frozenset(
    "a an the this that these those it its he his she her we our they their you your my there here "
    "in on at by for from with to of as if when while where what who why how since after before "
    "during under and but or so yet nor because although though however therefore thus then now "
    "once let such some many most all no not each every one another".split()
)

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
        if match[0][0] in _CJK_STOP or _ends(block, start, match):
            yield block[start : match.end()]
            start = match.end()
    yield block[start:]


def _ends(block: str, start: int, match: re.Match[str]) -> bool:
    """Whether the stop and the space of ``match`` end the sentence that began at ``start``."""
    following = _WORD_AFTER.search(block, match.end())
    if following and following[0][0].islower() and _only_opening(block, match.end(), following):
        return False
    if match[0][0] != ".":
        return True
    if _ENUMERATION.fullmatch(block, start, match.end()):
        return False  # "1. The first point": the number goes with its point
    before = _WORD_BEFORE.search(block, max(start, match.start() - 24), match.start() + 1)
    if before is None:
        return True
    return _ends_after(before[1], following[0] if following else "")


def _only_opening(block: str, start: int, following: re.Match[str]) -> bool:
    """Whether nothing but quotes, brackets, dashes and space comes before the next word."""
    return all(c in _OPENING or c in "-–—" or c.isspace() for c in block[start : following.start()])


def _ends_after(word: str, following: str) -> bool:
    """Whether a full stop after ``word`` ends a sentence when ``following`` comes next."""
    lower = word.lower()
    if lower in _TITLES:
        return False
    if lower in _NUMBERED:
        return not following[:1].isdigit()
    initials = word[0].isalpha() and (len(word) == 1 or (word[1] == "." and len(word) < 8))
    if lower in _EITHER or (initials and not word[0].isdigit()):
        return following.lower() in _STARTERS
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
