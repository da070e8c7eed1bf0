"""A seeded part of a corpus, by bytes: what a vocabulary is learnt from."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from plmctl.config.data import TextConfig
from plmctl.corpus.plan import Piece, cut
from plmctl.corpus.reading import documents
from plmctl.corpus.source import Source, resolve

_PIECES = 256  # a sample is at least this many pieces, if the sources can be cut so
_SMALLEST, _LARGEST = 1 << 14, 1 << 23  # bytes


@dataclass(frozen=True)
class Portion:
    """What is read of a corpus.

    Attributes:
        config: How documents are found.
        parts: Pieces of its sources, in their order.
        shares: Of each piece the share of its documents that is kept.
        size: Bytes of what is kept, more or less; compressed ones count as they lie.
        total: Bytes of the corpus.
        seed: Of the choice.
    """

    config: TextConfig
    parts: tuple[tuple[Source, Piece], ...]
    shares: tuple[float, ...]
    size: int
    total: int
    seed: int

    def lines(self, progress: Callable[[int, int], None]) -> Iterator[str]:
        """The lines of the portion that are not empty, streaming.

        Args:
            progress: Told of the bytes done and of all.

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


def portion(config: TextConfig, max_bytes: int, seed: int) -> Portion:
    """About ``max_bytes`` of a corpus, from all over it; all of it if it is smaller.

    Pieces are chosen by lot, so that only what is kept is read; of a source that cannot be read in
    pieces (compressed, csv) it is documents.

    Args:
        config: The corpus. A line is a document in a text file, whatever the config has, so that
            no file has to be held in memory.
        max_bytes: How much.
        seed: Decides the choice.

    Raises:
        DataError: Nothing is there.
        ConfigError: A file of a kind that is not read.
    """
    config = config.model_copy(update={"documents": "line"})
    size = max(_SMALLEST, min(_LARGEST, max_bytes // _PIECES))
    parts = [
        (source, piece) for source in resolve(config.train) for piece in cut(source, "line", size)
    ]
    total = sum(piece.size for _, piece in parts)
    if total <= max_bytes:
        return Portion(config, tuple(parts), (1.0,) * len(parts), total, total, seed)
    share = max_bytes / total
    small = [number for number, (_, piece) in enumerate(parts) if piece.size <= 4 * size]
    chosen = _drawn(small, [parts[number][1].size for number in small], share, seed)
    kept = [
        (part, 1.0 if number in chosen else share)
        for number, part in enumerate(parts)
        if number in chosen or part[1].size > 4 * size
    ]
    kept_bytes = sum(piece.size * of_piece for (_, piece), of_piece in kept)
    pieces, shares = zip(*kept, strict=True)
    return Portion(config, pieces, shares, round(kept_bytes), total, seed)


def _drawn(numbers: list[int], sizes: list[int], share: float, seed: int) -> set[int]:
    """Some of the numbers, by lot, until they are this share of the whole."""
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
