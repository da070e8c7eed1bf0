"""Files to documents: text, jsonl, csv, parquet, compressed or not, folders of `datasets`, samples.

Everything streams: a document is in memory only while it is used. A text file can be read from one
byte to another, so that a large one is shared out between processes.
"""

from __future__ import annotations

import csv
import difflib
import glob
import gzip
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from plmctl.corpus import sample
from plmctl.corpus.document import Document
from plmctl.errors import ConfigError, DataError

if TYPE_CHECKING:
    from plmctl.config.data import TextConfig

_COMPRESSED = (".gz", ".zst")
_TEXT = (".txt", ".text", ".md", "")
_ROWS = (".jsonl", ".json", ".csv", ".tsv", ".parquet")


@dataclass(frozen=True)
class Source:
    """One thing to read.

    Attributes:
        name: A path, or ``hf:...`` or ``sample:...``.
        kind: "text", "jsonl", "csv", "tsv", "parquet", "datasets", "hf" or "sample".
    """

    name: str
    kind: str

    @property
    def splittable(self) -> bool:
        """Whether byte ranges of it can be read on their own."""
        return self.kind in ("text", "jsonl") and not self.name.endswith(_COMPRESSED)


def resolve(names: tuple[str, ...]) -> list[Source]:
    """The sources that paths, globs and names stand for; a glob's files in sorted order.

    Raises:
        DataError: Nothing is there.
        ConfigError: A file of a kind that is not read.
    """
    found = []
    for name in names:
        if name.startswith(("hf:", "sample:")):
            found.append(Source(name, name.partition(":")[0]))
            continue
        paths = [Path(p) for p in sorted(glob.glob(name, recursive=True))] or [Path(name)]
        found += [Source(str(path), _kind(path)) for path in paths]
    return found


def size_of(source: Source) -> int:
    """Bytes of a file on disk; 0 for what is no file."""
    path = Path(source.name)
    return path.stat().st_size if path.is_file() else 0


def _kind(path: Path) -> str:
    if path.is_dir():
        if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
            return "datasets"
        raise DataError(f"{path}: a folder, and not one saved by `datasets`", f"try {path}/*.txt")
    if not path.is_file():
        raise DataError(f"{path}: no such file{_near(path)}")
    name = path.name.removesuffix(".gz").removesuffix(".zst")
    suffix = Path(name).suffix.lower()
    if suffix in _TEXT:
        return "text"
    if suffix in _ROWS:
        return {".json": "jsonl"}.get(suffix, suffix[1:])
    raise ConfigError(
        f"{path}: files of this kind are not read",
        "use txt, jsonl, csv, tsv or parquet, also as .gz or .zst",
    )


def _near(path: Path) -> str:
    folder = path.parent
    siblings = [p.name for p in folder.iterdir()] if folder.is_dir() else []
    match = difflib.get_close_matches(path.name, siblings, n=1)
    return f"; did you mean {folder / match[0]}?" if match else ""


def documents(
    source: Source, config: TextConfig, start: int = 0, end: int | None = None
) -> Iterator[Document]:
    """The documents of a source that begin in the bytes [start, end).

    Args:
        source: What to read.
        config: The column of the text, and what a document is in a text file.
        start: First byte; other than 0 only for a splittable source.
        end: Byte to stop before; None reads to the end.

    Raises:
        DataError: Bytes that are not UTF-8, a malformed row, a missing column; with file and line.
    """
    if source.kind == "sample":
        yield from sample.documents(source.name.removeprefix("sample:"))
    elif source.kind == "text":
        yield from _text_documents(source, config.documents, start, end)
    else:
        for values, origin in rows(source, start, end):
            text = values.get(config.text)
            if text is None:
                raise DataError(
                    f"{origin}: no column {config.text!r}; there are: {', '.join(values)}",
                    "name the column with `data.text`",
                )
            yield Document(str(text), origin)


def rows(
    source: Source, start: int = 0, end: int | None = None
) -> Iterator[tuple[dict[str, Any], str]]:
    """The rows of a source that begin in the bytes [start, end), each with ``file:line``.

    Raises:
        DataError: Bytes that are not UTF-8, or a malformed row.
    """
    if source.kind == "jsonl":
        yield from _json_rows(source, start, end)
    elif source.kind in ("csv", "tsv"):
        yield from _csv_rows(source)
    elif source.kind == "sample":
        yield from sample.rows(source.name.removeprefix("sample:"))
    elif source.kind == "text":
        raise DataError(f"{source.name}: a text file has no columns", "use csv, tsv or jsonl")
    else:
        yield from _table_rows(source)


def _text_documents(source: Source, kind: str, start: int, end: int | None) -> Iterator[Document]:
    if kind == "auto":
        kind = "blank_line" if has_blank_line(source) else "file"
    lines: list[str] = []
    origin = ""
    for number, line, offset in _lines(source, start):
        blank = not line.strip() and kind != "file"
        if not lines and not blank:
            if end is not None and offset >= end:
                return
            origin = f"{source.name}:{number}"
        if not blank:
            lines.append(line)
        if lines and (blank or kind == "line"):
            yield Document("".join(lines), origin)
            lines = []
    if lines:
        yield Document("".join(lines), origin)


