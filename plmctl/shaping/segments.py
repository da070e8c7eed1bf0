"""Cutting texts into consecutive segments of one length, the last of each text shorter.

Source: google-research/text-to-text-transfer-transformer, t5/data/preprocessors.py
(``reduce_concat_tokens``, ``split_tokens``).
"""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

CONCATENATED = 128
"""Documents that T5 puts one after the other, with nothing between them, before it cuts."""


def concatenated(documents: Ints, group: int = CONCATENATED) -> Ints:
    """Bounds of groups of documents: [D+1] token positions -> [groups + 1].

    The original first takes one random chunk of 65,536 tokens of each longer document, to bound its
    memory. Here all of the text is used.
    """
    return np.unique(np.append(documents[:-1:group], documents[-1:]))


def segments(bounds: Ints, size: int, shortest: int) -> tuple[Ints, Ints]:
    """Consecutive segments of each text.

    Args:
        bounds: [N+1] token position where each text starts; the last is the end of the last.
        size: Tokens a segment; the last of a text is shorter.
        shortest: Segments of fewer tokens are left out.

    Returns:
        starts, ends: token positions, each [segments].
    """
    pieces = -(-np.diff(bounds) // size)
    first = np.concatenate([[0], np.cumsum(pieces)])
    within = np.arange(first[-1]) - np.repeat(first[:-1], pieces)
    starts = np.repeat(bounds[:-1], pieces) + size * within
    ends = np.minimum(starts + size, np.repeat(bounds[1:], pieces))
    fit = ends - starts >= shortest
    return starts[fit], ends[fit]
