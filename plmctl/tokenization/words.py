"""Where words start: by the pre-tokenizer with additions for Chinese, ALBERT's rule, or marks."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Bools, Ints
from plmctl.characters import ALL_HAN, chinese
from plmctl.errors import ConfigError
from plmctl.tokenization.units import SPACE_MARK, bert_marks

_HAN = re.compile(f"[{ALL_HAN}]")
_SPACES = np.array([9, 10, 13, 32, 0xA0, 0x3000], dtype="<u4")

# The original's list of marks does not have these four, so they count as foreign characters.
_ALBERT_MARKS = frozenset(string.punctuation) - frozenset("'<=>")
_ALBERT_INNER = _ALBERT_MARKS | frozenset(string.ascii_lowercase)


def has_chinese(text: str) -> bool:
    """Whether a text has a Chinese character."""
    return _HAN.search(text) is not None


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

    A piece continues a word if it consists only of English letters and ASCII marks and is not a
    single mark. All other pieces start a word: pieces after a space, single marks, and every piece
    with a digit, an apostrophe or a character that is not English, even several in one word.
    Letters after a mark belong to the word of the mark: `'s` is one word, and so is `-known`.

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


def check_mark(mark: str, special_tokens: Iterable[str]) -> None:
    """Refuse a word mark that is in a special token, which could then never be in the text.

    Raises:
        ConfigError: With the special token.
    """
    for token in special_tokens:
        if mark in token:
            raise ConfigError(
                f"data.word_mark: {mark!r} is in the special token {token!r}",
                "mark the words of the text with something else, such as \u2581 (U+2581)",
            )


def marked_starts(text: str, offsets: Sequence[tuple[int, int]], words: Ints) -> Bools:
    """Whether each token starts a word of segmented text, [tokens].

    A token starts a word if its first character that is not white space does. Tokens of only white
    space belong to what follows. If a token has the end of a word and the beginning of the next,
    both words are one here: they can only be masked together. A line end also ends a word.

    Args:
        offsets: The characters of each token. Tokens can share a character if each has some of its
            bytes.
        words: [W] characters where words start.
    """
    code = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    spans = np.array(offsets, dtype=np.int64).reshape(-1, 2)
    if not len(spans):
        return np.zeros(0, dtype=np.bool_)
    # For each character, and the end: the first character from there that is not white space.
    end = len(code)
    visible = np.append(np.where(np.isin(code, _SPACES), end, np.arange(end)), end)
    visible = np.minimum.accumulate(visible[::-1])[::-1]
    begins = np.zeros(end + 1, dtype=np.bool_)
    begins[visible[words]] = True
    begins[visible[np.flatnonzero(code == ord("\n")) + 1]] = True
    first = visible[spans[:, 0]]
    new = first != np.append(-1, first[:-1])
    covered = np.append(0, np.maximum.accumulate(spans[:, 1])[:-1])
    starts: Bools = begins[first] & new & (first >= covered)
    starts[0] = True
    return starts


def starts_within(
    starts: Bools,
    offsets: NDArray[np.int64],
    texts: list[str],
    *,
    marks: bool,
    segmented: bool = False,
) -> Bools:
    """All word starts, given those of the pre-tokenizer.

    Each Chinese character is a word, and with ``marks`` each punctuation mark: a word starts at the
    first token before and after it.

    Args:
        starts: Where the pre-tokenizer's words start, one per token.
        offsets: The characters of each token in the joined texts, [tokens, 2]. Tokens can share a
            character if each has some of its bytes.
        segmented: Whether several Chinese characters are one word if jieba says so.
    """
    code = np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4")
    han = np.append(chinese(code), False)
    alone = han.copy()
    if marks:
        alone[:-1] |= bert_marks()[np.minimum(code, 0xFFFF)]
    # Tokens of only white space, such as the mark before a word, do not end a word.
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
    """Whether each character is inside one of jieba's Chinese words, and not its first."""
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

    jieba.setLogLevel(logging.WARNING)  # otherwise it writes about its dictionary to stderr
    return jieba.Tokenizer()
