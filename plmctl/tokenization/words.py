"""Where words start within the words of a pre-tokenizer: at Chinese characters and at marks."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plmctl.errors import ConfigError
from plmctl.tokenization.units import is_bert_mark

Bools = NDArray[np.bool_]

_HAN_RANGES = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2FA1F))
_HAN = re.compile("[" + "".join(f"{chr(low)}-{chr(high)}" for low, high in _HAN_RANGES) + "]")
_SPACES = np.array([9, 10, 13, 32, 0xA0, 0x3000], dtype="<u4")


def has_chinese(text: str) -> bool:
    """Whether a text has a Chinese character."""
    return _HAN.search(text) is not None


def chinese(code: NDArray[np.uint32]) -> Bools:
    """Whether each code point is that of a Chinese character."""
    found: Bools = np.zeros(len(code), dtype=bool)
    for low, high in _HAN_RANGES:
        found |= (code >= low) & (code <= high)
    return found


def jieba_version() -> str:
    """The version of jieba, which decides where words start.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        return version("jieba")
    except PackageNotFoundError as error:
        raise ConfigError(
            "data.words: jieba is not installed",
            "pip install 'plmctl[zh]', or set `data.words: pretokenizer`",
        ) from error


def starts_within(
    starts: Bools, offsets: NDArray[np.int64], texts: list[str], *, marks: bool, segmented: bool
) -> Bools:
    """All word starts, given those of the pre-tokenizer.

    A Chinese character is a word of its own, and so are marks if asked for: a word starts at the
    first token on either side of one.

    Args:
        starts: Where the pre-tokenizer's words start, one a token.
        offsets: The characters of each token in the texts in a row, [tokens, 2]. Tokens may share a
            character, of which they have a few bytes each.
        texts: The texts.
        marks: Whether punctuation marks are words.
        segmented: Whether Chinese characters that jieba takes for one word are one.
    """
    code = np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4")
    han = np.append(chinese(code), False)
    alone = han.copy()
    if marks:
        alone[:-1] |= _marks()[np.minimum(code, 0xFFFF)]
    # White space alone, as the mark before a word, is no part of a word that could end.
    seen_until = np.cumsum(np.append(0, ~np.isin(code, _SPACES)))
    visible = seen_until[offsets[:, 1]] > seen_until[offsets[:, 0]]
    seen: NDArray[np.int64] = np.cumsum(visible) - visible
    first = np.maximum.accumulate(np.where(starts, np.arange(len(starts)), 0))
    end = np.maximum.accumulate(np.where(visible, offsets[:, 1], 0))
    follows = offsets[:, 0] >= np.append(0, end[:-1])
    begin = offsets[:, 0]
    all_starts: Bools = starts | (
        (seen > seen[first]) & follows & (alone[begin] | alone[begin - 1])
    )
    if segmented:
        all_starts &= ~_within_words(texts, han)[begin]
    return all_starts


def _within_words(texts: list[str], han: Bools) -> Bools:
    """Whether each character stands within one of jieba's Chinese words, not at its beginning."""
    begins = np.zeros(len(han), dtype=bool)
    at = 0
    for text in texts:
        begins[at + np.cumsum([0, *map(len, _segmenter().cut(text))])] = True
        at += len(text)
    inside = ~begins & han
    inside[1:] &= han[:-1]
    return inside


@cache
def _segmenter() -> Any:
    import logging

    import jieba

    jieba.setLogLevel(logging.WARNING)  # or it tells of its dictionary on stderr
    return jieba.Tokenizer()


@cache
def _marks() -> Bools:
    """Whether each character of at most four digits is a mark; the last is none."""
    return np.array([is_bert_mark(code) for code in range(0xFFFF)] + [False])
