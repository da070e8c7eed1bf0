"""Sources to documents, streaming: a document is in memory only while it is used.

A source can be read in pieces, so that a large one is shared out between processes; ``plan.py``
cuts them. A piece is a range in the source's own unit: bytes of a text or jsonl file, row groups of
parquet, rows of a ``datasets`` folder, documents of a sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from plmctl.corpus import sample
from plmctl.corpus.document import Document
from plmctl.corpus.lines import read_lines
from plmctl.corpus.source import Source
from plmctl.corpus.tabular import missing_column, origin_of, rows
from plmctl.errors import DataError

if TYPE_CHECKING:
    from plmctl.config.data import TextConfig

Unit = Literal["blank_line", "file", "line"]
"""What a document is in a text file."""


def documents(
    source: Source, config: TextConfig, start: int = 0, end: int | None = None
) -> Iterator[Document]:
    """The documents of a source, or of its piece [start, end).

    Args:
        source: What to read.
        config: The column of the text, and what a document is in a text file.
        start: Where a document begins, in the source's unit.
        end: Documents that begin here or later are left out; None reads to the end.

    Raises:
        DataError: Bytes that are not UTF-8, a malformed row, a missing column; with file and line.
        ConfigError: No such sample.
    """
    if source.kind == "sample":
        yield from sample.documents(source.name.removeprefix("sample:"), start, end)
    elif source.kind == "text":
        unit = text_unit(source) if config.documents == "auto" else config.documents
        yield from _text_documents(source, unit, start, end)
    else:
        for values, origin in rows(source, start, end, config.text):
            yield Document(_text(values, config.text, origin), origin)


def _text(values: dict[str, Any], column: str, origin: str) -> str:
    """The text of a row; a missing value (null) is an empty document, which is left out later."""
    if column not in values:
        raise missing_column(origin, column, list(values))
    text = values[column]
    if text is None:
        return ""
    if not isinstance(text, str):
        raise DataError(
            f"{origin}: column {column!r} holds a {type(text).__name__}, not text",
            "name the column of the text: `data.text`",
        )
    return text


def _text_documents(source: Source, unit: Unit, start: int, end: int | None) -> Iterator[Document]:
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
    """``blank_line`` if a blank line stands between lines of text, else ``file``."""
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
    """The first ``size`` characters of a source, more or less; of a text file as they are."""
    if source.kind == "text":
        pieces, gap = (line.text for line in read_lines(source.path)), ""
    else:
        pieces, gap = (document.text for document in documents(source, config)), "\n"
    taken: list[str] = []
    while size > 0 and (piece := next(pieces, None)) is not None:
        taken.append(piece[:size])
        size -= len(piece)
    return gap.join(taken)
