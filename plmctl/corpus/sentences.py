"""Cutting text into sentences: rules for English and Chinese, chosen once a corpus.

The rules are regular expressions: they cut tens of megabytes a second, where statistical splitters
cut one or less, and an error costs little here: sentences are only the units of pairs and packing.
"""

import re
from collections import Counter
from collections.abc import Iterable

# Closing quotes and brackets stay with the sentence that they close.
_CLOSING = "\"'”’»)\\]}」』》）】"
_EN_END = re.compile(rf"(?<=[.!?…])[{_CLOSING}]*\s+(?=[\"'“‘«(\[]*[A-Z0-9À-ÖØ-Þ])")
_ZH_END = re.compile(rf"[。！？!?；…]+[{_CLOSING}]*")
_HAN = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")

# A full stop after one of these does not end a sentence.
_ABBREVIATION_LIST = (
    "mr mrs ms dr prof st sr jr messrs hon gov gen col capt lt sgt maj adm rep sen pres rev "
    "no nos vol pp art sec fig eq cf al vs etc e.g i.e viz inc ltd co corp jan feb mar apr "
    "jun jul aug sep sept oct nov dec u.s u.k u.n d.c a.m p.m ph.d approx dept est "
)
_ABBREVIATIONS = frozenset(_ABBREVIATION_LIST.split())
_LAST_WORD = re.compile(r"([\w.]+)\.[^\w]*$")


def split_sentences(text: str, rule: str) -> list[str]:
    """The sentences of a text, in order, without the space around them.

    Args:
        text: Any text.
        rule: "line" (one a line), "en", "zh", or "none" (the text is one sentence).

    Returns:
        Sentences that are not empty.
    """
    if rule == "line":
        found: Iterable[str] = text.splitlines()
    elif rule == "zh":
        found = (s for line in text.splitlines() for s in _chinese(line))
    elif rule == "en":
        found = (s for block in re.split(r"\n\s*\n", text) for s in _english(block))
    else:
        found = [text]
    return [sentence for piece in found if (sentence := piece.strip())]


def choose_rule(texts: Iterable[str]) -> str:
    """The rule for a corpus: "zh" if a fifth of its letters are Han characters, else "en"."""
    count: Counter[str] = Counter()
    for text in texts:
        count["han"] += len(_HAN.findall(text))
        count["all"] += sum(map(str.isalpha, text))
    return "zh" if count["han"] > 0.2 * max(count["all"], 1) else "en"


def _english(block: str) -> Iterable[str]:
    block = " ".join(block.split())
    start = 0
    for match in _EN_END.finditer(block):
        if _abbreviated(block[start : match.start()]):
            continue
        yield block[start : match.end()]
        start = match.end()
    yield block[start:]


def _abbreviated(sentence: str) -> bool:
    match = _LAST_WORD.search(sentence[-24:])
    if match is None:
        return False
    word = match[1]
    # An initial ("J. Smith") is one capital letter; "I." ends a sentence.
    return word.lower() in _ABBREVIATIONS or (len(word) == 1 and word.isupper() and word != "I")


def _chinese(line: str) -> Iterable[str]:
    start = 0
    for match in _ZH_END.finditer(line):
        yield line[start : match.end()]
        start = match.end()
    yield line[start:]
