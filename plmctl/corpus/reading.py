"""From sources to documents, streamed: a document is in memory only while it is used.

A source can be read in pieces, so that several processes share a large one. A piece is a range in
the source's unit: bytes of a text or jsonl file, row groups of parquet, rows of a ``datasets``
folder, documents of a sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from plmctl.corpus import sample
from plmctl.corpus.document import Document, read_lines
from plmctl.corpus.source import Source, size_of
from plmctl.corpus.tabular import missing_column, open_dataset, open_parquet, origin_of, rows
from plmctl.errors import DataError

if TYPE_CHECKING:
    from plmctl.config.sections import TextConfig


# --- The documents of a source ---


Unit = Literal["blank_line", "file", "line"]
"""What a document is in a text file."""


def documents(
    source: Source, config: TextConfig, start: int = 0, end: int | None = None
) -> Iterator[Document]:
    """The documents of a source, or of its piece [start, end).

    Args:
        source: The source to read.
        config: The column of the text, and what a document is in a text file.
        start: Where the piece begins, in the source's unit.
        end: Where the next piece begins; None reads to the end.

    Raises:
        DataError: Bytes that are not UTF-8, a malformed row, a missing column; with file and line.
        ConfigError: No such sample.
    """
    if source.kind == "sample":
        yield from sample.documents(source.name.removeprefix("sample:"), start, end)
    elif source.kind == "text":
        unit = text_unit(source) if config.documents == "auto" else config.documents
        yield from _documents_of_text_file(source, unit, start, end)
    else:
        for values, origin in rows(source, start, end, config.text):
            if config.text not in values:
                raise missing_column(origin, config.text, list(values))
            text = values[config.text]
            if text is not None and not isinstance(text, str):
                raise DataError(
                    f"{origin}: column {config.text!r} holds a {type(text).__name__}, not text",
                    "name the column of the text: `data.text`",
                )
            yield Document(text or "", origin)  # empty documents are left out later


def _documents_of_text_file(
    source: Source, unit: Unit, start: int, end: int | None
) -> Iterator[Document]:
    lines: list[str] = []
    origin = ""
    for line in read_lines(source.path, start):
        blank = unit != "file" and not line.text.strip()
        if not lines and not blank:
            if end is not None and line.offset >= end:
                return
            origin = origin_of(source, start, line.offset, line.number)
        if not blank:
            lines.append(line.text)
        if lines and (blank or unit == "line"):
            yield Document("".join(lines), origin)
            lines = []
    if lines:
        yield Document("".join(lines), origin)


def text_unit(source: Source) -> Unit:
    """``blank_line`` if there is a blank line between lines of text, else ``file``."""
    text = blank = False
    for line in read_lines(source.path):
        if not line.text.strip():
            blank = text
        elif blank:
            return "blank_line"
        else:
            text = True
    return "file"


def opening(source: Source, config: TextConfig, size: int) -> str:
    """About the first ``size`` characters of a source; those of a text file unchanged."""
    if source.kind == "text":
        pieces, gap = (line.text for line in read_lines(source.path)), ""
    else:
        pieces, gap = (document.text for document in documents(source, config)), "\n"
    taken: list[str] = []
    while size > 0 and (piece := next(pieces, None)) is not None:
        taken.append(piece[:size])
        size -= len(piece)
    return gap.join(taken)


# --- Cutting sources into pieces of about equal work that can be read on their own ---


@dataclass(frozen=True)
class Piece:
    """A part of a source.

    Attributes:
        start: Where it begins, in the source's unit, see ``documents``.
        end: Where the next piece begins; None for the last piece.
        size: Approximate number of bytes: the amount of work.
    """

    start: int
    end: int | None
    size: int


def cut_source(source: Source, unit: Unit, size: int) -> list[Piece]:
    """The pieces of a source in order; each document is in exactly one.

    Args:
        source: The source; compressed and csv files are one piece.
        unit: What a document is in a text file.
        size: Approximate number of bytes per piece.
    """
    if source.seekable and not (source.kind == "text" and unit == "file"):
        return _cut_bytes(source.path, size, blank=source.kind == "text" and unit == "blank_line")
    if source.kind == "parquet":
        metadata = open_parquet(source).metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        return _group_units([group.total_byte_size for group in groups], size)
    if source.kind in ("datasets", "hf", "ms"):
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
    return _pieces_between([*cuts, length])


def _pieces_between(cuts: list[int]) -> list[Piece]:
    ends: list[int | None] = [*cuts[1:-1], None]
    sizes = [end - start for start, end in zip(cuts, cuts[1:], strict=False)]
    return [Piece(*facts) for facts in zip(cuts, ends, sizes, strict=False)]


def _group_units(sizes: list[int], size: int) -> list[Piece]:
    """Pieces of consecutive units of these sizes, each of at least ``size`` bytes but the last."""
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
