"""Chinese and Japanese characters: ranges for regular expressions and for arrays of code points."""

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


def chinese(code: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Whether each code point is a Chinese character."""
    mask: NDArray[np.bool_] = np.zeros(len(code), dtype=bool)
    for first, last in HAN_RANGES:
        mask |= (code >= first) & (code <= last)
    return mask
