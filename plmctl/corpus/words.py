"""How many words a text has: its pieces between white space, or jieba's words.

It is the count of the BabyLM shared tasks: text with spaces is split at white space; Chinese is cut
by ``jieba.cut`` in its default mode, and every piece counts, also marks and white space.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from plmctl.characters import ALL_HAN, KANA

SPACES = "white space"

_EAST_ASIAN = re.compile(f"[{ALL_HAN}{KANA}]")
_NO_SPACES = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")  # Thai, Lao, Burmese, Khmer
_LETTER = re.compile(r"[^\W\d_]")

_MUCH = 0.3  # share of the letters of a script without spaces that decides the rule

_SLOW = 2_000_000_000  # bytes that jieba cuts in about an hour of one core


@dataclass(frozen=True)
class WordRule:
    """How words are counted.

    Attributes:
        name: ``white space`` or ``jieba 0.42.1``; empty: they are not counted.
        reason: Why they are not counted, and what to do about it.
    """

    name: str
    reason: str = ""


def word_rule(openings: Sequence[str], size: int, *, needed: bool) -> WordRule:
    """How the words of a corpus are counted.

    Args:
        openings: The beginnings of some of its sources.
        size: Bytes of all sources.
        needed: Whether they are worth jieba, which takes longer than the tokenizer.
    """
    text = "".join(openings)
    letters = max(1, len(_LETTER.findall(text)))
    if len(_NO_SPACES.findall(text)) > _MUCH * letters:
        return WordRule("", "its script has no spaces between words")
    if len(_EAST_ASIAN.findall(text)) <= _MUCH * letters:
        return WordRule(SPACES)
    try:
        name = f"jieba {version('jieba')}"
    except PackageNotFoundError:
        return WordRule("", "Chinese and Japanese words need jieba: pip install 'plmctl[zh]'")
    if size > _SLOW:
        return WordRule("", "jieba would take hours for more than 2 GB")
    if not needed:
        return WordRule("", "jieba takes longer than the tokenizer; `plmctl prepare` counts them")
    return WordRule(name)


_AT_ONCE = 1_000_000  # characters: a list of all words takes ten times as much memory as the text


def count_words(text: str, rule: str, at_once: int = _AT_ONCE) -> int:
    """The words of a text.

    Args:
        at_once: Characters that are split at white space at once.
    """
    if rule != SPACES:
        return sum(1 for _ in _segmenter().cut(text))
    total = 0  # ``len(text.split())``, a part after the other
    for start in range(0, len(text), at_once):
        part = text[start : start + at_once]
        goes_on = start > 0 and not (text[start - 1].isspace() or part[0].isspace())
        total += len(part.split()) - goes_on
    return total


@cache
def _segmenter() -> Any:
    import logging

    import jieba

    jieba.setLogLevel(logging.WARNING)  # otherwise it writes about its dictionary to stderr
    return jieba.Tokenizer()
