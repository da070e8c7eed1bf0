"""Seeded samples of a corpus: of documents, to score a model on, or of bytes, for a vocabulary."""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from plmctl.config.sections import TextConfig
from plmctl.corpus.document import Document, share_of
from plmctl.corpus.reading import SourcePiece, check_marks, cut_source, documents
from plmctl.corpus.source import Source, resolve

# --- By whole documents ---


_WORD = 100  # longest word, in characters


@dataclass(frozen=True)
class SubsampleLimits:
    """How much to read.

    Attributes:
        documents: Maximum number of documents; None: all.
        size: Maximum number of UTF-8 bytes; the last document is cut where a word ends.
        each: Maximum number of UTF-8 bytes per document, from its beginning.
        held_out: Read only the documents that this validation share holds out.
    """

    documents: int | None = None
    size: int | None = None
    each: int | None = None
    held_out: float | None = None
    seed: int = 0


def subsample_documents(config: TextConfig, limits: SubsampleLimits) -> list[Document]:
    """The documents of a corpus, or a seeded sample of them within the limits.

    The documents with the lowest lots are chosen. A lot is a hash of the text and the seed, so a
    smaller sample is part of a larger one, and neither the order of the files nor other documents
    change it. Only the sample is held in memory.

    Raises:
        DataError: Bad input, with file and line.
    """
    candidates = (
        document if limits.each is None else truncate_document(document, limits.each)
        for source in resolve(config.train, config.max_document)
        for document in documents(source, config)
        if document.text.strip()
        and (limits.held_out is None or share_of(document.text) < limits.held_out)
    )
    if limits.documents is None and limits.size is None:
        return list(candidates)
    heap: list[tuple[int, int, Document]] = []  # the highest lot, and the latest, on top
    size = 0
    for number, document in enumerate(candidates):
        content = document.text.encode()
        heapq.heappush(heap, (-draw_number(content, limits.seed), -number, document))
        size += len(content)
        while heap:
            top = len(heap[0][2].text.encode())
            too_many = limits.documents is not None and len(heap) > limits.documents
            too_large = limits.size is not None and len(heap) > 1 and size - top >= limits.size
            if not too_many and not too_large:
                break
            heapq.heappop(heap)
            size -= top
    drawn = [document for *_, document in sorted(heap, key=lambda item: item[:2], reverse=True)]
    if limits.size is not None and size > limits.size:
        left = len(drawn[-1].text.encode()) - (size - limits.size)
        drawn[-1] = truncate_document(drawn[-1], left)
    return [document for document in drawn if document.text.strip()]


def truncate_document(document: Document, size: int) -> Document:
    """The first ``size`` UTF-8 bytes of a document, without the word that would be cut."""
    text = document.text
    truncated = text.encode()[:size].decode(errors="ignore")
    if len(truncated) == len(text):
        return document
    if not text[len(truncated)].isspace():
        cut = max((at for at, character in enumerate(truncated) if character.isspace()), default=0)
        if cut and len(truncated) - cut < _WORD:  # else: text without spaces
            truncated = truncated[:cut]
    return Document(truncated.rstrip(), document.origin)


def draw_number(content: bytes, seed: int) -> int:
    """The lot of a text: a hash of it and the seed, below 2^64; the lowest lots are drawn."""
    key = (seed % 2**64).to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8, key=key).digest(), "little")


# --- By bytes ---


_PIECES = 256  # a sample is at least this many pieces, if the sources can be cut so

_SMALLEST, _LARGEST = 1 << 14, 1 << 23  # bytes


@dataclass(frozen=True)
class ByteSubsample:
    """The sampled part of a corpus.

    Attributes:
        shares: The share of the documents of each piece to keep.
        size: Approximate number of bytes of the sample; compressed files count by their size.
        total: Bytes of the corpus.
    """

    config: TextConfig
    parts: tuple[tuple[Source, SourcePiece], ...]
    shares: tuple[float, ...]
    size: int
    total: int
    seed: int

    def lines(self, progress: Callable[[int, int], None]) -> Iterator[str]:
        """Stream the lines of the sample that are not empty.

        Args:
            progress: Called with the bytes done and the total.

        Raises:
            DataError: Bad input, with file and line.
        """
        whole = sum(piece.size for _, piece in self.parts)
        done = 0
        for number, ((source, piece), share) in enumerate(
            zip(self.parts, self.shares, strict=True)
        ):
            draws = random.Random(f"{self.seed} {number}")
            for document in documents(source, self.config, piece.start, piece.end):
                if share == 1 or draws.random() < share:
                    yield from (line for line in document.text.splitlines() if line.strip())
            progress(done := done + piece.size, whole)


def subsample_bytes(config: TextConfig, max_bytes: int, seed: int) -> ByteSubsample:
    """A sample of about ``max_bytes`` from all parts of a corpus; all of a smaller one.

    Pieces are drawn at random, so that only the sample is read. If a source cannot be read in
    pieces (compressed, csv), documents are drawn.

    Args:
        config: The corpus. Each line of a text file is a document, whatever the config says, so
            that no file must fit in memory.

    Raises:
        DataError: A source does not exist, or its words are not marked as the config says.
        ConfigError: Files of an unsupported kind.
    """
    check_marks(config)
    config = config.model_copy(update={"documents": "line"})
    size = max(_SMALLEST, min(_LARGEST, max_bytes // _PIECES))
    parts = [
        (source, piece)
        for source in resolve(config.train, config.max_document)
        for piece in cut_source(source, "line", size)
    ]
    total = sum(piece.size for _, piece in parts)
    if total <= max_bytes:
        return ByteSubsample(config, tuple(parts), (1.0,) * len(parts), total, total, seed)
    share = max_bytes / total
    small = [number for number, (_, piece) in enumerate(parts) if piece.size <= 4 * size]
    chosen = _draw_pieces(small, [parts[number][1].size for number in small], share, seed)
    pieces_used = [
        (part, 1.0 if number in chosen else share)
        for number, part in enumerate(parts)
        if number in chosen or part[1].size > 4 * size
    ]
    bytes_used = sum(piece.size * of_piece for (_, piece), of_piece in pieces_used)
    pieces, shares = zip(*pieces_used, strict=True)
    return ByteSubsample(config, pieces, shares, round(bytes_used), total, seed)


def _draw_pieces(numbers: list[int], sizes: list[int], share: float, seed: int) -> set[int]:
    """Numbers in random order, until their sizes are this share of the total."""
    wanted, taken = share * sum(sizes), 0
    order = list(range(len(numbers)))
    random.Random(seed).shuffle(order)
    drawn: set[int] = set()
    for place in order:
        if taken >= wanted:
            break
        drawn.add(numbers[place])
        taken += sizes[place]
    return drawn
