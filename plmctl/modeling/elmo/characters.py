"""Words as rows of character ids: all that ELMo knows of a word.

A character is a byte of the word's UTF-8. Ids of the published code (allenai/bilm-tf, data.py):
0 to 255 the bytes, then the five below; here all are one more, so that 0 is padding, a place
without a word. Published weights have rows for the 261 ids; the row of 0 is zero.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PAD = 257, 258, 259, 260, 261
SYMBOLS = 262
WIDTH = 50

Characters = NDArray[np.int16]


def encode_words(words: Sequence[str], width: int = WIDTH) -> Characters:
    """Character ids of words: begin, the bytes, end, padding.

    Args:
        words: N words; the bytes of a word that do not fit are left out.
        width: Ids a word.

    Returns:
        [N, width].
    """
    encoded = [word.encode("utf-8", "ignore")[: width - 2] for word in words]
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    column = np.arange(width)
    table = np.full((len(encoded), width), PAD, dtype=np.int16)
    table[:, 0] = BEGIN_WORD
    table[(column >= 1) & (column <= lengths[:, None])] = 1 + np.frombuffer(
        b"".join(encoded), dtype=np.uint8
    ).astype(np.int16)
    table[np.arange(len(encoded)), lengths + 1] = END_WORD
    return table


def boundary(symbol: int, width: int = WIDTH) -> Characters:
    """The word that begins or ends a sentence: [width] ids of BEGIN_SENTENCE or END_SENTENCE."""
    row = np.full(width, PAD, dtype=np.int16)
    row[:3] = BEGIN_WORD, symbol, END_WORD
    return row


def encode_sentences(sentences: Sequence[Sequence[str]], width: int = WIDTH) -> Characters:
    """What ``ElmoModel`` takes: [B, T, width] of B sentences of words, padded with zeros."""
    lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
    batch = np.zeros((len(sentences), int(lengths.max(initial=0)), width), dtype=np.int16)
    inside = np.arange(batch.shape[1]) < lengths[:, None]
    batch[inside] = encode_words([word for sentence in sentences for word in sentence], width)
    return batch
