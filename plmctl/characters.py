"""Chinese and Japanese characters: ranges for regular expressions and for arrays of code points."""

import unicodedata
from functools import cache

import numpy as np
from numpy.typing import NDArray

HAN_RANGES = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2FA1F))
"""First and last code points of the blocks of Chinese characters."""

HAN = "".join(f"{chr(first)}-{chr(last)}" for first, last in HAN_RANGES[:-1])
"""The inside of a class ``[...]``: Chinese characters of at most four hexadecimal digits.

A class with larger characters in it is searched ten times as slowly."""

ALL_HAN = "".join(f"{chr(first)}-{chr(last)}" for first, last in HAN_RANGES)
"""The inside of a class: all Chinese characters."""

KANA = "\u3040-\u30ff"
"""The inside of a class: Japanese hiragana and katakana."""

SPACES = tuple(chr(code).encode() for code in range(0x3001) if chr(code).isspace())
"""The UTF-8 of every character that ``str.strip`` takes away."""

SYLLABLES = "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff"
"""The inside of a class: Thai, Lao, Tibetan, Burmese, Khmer, which have no spaces between words."""

JOINERS = "\u200c\u200d"
"""The inside of a class: what decides how two letters are written, and is part of a word."""


@cache
def marks() -> str:
    """The inside of a class: vowel signs and accents, which belong to the letter before them.

    Python's word characters do not have them, and it cuts words of most scripts of India at them.
    """
    codes = [n for n in range(0x300, 0x20000) if unicodedata.category(chr(n))[0] == "M"]
    return "".join(map(chr, codes))


def chinese(code: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Whether each code point is a Chinese character."""
    mask: NDArray[np.bool_] = np.zeros(len(code), dtype=bool)
    for first, last in HAN_RANGES:
        mask |= (code >= first) & (code <= last)
    return mask
