"""Words as rows of characters: the alphabet, and the symbols that merging begins with."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plmctl.errors import ConfigError
from plmctl.tokenization.merging import Words

COVERAGE = 0.99995
"""Share of the text whose characters are kept: ALBERT's."""

CONTINUES = "##"
ENDS = "</w>"

Mark = Literal["continues", "ends", None]
"""WordPiece marks what does not begin a word, classic BPE what ends one."""

_MARKED = 1 << 21  # above all code points


def words_of(counts: Mapping[str, int], mark: Mark, alphabet: NDArray[np.uint32] | None) -> Words:
    """Words cut into characters.

    A word is cut in two where it has a character that is not in the alphabet.

    Args:
        counts: How often each word was seen.
        mark: Which characters are other symbols than elsewhere.
        alphabet: Code points to keep, sorted; None keeps all.

    Returns:
        The words; their tokens are the alphabet, then the marked characters, both sorted: those
        that occur of what does not begin a word, all of what ends one.
    """
    code, lengths = _code_points(counts)
    weights = np.repeat(np.array(list(counts.values()), dtype=np.float64), lengths)
    ends = np.cumsum(lengths)
    starts = np.zeros(len(code), dtype=bool)
    starts[ends - lengths] = True
    symbol = code.astype(np.int64)
    if mark == "continues":
        symbol[~starts] += _MARKED
    elif mark == "ends":
        symbol[ends - 1] += _MARKED
    if alphabet is None:
        alphabet = np.unique(code)
    known = np.isin(code, alphabet)
    starts |= np.append(True, ~known[:-1])[: len(known)]
    symbol = symbol[known]
    # As in GPT-1's vocabulary, any character may end a word.
    marked = alphabet + _MARKED if mark == "ends" else np.unique(symbol)
    kinds = np.union1d(alphabet, marked).astype(np.int64)
    return Words(
        [_text(int(kind), mark) for kind in kinds],
        np.searchsorted(kinds, symbol).astype(np.int32),
        starts[known],
        weights[known],
    )


def frequent_characters(counts: Mapping[str, int], limit: int | None) -> NDArray[np.uint32]:
    """Code points of the most frequent characters, sorted.

    Args:
        counts: How often each word was seen.
        limit: How many; None: as many as cover the text.
    """
    code, lengths = _code_points(counts)
    weights = np.repeat(np.array(list(counts.values()), dtype=np.float64), lengths)
    distinct, number = np.unique(code, return_inverse=True)
    seen = np.bincount(number, weights)
    order = np.argsort(-seen, kind="stable")
    if limit is None:
        # Until the rest is less than the share that may be unknown.
        rest = seen.sum() - np.cumsum(seen[order])
        limit = int(np.count_nonzero(rest > (1 - COVERAGE) * seen.sum())) + 1
    return np.asarray(np.sort(distinct[order[:limit]]))


def check_fits(needed: int, size: int, special: int) -> None:
    """Refuse a vocabulary that is too small for its single characters and special tokens.

    Raises:
        ConfigError: With what is needed.
    """
    if needed + special > size:
        raise ConfigError(
            f"vocab_size: {size:,} is too small: {special:,} special tokens and {needed:,} single "
            f"characters need {special + needed:,} ids",
            "raise vocab_size, or lower limit_alphabet to leave rare characters out",
        )


def _text(kind: int, mark: Mark) -> str:
    character = chr(kind % _MARKED)
    if kind < _MARKED:
        return character
    return CONTINUES + character if mark == "continues" else character + ENDS


def _code_points(counts: Mapping[str, int]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The characters of all words in a row, and the length of each word."""
    code = np.frombuffer("".join(counts).encode("utf-32-le"), dtype="<u4")
    return code, np.fromiter(map(len, counts), np.int64, len(counts))
