"""What the tokenizers library gives for a list of texts or units, as three arrays in a row."""

from __future__ import annotations

import re
from functools import cache
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from plmctl.tokenization.units import INNER, Kind, unspaced
from plmctl.tokenization.words import has_chinese, starts_within

_JOINED = 200  # words given to the library as one text


class Ids(NamedTuple):
    """The ids of several texts, one after the other.

    Attributes:
        ids: Of all texts, [tokens].
        starts: Whether a word starts at each, [tokens].
        sizes: Ids of each text, [texts].
    """

    ids: NDArray[np.int64]
    starts: NDArray[np.bool_]
    sizes: NDArray[np.int64]


def encode_texts(tokenizer: Tokenizer, texts: list[str], *, marks: bool, segmented: bool) -> Ids:
    """The ids and word starts of all texts in a row, and the number of ids of each.

    Args:
        tokenizer: Any.
        texts: One or more.
        marks: Whether punctuation marks are words of their own, as Chinese characters are.
        segmented: Whether Chinese words are jieba's.
    """
    made, _ = _encode(tokenizer, texts, marks, segmented)
    return made


def encode_units(tokenizer: Tokenizer, units: list[str], kind: Kind) -> Ids:
    """The same of the units of a text (``units.pattern``), or of parts of them (``seams``).

    To the library a text costs about ten times what a word in it does, so those units that are
    surely one word each go to it by the thousand as one text; its numbers of words part them again.

    Args:
        tokenizer: One whose units are known.
        units: One or more.
        kind: Whose.
    """
    inner = np.fromiter((unit[0] == INNER for unit in units), np.bool_, len(units))
    if inner.any():
        made = encode_units(tokenizer, [unit.removeprefix(INNER) for unit in units], kind)
        made.starts[(np.cumsum(made.sizes) - made.sizes)[inner]] = False
        return made
    marks = kind == "spaces"
    matches = map(_single_word(kind).fullmatch, units)
    sort = [(match.lastindex or 0) if match else 0 for match in matches]
    others, words, letters = (
        [unit for unit, number in zip(units, sort, strict=True) if number == wanted]
        for wanted in (0, 1, 2)
    )
    parts = [
        encode_texts(tokenizer, others, marks=marks, segmented=False),
        _encode_words(tokenizer, words, "" if kind == "bytes" else " ", marks),
        _encode_words(tokenizer, letters, "\n", marks),
    ]
    return chosen(joined(parts), np.argsort(np.argsort(sort, kind="stable")))


@cache
def _single_word(kind: Kind) -> re.Pattern[str]:
    """Units that are a word of the pre-tokenizer wherever they stand among others of their group.

    Group 1 is ASCII alone, where no normalization or version of Unicode makes a difference. Group 2
    of kind "bytes" has other letters or digits, without a space before them.
    """
    if kind != "bytes":
        return re.compile({"bert": "([A-Za-z0-9]+)", "spaces": "([!-~]+)"}[kind])
    return re.compile(f"( (?:[A-Za-z]+|[0-9]+))|([{unspaced('L')}]+|[{unspaced('N')}]+)")


def _encode_words(tokenizer: Tokenizer, words: list[str], gap: str, marks: bool) -> Ids:
    texts = [gap.join(words[at : at + _JOINED]) for at in range(0, len(words), _JOINED)]
    made, word = _encode(tokenizer, texts, marks, False)
    text = np.repeat(np.arange(len(texts)), made.sizes)
    if gap == "\n":  # to GPT-2 a word as well
        kept = word % 2 == 0
        word, text = word[kept] // 2, text[kept]
        made = Ids(made.ids[kept], made.starts[kept], made.sizes)
    sizes = np.bincount(word + _JOINED * text, minlength=len(words))
    return Ids(made.ids, made.starts, sizes)


def _encode(
    tokenizer: Tokenizer, texts: list[str], marks: bool, segmented: bool
) -> tuple[Ids, NDArray[np.int64]]:
    """The ids of texts, and the number of its word within its text, of each."""
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    sizes = np.array([len(encoding) for encoding in encodings], dtype=np.int64)
    total = int(sizes.sum())
    ids = np.fromiter(chain.from_iterable(e.ids for e in encodings), np.int64, total)
    words = np.fromiter(chain.from_iterable(e.word_ids for e in encodings), np.int64, total)
    text = np.repeat(np.arange(len(texts)), sizes)
    starts = (np.diff(words, prepend=-1) != 0) | (np.diff(text, prepend=-1) != 0)
    if marks or any(has_chinese(text) for text in texts):
        pairs = chain.from_iterable(e.offsets for e in encodings)
        offsets = np.fromiter(chain.from_iterable(pairs), np.int64, 2 * total).reshape(-1, 2)
        offsets += np.cumsum([0, *map(len, texts)])[text][:, None]
        starts = starts_within(starts, offsets, texts, marks=marks, segmented=segmented)
    return Ids(ids, starts, sizes), words


def joined(parts: list[Ids]) -> Ids:
    """The texts of several, one after the other."""
    return Ids(*map(np.concatenate, zip(*parts, strict=True)))


def chosen(made: Ids, texts: NDArray[np.int64]) -> Ids:
    """Those of some of the texts, in this order; a text may be named again."""
    sizes = made.sizes[texts]
    # Where each id lies: as far from its text's first there as here.
    shift = (np.cumsum(made.sizes) - made.sizes)[texts] - (np.cumsum(sizes) - sizes)
    at = np.arange(sizes.sum()) + np.repeat(shift, sizes)
    return Ids(made.ids[at], made.starts[at], sizes)
