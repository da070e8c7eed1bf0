"""Rows of jsonl, csv, tsv, CoNLL and parquet files, of ``datasets`` folders, and of the Hub."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from plmctl.corpus import sample
from plmctl.corpus.columns import tagged_rows
from plmctl.corpus.lines import place, read_lines
from plmctl.corpus.nested import is_nested, nested_rows
from plmctl.corpus.source import Source
from plmctl.errors import DataError

if TYPE_CHECKING:
    import datasets
    import pyarrow.parquet

Rows = Iterator[tuple[dict[str, Any], str]]
"""Values of a row, and its origin."""

_ROWS_AT_ONCE = 1_000
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def rows(source: Source, start: int = 0, end: int | None = None, column: str | None = None) -> Rows:
    """The rows of a source in [start, end), each with where it is from.

    Args:
        source: What to read.
        start: In bytes for jsonl, row groups for parquet, rows for ``datasets`` and the Hub.
        end: Where to stop; None reads to the end.
        column: Read this column only, where that saves work.

    Raises:
        DataError: A malformed row, bytes that are not UTF-8, or no such column or split.
    """
    if source.kind == "jsonl":
        if is_nested(source):  # in one piece: it cannot be read from its middle
            return iter(()) if start else nested_rows(source)
        return _json_rows(source, start, end)
    if source.kind in ("csv", "tsv"):
        return _csv_rows(source)
    if source.kind == "parquet":
        return _parquet_rows(source, start, end, column)
    if source.kind == "sample":
        return sample.rows(source.name.removeprefix("sample:"))
    if source.kind in ("conll", "text"):
        return tagged_rows(source)
    return _dataset_rows(source, start, end, column)


def missing_column(origin: str, column: str, there: list[str]) -> DataError:
    """The error for a column that is not there."""
    return DataError(
        f"{origin}: no column {column!r}; there are: {', '.join(there) or 'none'}",
        "name the column of the text: `data.text`",
    )


def _json_rows(source: Source, start: int, end: int | None) -> Rows:
    for line in read_lines(source.path, start):
        if end is not None and line.offset >= end:
            return
        if not line.text.strip():
            continue
        try:
            values = json.loads(line.text)
            if _SURROGATE.search(line.text):  # half of a pair is JSON, but is no text
                json.dumps(values, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            where = place(source.path, start, line.number)
            raise DataError(f"{where}: not JSON: {error}", "one JSON object a line") from error
        if not isinstance(values, dict):
            where = place(source.path, start, line.number)
            raise DataError(
                f"{where}: a JSON {type(values).__name__}, not an object", "one JSON object a line"
            )
        yield values, origin_of(source, start, line.offset, line.number)


def origin_of(source: Source, start: int, offset: int, number: int) -> str:
    """``file:line``; by bytes within a large file, whose earlier lines nobody has counted."""
    return f"{source.name}:byte {offset}" if start else f"{source.name}:{number}"


def _csv_rows(source: Source) -> Rows:
    csv.field_size_limit(1 << 30)  # a document may be a field
    lines = (line.text for line in read_lines(source.path))
    # Tab-separated files of this field do not quote: a lone quote in a sentence is only a quote.
    reader = (
        csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        if source.kind == "tsv"
        else csv.reader(lines, strict=True)
    )
    first = 1
    header: list[str] | None = None
    try:
        for values in reader:
            where, first = f"{source.name}:{first}", reader.line_num + 1
            if not values:
                continue
            if header is None:
                header = _header(values, where)
            elif len(values) != len(header):
                raise DataError(
                    f"{where}: {len(values)} fields where the header has {len(header)} columns",
                    "quote fields with commas or line ends in them",
                )
            else:
                yield dict(zip(header, values, strict=True)), where
    except csv.Error as error:
        raise DataError(
            f"{source.name}:{reader.line_num}: {error}", "is it quoted right?"
        ) from error


def _header(names: list[str], where: str) -> list[str]:
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    if twice:
        raise DataError(f"{where}: two columns have the name {twice[0]!r}", "rename one of them")
    return names


def open_parquet(source: Source) -> pyarrow.parquet.ParquetFile:
    """A parquet file.

    Raises:
        DataError: It is not one.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(source.name)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{source.name}: cannot be read as parquet: {error}") from error


def _parquet_rows(source: Source, start: int, end: int | None, column: str | None) -> Rows:
    file = open_parquet(source)
    _check_column(source, column, file.schema_arrow.names)
    groups = range(start, file.num_row_groups if end is None else end)
    number = sum(file.metadata.row_group(group).num_rows for group in range(start))
    for batch in file.iter_batches(
        _ROWS_AT_ONCE, row_groups=list(groups), columns=[column] if column else None
    ):
        for values in batch.to_pylist():
            number += 1
            yield values, f"{source.name}:row {number}"


def open_dataset(source: Source) -> datasets.Dataset:
    """A folder saved by ``datasets``, or ``hf:NAME[[:CONFIG]:SPLIT]``.

    The split is ``train`` if none is named. No code of the repository is run: ``datasets`` reads
    data files only.

    Raises:
        DataError: It cannot be loaded, or there is no such split.
    """
    import datasets

    name, *rest = source.name.removeprefix("hf:").split(":") if source.kind == "hf" else [""]
    split = rest[-1] if rest else "train"
    try:
        if source.kind == "datasets":
            loaded = datasets.load_from_disk(source.name)
        else:
            loaded = datasets.load_dataset(name, rest[0] if len(rest) > 1 else None, split=split)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{source.name}: cannot be loaded: {str(error).splitlines()[0]}",
            "a data set of the Hub needs the network the first time, and its right name"
            if source.kind == "hf"
            else "is it a folder that `save_to_disk` wrote?",
        ) from error
    if isinstance(loaded, datasets.DatasetDict):
        if split not in loaded:
            raise DataError(
                f"{source.name}: no split {split!r}; there are: {', '.join(loaded)}",
                f"name one: {source.name}/{next(iter(loaded), 'SPLIT')}",
            )
        loaded = loaded[split]
    return loaded


def _dataset_rows(source: Source, start: int, end: int | None, column: str | None) -> Rows:
    """Rows with their class labels by name."""
    loaded = open_dataset(source)
    _check_column(source, column, loaded.column_names)
    if column:
        loaded = loaded.select_columns([column])
    names = {name: known for name, of in loaded.features.items() if (known := _labels(of))}
    stop = len(loaded) if end is None else min(end, len(loaded))
    for first in range(start, stop, _ROWS_AT_ONCE):
        batch = loaded[first : min(first + _ROWS_AT_ONCE, stop)]
        for name, known in names.items():
            batch[name] = [_named(label, known) for label in batch[name]]
        for number, values in enumerate(zip(*batch.values(), strict=True), first + 1):
            yield dict(zip(batch, values, strict=True)), f"{source.name}:row {number}"


def _labels(feature: Any) -> list[str] | None:
    """The names of a class label, or of a list of them; None for another feature."""
    import datasets

    inner = getattr(feature, "feature", feature)
    return inner.names if isinstance(inner, datasets.ClassLabel) else None


def _named(label: Any, known: list[str]) -> Any:
    if isinstance(label, list):
        return [_named(one, known) for one in label]
    return None if label in (None, -1) else known[label]  # -1: a label that is not told


def _check_column(source: Source, column: str | None, there: list[str]) -> None:
    if column is not None and column not in there:
        raise missing_column(source.name, column, there)
