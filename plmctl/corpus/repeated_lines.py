"""Lines that occur in many documents, such as menus, headers and footers: found, and left out.

A line is compared without the white space around it. A first pass writes how many documents of
each shard have each line (16 bytes per different line, on the disk). The counts are added up in
ranges of hashes, so that memory is bounded whatever the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plmctl.corpus.document import Document, hash_of, is_blank

_AT_ONCE = 1 << 28  # bytes of counts that are added up together: about a gigabyte of memory

Counts = NDArray[np.uint64]
"""[L, 2] hashes of lines, ascending, and in how many documents each is."""


def counts_of(texts: Iterable[str]) -> Counts:
    """In how many of the texts each line is."""
    of_each = [np.unique(_hashes(text.splitlines())) for text in texts]
    hashes, counts = np.unique(np.concatenate([_NONE, *of_each]), return_counts=True)
    return np.stack([hashes, counts.astype("<u8")], axis=1)


_NONE = np.zeros(0, dtype="<u8")


def _hashes(lines: Sequence[str]) -> NDArray[np.uint64]:
    return np.fromiter((hash_of(line) for line in lines if not is_blank(line)), dtype="<u8")


def repeated(paths: Sequence[Path], more_than: int) -> NDArray[np.uint64]:
    """The hashes of the lines that are in more documents than that, ascending.

    Args:
        paths: The counts of each shard.
    """
    ranges = 1 + sum(path.stat().st_size for path in paths) // _AT_ONCE
    limits = [np.uint64(number * 2**64 // ranges) for number in range(1, ranges)]
    places = list[list[int]]()
    for path in paths:
        hashes = np.fromfile(path, "<u8")[::2]
        places.append([0, *np.searchsorted(hashes, limits).tolist(), len(hashes)])
    results = [_NONE]
    for number in range(ranges):
        pairs = [
            np.fromfile(path, "<u8", 2 * (at[number + 1] - at[number]), offset=16 * at[number])
            for path, at in zip(paths, places, strict=True)
        ]
        both = np.concatenate([_NONE, *pairs]).reshape(-1, 2)
        order = np.argsort(both[:, 0], kind="stable")
        hashes, first = np.unique(both[order, 0], return_index=True)
        if len(hashes):
            counts = np.add.reduceat(both[order, 1], first)
            results.append(hashes[counts > more_than])
    return np.concatenate(results)


def without_lines(document: Document, repeated: NDArray[np.uint64]) -> tuple[Document, int]:
    """A document without these lines, and how many they were; itself if it has none."""
    lines = document.text.splitlines(keepends=True)
    hashes = np.fromiter((0 if is_blank(line) else hash_of(line) for line in lines), dtype="<u8")
    if not len(repeated):
        return document, 0
    places = np.minimum(np.searchsorted(repeated, hashes), len(repeated) - 1)
    out = repeated[places] == hashes
    if not out.any():
        return document, 0
    text = "".join(line for line, gone in zip(lines, out, strict=True) if not gone)
    if document.words is None:
        return Document(text, document.origin), int(out.sum())
    sizes = np.array([len(line) for line in lines])
    ends = np.cumsum(sizes)
    owners = np.minimum(np.searchsorted(ends, document.words, side="right"), len(lines) - 1)
    gone_before = np.cumsum(np.where(out, sizes, 0)) - np.where(out, sizes, 0)
    words = (document.words - gone_before[owners])[~out[owners]]
    # A kept line begins a word, also where the line before it, which ended one, is gone.
    begins = (ends - sizes - gone_before)[~out]
    return Document(text, document.origin, np.union1d(words, begins[begins > 0])), int(out.sum())
