"""From sources to documents, streamed: a document is in memory only while it is used.

A source can be read in pieces, so that several processes share a large one. A piece is a range in
the source's unit: bytes of a text or jsonl file, row groups of parquet, rows of a ``datasets``
folder, documents of a sample.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from plmctl.corpus import sample
from plmctl.corpus.document import Document, is_blank, read_lines, too_long
from plmctl.corpus.source import Source, resolve, size_of
from plmctl.corpus.tabular import missing_column, open_dataset, open_parquet, origin_of, rows
from plmctl.errors import DataError

if TYPE_CHECKING:
    from plmctl.config.sections import TextConfig


# --- The documents of a source ---


_SAMPLED_SOURCES, _MARKED = 16, 50_000  # where word marks are expected: sources, characters of each

_LATIN = re.compile("[A-Za-z]{2}")


Unit = Literal["blank_line", "file", "line"]
"""What a document is in a text file."""

WIKI_EXTRACTOR = "wikiextractor"
"""The `data.separator` of text that WikiExtractor wrote."""

_WIKI_TAG = re.compile(r"\s*(?:<doc\b[^<>]*>|</doc>)\s*")


def documents(
    source: Source, config: TextConfig, start: int = 0, end: int | None = None
) -> Iterator[Document]:
    """The documents of a source, or of its piece [start, end).

    Args:
        config: The column of the text, and what a document is in a text file.
        start: Where the piece begins, in the source's unit.
        end: Where the next piece begins; None reads to the end.

    Raises:
        DataError: Bytes that are not UTF-8, a malformed row, a missing column; with file and line.
        ConfigError: No such sample.
    """
    if source.kind == "sample":
        every_document = sample.documents(source.name.removeprefix("sample:"), start, end)
    elif source.kind == "text":
        unit = unit_of(source, config)
        every_document = _documents_of_text_file(source, unit, config.separator, start, end)
    else:
        every_document = _documents_of_rows(source, config, start, end)
    if config.words != "marked":
        yield from every_document
        return
    for document in every_document:
        if document.words is not None:  # a list of words
            yield document
        else:
            yield Document.of_words(document.text.split(config.word_mark), document.origin)


def _documents_of_rows(
    source: Source, config: TextConfig, start: int, end: int | None
) -> Iterator[Document]:
    for values, origin in rows(source, start, end, config.text):
        if config.text not in values:
            raise missing_column(origin, config.text, list(values))
        text, made_of = values[config.text], values.get("source")
        if isinstance(made_of, str) and config.text != "source":  # as `plmctl text` writes
            origin = f"{origin} ({made_of})"
        if isinstance(text, list) and config.words == "marked":
            if not all(isinstance(word, str) for word in text):
                raise DataError(
                    f"{origin}: column {config.text!r} holds a list of something else than words",
                    "name a column with a list of the words of each document: `data.text`",
                )
            yield Document.of_words(text, origin)
        elif text is None or isinstance(text, str):
            for part in _parts(text or "", config.separator):
                yield Document(part, origin)  # empty documents are left out later
        else:
            raise DataError(
                f"{origin}: column {config.text!r} holds a {type(text).__name__}, not text",
                "if these are the words of a document, set `data.words: marked`"
                if isinstance(text, list)
                else "name the column of the text: `data.text`",
            )


def _documents_of_text_file(
    source: Source, unit: Unit, separator: str | None, start: int, end: int | None
) -> Iterator[Document]:
    lines: list[str] = []
    origin, begin = "", start
    for line in read_lines(source.path, start, source.longest):
        for number, text in enumerate(_parts(line.text, separator)):
            if number and lines:
                while is_blank(lines[-1]):  # before the separator
                    lines.pop()
                yield Document("".join(lines), origin)
                lines = []
            blank = is_blank(text) and (unit != "file" or (separator is not None and not lines))
            if not lines and not blank:
                if end is not None and line.offset >= end:
                    return
                origin, begin = origin_of(source, start, line.offset, line.number), line.offset
            if not blank:
                lines.append(text)
                if line.offset - begin > source.longest:
                    raise too_long(origin, "a document", source.longest, _SHORTER[unit])
            if lines and (blank or unit == "line"):
                yield Document("".join(lines), origin)
                lines = []
    if lines:
        yield Document("".join(lines), origin)


def _parts(text: str, separator: str | None) -> list[str]:
    """What is before, between and after the separators of a line, or of a text of several lines."""
    if separator is None:
        return [text]
    if separator != WIKI_EXTRACTOR and any(map(str.isalnum, separator)):
        return text.split(separator)
    parts, lines = [], list[str]()
    for line in text.splitlines(keepends=True):
        if is_separator(line, separator):
            parts.append("".join(lines))
            lines = []
        else:
            lines.append(line)
    return [*parts, "".join(lines)]


def is_separator(line: str, separator: str) -> bool:
    """Whether a line is a separator and nothing else."""
    if separator == WIKI_EXTRACTOR:
        return _WIKI_TAG.fullmatch(line) is not None
    return line.strip() == separator


_SHORTER: dict[Unit, str] = {
    "file": "the file is one document: if each line is one, set `data.documents: line`; ",
    "blank_line": "no blank line separates it from the next: if each line is a document, set "
    "`data.documents: line`; ",
    "line": "",
}


def unit_of(source: Source, config: TextConfig, most: float = math.inf) -> Unit:
    """What a document is in a text file, besides what a separator separates; as ``text_unit``."""
    if config.documents != "auto":
        return config.documents
    return "file" if config.separator is not None else text_unit(source, most)


def text_unit(source: Source, most: float = math.inf) -> Unit:
    """``blank_line`` if there is a blank line between lines of text, else ``file``."""
    text = blank = False
    for line in read_lines(source.path, 0, source.longest):
        if is_blank(line.text):
            blank = text
        elif blank:
            return "blank_line"
        else:
            text = True
        if line.offset > most:
            break
    return "file"


def check_marks(config: TextConfig) -> None:
    """Refuse text without word marks, or whose words would run together, if it should be marked.

    Only the openings of some sources are read.

    Raises:
        DataError: The text is not segmented, or its words lack the spaces between them.
    """
    if config.words != "marked":
        return
    sources = resolve(config.train, config.max_document)
    by_line = config.model_copy(update={"documents": "line"})
    marks = letters = spaces = 0
    example = ""
    for source in sources[:: max(1, len(sources) // _SAMPLED_SOURCES)]:
        size = 0
        for document in documents(source, by_line):
            text, words = document.text, [] if document.words is None else document.words.tolist()
            joined = [at for at in words if _LATIN.fullmatch(text[max(0, at - 1) : at + 1])]
            example = example or (text[max(0, joined[0] - 20) :][:40] if joined else "")
            marks, letters, size = marks + len(words), letters + len(joined), size + len(text)
            spaces += text.strip().count(" ")
            if size > _MARKED:
                break
    names = ", ".join(config.train)
    if not marks:
        raise DataError(
            f"data.words: marked, but there is no mark {config.word_mark!r} "
            f"({' '.join(f'U+{ord(mark):04X}' for mark in config.word_mark)}) and no list of words "
            f"in the beginning of {names}",
            "set `data.word_mark` to what stands between words, or leave out `data.words`",
        )
    if letters > marks / 2 and spaces < letters / 4:
        raise DataError(
            f"data.words: marked removes the marks, and then the words of {names} have no spaces "
            f"between them: {example!r}",
            "keep the spaces of the text beside the marks, or within the words of a list: "
            '["The", " cat", " sat"]',
        )


def opening(source: Source, config: TextConfig, size: int) -> str:
    """About the first ``size`` characters of a source; those of a text file unchanged."""
    if source.kind == "text":
        mark = config.word_mark if config.words == "marked" else ""
        lines = (line.text for line in read_lines(source.path, 0, source.longest))
        pieces, gap = (line.replace(mark, "") if mark else line for line in lines), ""
    else:
        pieces, gap = (document.text for document in documents(source, config)), "\n"
    taken: list[str] = []
    while size > 0 and (piece := next(pieces, None)) is not None:
        taken.append(piece[:size])
        size -= len(piece)
    return gap.join(taken)


# --- Cutting sources into pieces of about equal work that can be read on their own ---


@dataclass(frozen=True)
class SourcePiece:
    """A part of a source.

    Attributes:
        start: Where it begins, in the source's unit, see ``documents``.
        end: Where the next piece begins; None for the last piece.
        size: Approximate number of bytes: the amount of work.
    """

    start: int
    end: int | None
    size: int


def cut_source(
    source: Source, unit: Unit, size: int, separator: str | None = None
) -> list[SourcePiece]:
    """The pieces of a source in order; each document is in exactly one.

    Args:
        source: The source; compressed and csv files are one piece.
        size: Approximate number of bytes per piece.

    Raises:
        DataError: A line is longer than the source's limit.
    """
    whole = source.kind == "text" and unit == "file"
    if source.seekable and not (whole and separator is None):
        ends: Callable[[bytes], bool] | None = None
        if whole:
            ends = partial(_is_separator, str(separator))
        elif source.kind == "text" and unit == "blank_line":
            ends = _is_blank
        return _cut_bytes(source, size, ends)
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
    return [SourcePiece(0, None, size_of(source))]


def _is_blank(line: bytes) -> bool:
    return not line.strip()


def _is_separator(separator: str, line: bytes) -> bool:
    return not line or is_separator(line.decode(errors="replace"), separator)


def _cut_bytes(
    source: Source, size: int, ends: Callable[[bytes], bool] | None
) -> list[SourcePiece]:
    """Cut where a line begins: any, or one after a line that ends a document."""
    length = source.path.stat().st_size
    cuts = [0]
    with source.path.open("rb") as file:

        def next_line() -> bytes:
            start = file.tell()
            line = file.readline(source.longest + 1)
            if len(line) > source.longest and not line.endswith(b"\n"):
                raise too_long(f"{source.path}: after byte {start:,}", "a line", source.longest)
            return line

        while cuts[-1] + size < length:
            file.seek(cuts[-1] + size - 1)
            next_line()  # to its end
            while ends is not None and not ends(next_line()):
                pass
            if file.tell() >= length:
                break
            cuts.append(file.tell())
    return _pieces_between([*cuts, length])


def _pieces_between(cuts: list[int]) -> list[SourcePiece]:
    ends: list[int | None] = [*cuts[1:-1], None]
    sizes = [end - start for start, end in zip(cuts, cuts[1:], strict=False)]
    return [SourcePiece(*facts) for facts in zip(cuts, ends, sizes, strict=False)]


def _group_units(sizes: list[int], size: int) -> list[SourcePiece]:
    """Pieces of consecutive units of these sizes, each of at least ``size`` bytes but the last."""
    pieces: list[SourcePiece] = []
    start = total = 0
    for number, weight in enumerate(sizes, 1):
        total += weight
        if total >= size or number == len(sizes):
            pieces.append(SourcePiece(start, number, total))
            start, total = number, 0
    return pieces or [SourcePiece(0, None, 0)]


def _share_out(count: int, total: int, size: int) -> list[SourcePiece]:
    """``count`` units of about the same size, ``total`` bytes together."""
    parts = max(1, min(count, -(-total // size)))
    cuts = [count * number // parts for number in range(parts + 1)]
    return [SourcePiece(a, b, total // parts) for a, b in zip(cuts, cuts[1:], strict=False)]
