"""A seeded part of a corpus by whole documents: what a finished model is scored on."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from plmctl.config.data import TextConfig
from plmctl.corpus.document import Document
from plmctl.corpus.reading import documents
from plmctl.corpus.source import resolve
from plmctl.corpus.split import share_of

_WORD = 100  # characters that a word has at most


@dataclass(frozen=True)
class Limits:
    """How much is read.

    Attributes:
        documents: At most so many; None: all.
        size: At most so many UTF-8 bytes; the last document is cut where a word ends.
        each: At most so many UTF-8 bytes of the beginning of each document.
        held_out: Only the documents that this validation share holds out.
        seed: Of the choice.
    """

    documents: int | None = None
    size: int | None = None
    each: int | None = None
    held_out: float | None = None
    seed: int = 0


def excerpt(config: TextConfig, limits: Limits) -> list[Document]:
    """The documents of a corpus, or as many of them as the limits allow, by lot.

    The lot of a document is a hash of its text and the seed: a smaller excerpt is a part of a
    larger one, and neither the order of the files nor what else is in them changes it. Only what is
    kept is held in memory.

    Raises:
        DataError: Bad input, with file and line.
    """
    found = (
        document if limits.each is None else shortened(document, limits.each)
        for source in resolve(config.train)
        for document in documents(source, config)
        if document.text.strip()
        and (limits.held_out is None or share_of(document.text) < limits.held_out)
    )
    if limits.documents is None and limits.size is None:
        return list(found)
    return _drawn(found, limits)


def _drawn(found: Iterator[Document], limits: Limits) -> list[Document]:
    heap: list[tuple[int, int, Document]] = []  # the highest lot, and the latest, on top
    size, number = 0, count()
    for document in found:
        content = document.text.encode()
        heapq.heappush(heap, (-lot(content, limits.seed), -next(number), document))
        size += len(content)
        while _too_much(heap, size, limits):
            size -= len(heapq.heappop(heap)[2].text.encode())
    drawn = [document for *_, document in sorted(heap, key=lambda item: item[:2], reverse=True)]
    if limits.size is not None and size > limits.size:
        left = len(drawn[-1].text.encode()) - (size - limits.size)
        drawn[-1] = shortened(drawn[-1], left)
    return [document for document in drawn if document.text.strip()]


def _too_much(heap: list[tuple[int, int, Document]], size: int, limits: Limits) -> bool:
    if limits.documents is not None and len(heap) > limits.documents:
        return True
    if limits.size is None or len(heap) < 2:
        return False
    return size - len(heap[0][2].text.encode()) >= limits.size


def shortened(document: Document, size: int) -> Document:
    """The first ``size`` UTF-8 bytes, without the word that the end cuts through."""
    text = document.text
    kept = text.encode()[:size].decode(errors="ignore")
    if len(kept) == len(text):
        return document
    if not text[len(kept)].isspace():
        cut = max((at for at, character in enumerate(kept) if character.isspace()), default=0)
        if cut and len(kept) - cut < _WORD:  # text without spaces is cut between any two characters
            kept = kept[:cut]
    return Document(kept.rstrip(), document.origin)


def lot(content: bytes, seed: int) -> int:
    """A number below 2^64 that a text and a seed decide: what is drawn first has a low one."""
    key = (seed % 2**64).to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8, key=key).digest(), "little")