def ranges(source: Source, kind: str, size: int) -> list[tuple[int, int | None]]:
    """Cut a source into byte ranges of about ``size`` that begin where a document begins.

    Args:
        source: What to cut; one range if it cannot be cut.
        kind: What a document is, as in the config.
        size: Bytes.
    """
    whole: list[tuple[int, int | None]] = [(0, None)]
    if not source.splittable:
        return whole
    length = Path(source.name).stat().st_size
    if length <= size or (source.kind == "text" and not _cut_text(source, kind)):
        return whole
    blank = source.kind == "text" and kind != "line"
    cuts = [0]
    with Path(source.name).open("rb") as file:
        while cuts[-1] + size < length:
            file.seek(cuts[-1] + size)
            file.readline()  # the rest of a line, which belongs to the range before
            while blank and file.readline().strip():
                pass
            if file.tell() >= length:
                break
            cuts.append(file.tell())
    return list(zip(cuts, [*cuts[1:], None], strict=True))


def _cut_text(source: Source, kind: str) -> bool:
    return kind in ("line", "blank_line") or (kind == "auto" and has_blank_line(source))


def has_blank_line(source: Source) -> bool:
    """Whether a blank line comes before more text, looked for in the first megabytes."""
    blank = False
    read = 0
    for _, line, _ in _lines(source, 0):
        if blank and line.strip():
            return True
        blank = blank or not line.strip()
        read += len(line)
        if read > 4_000_000:
            return blank
    return False


def _lines(source: Source, start: int) -> Iterator[tuple[int, str, int]]:
    """Line number (from the start of the range), text, and byte offset of each line.

    Raises:
        DataError: A line that is not UTF-8.
    """
    with open_bytes(Path(source.name)) as file:
        file.seek(start)
        offset = start
        for number, raw in enumerate(file, 1):
            try:
                line = raw.decode("utf-8-sig" if offset == 0 else "utf-8")
            except UnicodeDecodeError as error:
                where = number + (_newlines_before(source, start) if start else 0)
                raise DataError(
                    f"{source.name}:{where}: not UTF-8: byte 0x{raw[error.start]:02x} at column "
                    f"{error.start + 1}",
                    "convert the file, for instance with `iconv -f GB18030 -t UTF-8`",
                ) from None
            yield number, line, offset
            offset += len(raw)


def _newlines_before(source: Source, end: int) -> int:
    with Path(source.name).open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in _chunks(file, end))


def _chunks(file: IO[bytes], end: int) -> Iterator[bytes]:
    while end > 0 and (chunk := file.read(min(end, 1 << 20))):
        end -= len(chunk)
        yield chunk


def open_bytes(path: Path) -> IO[bytes]:
    """A file's bytes, decompressed.

    Raises:
        DataError: It cannot be opened.
    """
    try:
        if path.suffix == ".gz":
            return gzip.open(path)
        if path.suffix == ".zst":
            import zstandard

            return io.BufferedReader(zstandard.open(path, "rb"))
        return path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error


def _json_rows(source: Source, start: int, end: int | None) -> Iterator[tuple[dict[str, Any], str]]:
    for number, line, offset in _lines(source, start):
        if end is not None and offset >= end:
            return
        if not line.strip():
            continue
        where = f"{source.name}:{number}"
        try:
            values = json.loads(line)
        except ValueError as error:
            raise DataError(f"{where}: not JSON: {error}", "one JSON object a line") from error
        if not isinstance(values, dict):
            raise DataError(f"{where}: not a JSON object", "one JSON object a line")
        yield values, where


def _csv_rows(source: Source) -> Iterator[tuple[dict[str, Any], str]]:
    csv.field_size_limit(1 << 30)  # a document may be a field
    reader = csv.DictReader(
        (line for _, line, _ in _lines(source, 0)),
        dialect="excel-tab" if source.kind == "tsv" else "excel",
    )
    for values in reader:
        where = f"{source.name}:{reader.line_num}"
        if None in values or None in values.values():
            columns = len(reader.fieldnames or ())
            raise DataError(f"{where}: the header has {columns} columns, this row has not")
        yield values, where


def _table_rows(source: Source) -> Iterator[tuple[dict[str, Any], str]]:
    """Rows of parquet files, of folders saved by ``datasets``, and of the Hub."""
    import datasets

    name = source.name
    if source.kind == "parquet":
        import pyarrow.parquet

        batches = pyarrow.parquet.ParquetFile(name).iter_batches()
        yield from ((r, f"{name}:{n}") for n, r in enumerate(_batched(batches), 1))
        return
    try:
        if source.kind == "datasets":
            loaded = datasets.load_from_disk(name)
        else:
            path, _, split = name.removeprefix("hf:").partition(":")
            loaded = datasets.load_dataset(path, split=split or "train")
    except (OSError, ValueError) as error:
        raise DataError(f"{name}: cannot be loaded: {error}", "is the network there?") from error
    if isinstance(loaded, datasets.DatasetDict):
        loaded = loaded["train"]
    yield from ((dict(row), f"{name}:{number}") for number, row in enumerate(loaded, 1))


def _batched(batches: Any) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.to_pylist()
