"""Cutting texts into consecutive segments of one length, the last of each text shorter.

Source: google-research/text-to-text-transfer-transformer, t5/data/preprocessors.py
(``reduce_concat_tokens``, ``split_tokens``).
"""

from collections.abc import Iterator

import numpy as np

from plmctl.arrays import Ints

CONCATENATED = 128
"""Documents that T5 puts one after the other, with nothing between them, before it cuts."""


_TOGETHER = 1 << 18
"""Documents that are cut together."""


def segments(
    sentences: Ints, documents: Ints, size: int, shortest: int, group: int = 1
) -> Iterator[Ints]:
    """Consecutive segments of each text: a document, or some that follow each other as one.

    The original first takes one random chunk of 65,536 tokens of each longer document, to bound its
    memory. Here all of the text is used.

    Args:
        sentences: [S+1] token position where each sentence starts.
        documents: [D+1] sentence index where each document starts.
        size: Tokens a segment; the last of a text is shorter.
        shortest: Segments of fewer tokens are left out.
        group: Documents of a text.

    Yields:
        In parts [2 * segments] the token positions where each starts and ends, in turn.
    """
    count, together = len(documents) - 1, max(1, _TOGETHER // group) * group
    for first in range(0, count, together):
        last = min(first + together, count)
        bounds = np.append(documents[first:last:group], documents[last])
        yield _cut(sentences[bounds], size, shortest)


def _cut(bounds: Ints, size: int, shortest: int) -> Ints:
    pieces = -(-np.diff(bounds) // size)
    first = np.concatenate([[0], np.cumsum(pieces)])
    within = np.arange(first[-1]) - np.repeat(first[:-1], pieces)
    starts = np.repeat(bounds[:-1], pieces) + size * within
    ends = np.minimum(starts + size, np.repeat(bounds[1:], pieces))
    fit = ends - starts >= shortest
    return np.stack([starts[fit], ends[fit]], axis=1).reshape(-1)
