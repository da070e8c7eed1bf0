"""Sentences in columns, as CoNLL has them: a word and its tags a line, a blank line between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from plmctl.corpus.lines import read_lines
from plmctl.corpus.source import Source
from plmctl.errors import DataError

_DOCUMENT = "-DOCSTART-"  # begins a document in CoNLL-2003; it is no word


def tagged_rows(source: Source) -> Iterator[tuple[dict[str, Any], str]]:
    """The sentences of a file, each with the line that it begins in.

    Columns are cut at tabs where a line has one, else at spaces. A row has a list of words under
    ``tokens`` (the first column), of tags under ``tags`` (the last), and of what any column holds
    under its number, the first being "0".

    Raises:
        DataError: A line of one column, or of another number of columns than the lines before it.
    """
    lines: list[list[str]] = []
    origin, width = "", 0
    for line in read_lines(source.path):
        cells = _cells(line.text)
        if not cells or cells[0] == _DOCUMENT:
            if lines:
                yield _row(lines), origin
            lines = []
            continue
        where = f"{source.name}:{line.number}"
        width = width or _checked(len(cells), source, where)
        if len(cells) != width:
            raise DataError(
                f"{where}: {len(cells)} columns where the lines before have {width}",
                "put a word and its tags on each line, and a blank line between sentences",
            )
        origin = origin if lines else where
        lines.append(cells)
    if lines:
        yield _row(lines), origin


def _cells(line: str) -> list[str]:
    # Not at every space of Unicode: some of them are words in Chinese data.
    bare = line.strip("\r\n")
    if "\t" in bare.strip("\t "):
        return bare.split("\t")
    return [cell for cell in bare.strip("\t").split(" ") if cell]


def _row(lines: list[list[str]]) -> dict[str, Any]:
    columns = [list(column) for column in zip(*lines, strict=True)]
    numbered = {str(number): column for number, column in enumerate(columns)}
    return {"tokens": columns[0], "tags": columns[-1], **numbered}


def _checked(width: int, source: Source, where: str) -> int:
    if width < 2:
        what = "a text file has no columns" if source.kind == "text" else "one column, and no tags"
        raise DataError(
            f"{where}: {what}",
            "use csv, tsv or jsonl; or, for tagging, a word and its tag on each line",
        )
    return width
