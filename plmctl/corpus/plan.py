"""Cutting sources into pieces of about equal work that can be read on their own."""

from dataclasses import dataclass
from pathlib import Path

from plmctl.corpus import sample
from plmctl.corpus.reading import Unit
from plmctl.corpus.source import Source, size_of
from plmctl.corpus.tabular import open_dataset, open_parquet


@dataclass(frozen=True)
class Piece:
    """A part of a source.

    Attributes:
        start: In the source's unit, see ``reading.documents``.
        end: Where the next piece begins; None for the last.
        size: Bytes, more or less: how much work it is.
    """

    start: int
    end: int | None
    size: int


def cut(source: Source, unit: Unit, size: int) -> list[Piece]:
    """The pieces of a source in order; each document is in exactly one.

    Args:
        source: What to cut; compressed and csv files are one piece.
        unit: What a document is, if it is a text file.
        size: Bytes a piece, more or less.
    """
    if source.seekable and not (source.kind == "text" and unit == "file"):
        return _cut_bytes(source.path, size, blank=source.kind == "text" and unit == "blank_line")
    if source.kind == "parquet":
        metadata = open_parquet(source).metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        return _group([group.total_byte_size for group in groups], size)
    if source.kind in ("datasets", "hf"):
        loaded = open_dataset(source)
        return _share_out(len(loaded), loaded.data.nbytes, size)
    if source.kind == "sample":
        count = sample.count(source.name.removeprefix("sample:"))
        return _share_out(count, size_of(source), size)
    return [Piece(0, None, size_of(source))]


def _cut_bytes(path: Path, size: int, *, blank: bool) -> list[Piece]:
    """Cut where a line begins, after a blank one if ``blank``."""
    length = path.stat().st_size
    cuts = [0]
    with path.open("rb") as file:
        while cuts[-1] + size < length:
            file.seek(cuts[-1] + size - 1)
            file.readline()  # to the next line's first byte
            while blank and file.readline().strip():
                pass
            if file.tell() >= length:
                break
            cuts.append(file.tell())
    return _between([*cuts, length])


def _between(cuts: list[int]) -> list[Piece]:
    ends: list[int | None] = [*cuts[1:-1], None]
    sizes = [end - start for start, end in zip(cuts, cuts[1:], strict=False)]
    return [Piece(*facts) for facts in zip(cuts, ends, sizes, strict=False)]


def _group(sizes: list[int], size: int) -> list[Piece]:
    """Consecutive units of these sizes, together until a piece is large enough."""
    pieces: list[Piece] = []
    start = total = 0
    for number, weight in enumerate(sizes, 1):
        total += weight
        if total >= size or number == len(sizes):
            pieces.append(Piece(start, number, total))
            start, total = number, 0
    return pieces or [Piece(0, None, 0)]


def _share_out(count: int, total: int, size: int) -> list[Piece]:
    """``count`` units of about the same size, ``total`` bytes together."""
    parts = max(1, min(count, -(-total // size)))
    cuts = [count * number // parts for number in range(parts + 1)]
    return [Piece(a, b, total // parts) for a, b in zip(cuts, cuts[1:], strict=False)]
