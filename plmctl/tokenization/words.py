"""Where words start: within the words of a pre-tokenizer, or piece by piece by ALBERT's rule."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Bools
from plmctl.characters import ALL_HAN, HAN_RANGES
from plmctl.errors import ConfigError
from plmctl.tokenization.units import is_bert_mark

_HAN = re.compile(f"[{ALL_HAN}]")
_SPACES = np.array([9, 10, 13, 32, 0xA0, 0x3000], dtype="<u4")

SPACE_MARK = "\u2581"
"""What SentencePiece's pieces have in place of the space before a word."""

# The original's list of marks lacks these four, so that they count as foreign characters.
_ALBERT_MARKS = frozenset(string.punctuation) - frozenset("'<=>")
_ALBERT_INNER = _ALBERT_MARKS | frozenset(string.ascii_lowercase)


def has_chinese(text: str) -> bool:
    """Whether a text has a Chinese character."""
    return _HAN.search(text) is not None


def chinese(code: NDArray[np.uint32]) -> Bools:
    """Whether each code point is that of a Chinese character."""
    found: Bools = np.zeros(len(code), dtype=bool)
    for first, last in HAN_RANGES:
        found |= (code >= first) & (code <= last)
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


def albert_starts(pieces: Sequence[str]) -> Bools:
    """Whether each piece of a SentencePiece vocabulary starts a word, by the rule of ALBERT's code.

    A piece continues a word if it consists of English letters and ASCII marks alone, and is more
    than one mark. All others start one: those after a space, a single mark, and every piece with a
    digit, an apostrophe or a character that is not English, however many make up one word. Letters
    after a mark belong to the mark's word: `'s` is one word, and so is `-known`.

    Args:
        pieces: The texts of the vocabulary's pieces.

    Source: google-research/albert, create_pretraining_data.py, `_is_start_piece_sp`.
    """
    return np.array(
        [
            piece.startswith(SPACE_MARK)
            or piece in _ALBERT_MARKS
            or not all(character.lower() in _ALBERT_INNER for character in piece)
            for piece in pieces
        ],
        dtype=np.bool_,
    )


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
