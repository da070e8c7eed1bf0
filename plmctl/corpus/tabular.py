"""Rows of jsonl, csv, tsv, CoNLL, SQuAD and parquet files, of ``datasets`` folders and the hubs.

Each row comes with its origin (``file:line``) for error messages.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl import hub
from plmctl.corpus import sample
from plmctl.corpus.document import locate, read_lines
from plmctl.corpus.remote import RemoteFile
from plmctl.corpus.source import Source
from plmctl.errors import DataError, listed, machine_error, read_error
from plmctl.files import read_json

if TYPE_CHECKING:
    import datasets
    import pyarrow.parquet


# --- Rows of any source ---


Rows = Iterator[tuple[dict[str, Any], str]]
"""The values and the origin of each row."""

_ROWS_AT_ONCE = 1_000

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

_CONSTANTS = {"NaN": None, "Infinity": float("inf"), "-Infinity": float("-inf")}
"""What these are in JSON, which does not have them: pandas and Python write NaN for no value."""


def rows(source: Source, start: int = 0, end: int | None = None, column: str | None = None) -> Rows:
    """The rows of a source in [start, end), each with its origin.

    Args:
        source: The source to read.
        start: In bytes for jsonl, row groups for parquet, rows for ``datasets`` and the Hub.
        end: Where to stop; None reads to the end.
        column: Read only this column, if that saves work.

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
    """The error for a missing column."""
    return DataError(
        f"{origin}: no column {column!r}; the columns are: {listed(there) or 'none'}",
        "name the column of the text: `data.text`",
    )


def origin_of(source: Source, start: int, offset: int, number: int) -> str:
    """``file:line``; ``file:byte`` if reading started in the middle, so that lines are unknown."""
    return f"{source.name}:byte {offset}" if start else f"{source.name}:{number}"


# --- jsonl, csv and tsv ---


def _json_rows(source: Source, start: int, end: int | None) -> Rows:
    for line in read_lines(source.path, start, source.longest):
        if end is not None and line.offset >= end:
            return
        if not line.text.strip():
            continue
        try:
            values = _parse_json(line.text)
        except UnicodeEncodeError as error:
            raise _half_a_character(locate(source.path, start, line.number), error) from error
        except (ValueError, RecursionError) as error:
            where = locate(source.path, start, line.number)
            raise DataError(f"{where}: not JSON: {error}", "one JSON object per line") from error
        if not isinstance(values, dict):
            where = locate(source.path, start, line.number)
            raise DataError(
                f"{where}: a JSON {type(values).__name__}, not an object",
                "one JSON object per line",
            )
        yield values, origin_of(source, start, line.offset, line.number)


def _parse_json(text: str) -> Any:
    """A value of JSON.

    Raises:
        UnicodeEncodeError: It has half of a surrogate pair, which is no text.
        ValueError: It is not JSON.
        RecursionError: It is nested too deeply.
    """
    value = json.loads(text, parse_constant=_CONSTANTS.__getitem__)
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _half_a_character(where: str, error: UnicodeEncodeError) -> DataError:
    return DataError(
        f"{where}: {ascii(error.object[error.start])[1:-1]} is half of a character, and the other "
        "half is missing",
        "write the text again with whole characters, or remove this one",
    )


def _csv_rows(source: Source) -> Rows:
    csv.field_size_limit(source.longest)  # a document may be a field
    lines = (line.text for line in read_lines(source.path, 0, source.longest))
    # Tab-separated files do not quote: a single quote in a sentence is only a quote.
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
            f"{source.name}:{reader.line_num}: {error}", "check the quotes of this row"
        ) from error


def _header(names: list[str], where: str) -> list[str]:
    known: set[str] = set()
    for name in names:
        if name in known:
            raise DataError(f"{where}: two columns have the name {name!r}", "rename one of them")
        known.add(name)
    return names


def _check_column(source: Source, column: str | None, there: list[str]) -> None:
    if column is not None and column not in there:
        raise missing_column(source.name, column, there)


# --- parquet, folders of ``datasets``, the Hub ---


def open_parquet(source: Source) -> pyarrow.parquet.ParquetFile:
    """Open a parquet file.

    Raises:
        DataError: It is not a parquet file.
        PlmError: The machine is the reason, such as too many open files.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        remote = isinstance(source.path, RemoteFile)
        return pyarrow.parquet.ParquetFile(source.path.open("rb") if remote else source.name)
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
        other = DataError(f"{source.name}: cannot be read as parquet: {_first_line(error)}", _COPY)
        raise read_error(error, other) from error


_COPY = "copy or download it again"


def _first_line(error: Exception) -> str:
    return (str(error) or repr(error)).splitlines()[0]


def _is_of_machine(error: Exception) -> bool:
    """Whether memory or files ran out: pyarrow's own errors of content have no number."""
    numbered = isinstance(error, OSError) and error.errno is not None
    return numbered or isinstance(error, MemoryError)


def _parquet_rows(source: Source, start: int, end: int | None, column: str | None) -> Rows:
    import pyarrow

    file = open_parquet(source)
    _check_column(source, column, file.schema_arrow.names)
    groups = range(start, file.num_row_groups if end is None else end)
    number = sum(file.metadata.row_group(group).num_rows for group in range(start))
    batches = file.iter_batches(
        _ROWS_AT_ONCE, row_groups=list(groups), columns=[column] if column else None
    )
    while True:
        try:
            batch = next(batches, None)
        except (OSError, pyarrow.ArrowException) as error:
            if _is_of_machine(error):
                raise
            raise DataError(
                f"{source.name}: damaged after row {number}: {_first_line(error)}", _COPY
            ) from error
        if batch is None:
            return
        for values in _plain_rows(batch, source.name, number):
            number += 1
            yield values, f"{source.name}:row {number}"


def _plain_rows(
    batch: pyarrow.RecordBatch | pyarrow.Table, name: str, before: int
) -> list[dict[str, Any]]:
    """The rows of a batch; a float that is NaN is no value.

    Args:
        batch: Some rows.
        name: Of the file or folder.
        before: Number of rows before these.

    Raises:
        DataError: Values that are damaged, or a text that is not UTF-8; with the row.
    """
    import pyarrow

    try:
        batch.validate(full=True)
        rows: list[dict[str, Any]] = batch.to_pylist()
    except (pyarrow.ArrowException, UnicodeDecodeError, ValueError, OverflowError) as error:
        if _is_of_machine(error):
            raise
        if batch.num_rows > 1:
            for place in range(batch.num_rows):
                _plain_rows(batch.slice(place, 1), name, before + place)
        raise DataError(f"{name}:row {before + 1}: {_first_line(error)}", _COPY) from error
    for column in batch.schema:
        if pyarrow.types.is_floating(column.type):
            for row in rows:
                if row[column.name] != row[column.name]:
                    row[column.name] = None
    return rows


def open_dataset(source: Source) -> datasets.Dataset:
    """A folder saved by ``datasets``, ``hf:NAME[[:CONFIG]:SPLIT]`` or ``ms:NAME[[:CONFIG]:SPLIT]``.

    The default split is ``train``. No code of the repository is run: ``datasets`` reads only data
    files.

    Raises:
        ConfigError: A name on ModelScope without its library; HF_ENDPOINT is not an address.
        DataError: It cannot be loaded, or the split does not exist.
        PlmError: It cannot be downloaded from ModelScope.
    """
    import datasets

    remote = source.kind in ("hf", "ms")
    name, *rest = source.name.partition(":")[2].split(":") if remote else [source.name]
    split = rest[-1] if rest else "train"
    if source.kind == "hf":
        _check_on_hub(source, name)
    folder = hub.local_dataset(name) if source.kind == "ms" else name
    try:
        if remote:
            loaded = datasets.load_dataset(folder, rest[0] if len(rest) > 1 else None, split=split)
        else:
            _check_inside(Path(source.name))
            loaded = datasets.load_from_disk(source.name)
    except DataError:
        raise
    except Exception as error:  # a damaged folder can raise anything in there
        raise machine_error(error) or DataError(
            f"{source.name}: cannot be loaded: {_first_line(error)}",
            "check the name, and the network connection, which the first download needs"
            if remote
            else "it must be a folder that `save_to_disk` wrote",
        ) from error
    if isinstance(loaded, datasets.DatasetDict):
        if split not in loaded:
            raise DataError(
                f"{source.name}: no split {split!r}; the splits are: {', '.join(loaded)}",
                f"name a split: {source.name}/{next(iter(loaded), 'SPLIT')}",
            )
        loaded = loaded[split]
    return loaded


def _check_inside(folder: Path) -> None:
    """Refuse a folder of ``datasets`` that names files outside of it.

    Raises:
        DataError: With the file; or a state.json is damaged.
    """
    for path in folder.rglob("state.json"):
        listed = read_json(path, "_data_files")["_data_files"]
        for entry in listed if isinstance(listed, list) else [None]:
            name = entry.get("filename") if isinstance(entry, dict) else None
            if not isinstance(name, str) or Path(name).name != name:
                raise DataError(
                    f"{path}: names the file {name!r}, which is not beside it",
                    "save the data set again with `save_to_disk`",
                )


def _check_on_hub(source: Source, name: str) -> None:
    """Refuse a data set that cannot be opened before ``datasets`` tries for half a minute.

    Raises:
        DataError: It is no name on the Hub (a folder, such as ``..``), or it cannot be reached.
    """
    if not re.fullmatch(r"(\w[\w.-]*/)?\w[\w.-]*", name) or ".." in name:
        raise DataError(
            f"{source.name}: not a name on the Hub", "write hf:OWNER/NAME; a folder has no hf:"
        )
    reason = hub.unavailable(name, "datasets")
    if reason:
        raise DataError(
            f"{source.name}: {reason}", "check the network connection, or name files instead"
        )


def _dataset_rows(source: Source, start: int, end: int | None, column: str | None) -> Rows:
    """Rows, with class labels by name."""
    loaded = open_dataset(source)
    _check_column(source, column, loaded.column_names)
    if column:
        loaded = loaded.select_columns([column])
    names = {name: known for name, of in loaded.features.items() if (known := _class_names(of))}
    stop = len(loaded) if end is None else min(end, len(loaded))
    for first in range(start, stop, _ROWS_AT_ONCE):
        for number, values in enumerate(
            _dataset_batch(loaded, source.name, first, stop), first + 1
        ):
            where = f"{source.name}:row {number}"
            for name, known in names.items():
                values[name] = _with_class_names(values[name], known, where, name)
            yield values, where


def _dataset_batch(
    loaded: datasets.Dataset, name: str, first: int, stop: int
) -> list[dict[str, Any]]:
    """Up to ``_ROWS_AT_ONCE`` rows from number ``first``; a float that is NaN is no value.

    Raises:
        DataError: The file is damaged there.
    """
    import datasets
    import pyarrow

    last = min(first + _ROWS_AT_ONCE, stop)
    try:
        # Without this check a damaged file, which is mapped, could end the process.
        loaded.with_format("arrow")[first:last].validate(full=True)
        batch = loaded[first:last]
    except (pyarrow.ArrowException, OSError, ValueError, IndexError, OverflowError) as error:
        if _is_of_machine(error):
            raise
        raise DataError(
            f"{name}: damaged in rows {first + 1} to {last}: {_first_line(error)}", _COPY
        ) from error
    rows = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
    for column, feature in loaded.features.items():
        if isinstance(feature, datasets.Value) and feature.dtype.startswith("float"):
            for row in rows:
                if row[column] != row[column]:
                    row[column] = None
    return rows


def _class_names(feature: Any) -> list[str] | None:
    """The names of a class label, or of a list of them; None for another feature."""
    import datasets

    if isinstance(feature, datasets.List | datasets.LargeList):
        feature = feature.feature
    return feature.names if isinstance(feature, datasets.ClassLabel) else None


def _with_class_names(label: Any, known: list[str], where: str, column: str) -> Any:
    if isinstance(label, list):
        return [_with_class_names(one, known, where, column) for one in label]
    if label in (None, -1):  # -1: no label
        return None
    if not 0 <= label < len(known):
        raise DataError(
            f"{where}: column {column!r}: {label} is none of the {len(known)} class labels",
            "save the data set again with the right features",
        )
    return known[label]


# --- CoNLL columns: a word and its tags per line, a blank line between sentences ---


_DOCSTART = "-DOCSTART-"  # starts a document in CoNLL-2003; it is not a word


def tagged_rows(source: Source) -> Iterator[tuple[dict[str, Any], str]]:
    """The sentences of a file, each with the line where it begins.

    Columns are separated by tabs if a line has one, else by spaces. A row has lists of strings:
    ``tokens`` (the first column), ``tags`` (the last one), and each column under its number, from
    "0".

    Raises:
        DataError: A line with one column, or with another number of columns than the lines before.
    """
    lines: list[list[str]] = []
    origin, width = "", 0
    for line in read_lines(source.path, 0, source.longest):
        cells = _conll_cells(line.text)
        if not cells or cells[0] == _DOCSTART:
            if lines:
                yield _conll_row(lines), origin
            lines = []
            continue
        where = f"{source.name}:{line.number}"
        width = width or len(cells)
        if width < 2:
            text = source.kind == "text"
            raise DataError(
                f"{where}: {'a text file has no columns' if text else 'one column, and no tags'}",
                "use csv, tsv or jsonl; or, for tagging, a word and its tag on each line",
            )
        if len(cells) != width:
            raise DataError(
                f"{where}: {len(cells)} columns where the lines before have {width}",
                "put a word and its tags on each line, and a blank line between sentences",
            )
        origin = origin if lines else where
        lines.append(cells)
    if lines:
        yield _conll_row(lines), origin


def _conll_cells(line: str) -> list[str]:
    # Only at ASCII spaces: some other spaces of Unicode are words in Chinese data.
    bare = line.strip("\r\n")
    if "\t" in bare.strip("\t "):
        return bare.split("\t")
    return [cell for cell in bare.strip("\t").split(" ") if cell]


def _conll_row(lines: list[list[str]]) -> dict[str, Any]:
    columns = [list(column) for column in zip(*lines, strict=True)]
    numbered = {str(number): column for number, column in enumerate(columns)}
    return {"tokens": columns[0], "tags": columns[-1], **numbered}


# --- Reading comprehension as SQuAD publishes it: one JSON object whose ``data`` are articles ---
#
# An article has paragraphs; a paragraph has a context and questions. A row is a question, with the
# columns that ``datasets`` gives it: id, title, context, question, answers (text, answer_start) and
# is_impossible. ``data`` may also be a list of such rows.


_SQUAD_FORMAT = "SQuAD's format: data, paragraphs, qas, answers"


def is_nested(source: Source) -> bool:
    """Whether a ``.json`` file is one object, not one object per line."""
    if ".json" not in source.path.suffixes:
        return False
    for line in read_lines(source.path, 0, source.longest):
        if line.text.strip():
            try:
                first = _parse_json(line.text)
            except (ValueError, RecursionError):
                return line.text.strip() == "{" or _whole_json(source) is not None
            return isinstance(first, dict) and isinstance(first.get("data"), list)
    return False


def nested_rows(source: Source) -> Rows:
    """The questions of a file, each with ``file: article/paragraph/question`` as its origin.

    Args:
        source: A source that ``is_nested``.

    Raises:
        DataError: It is not JSON, or a part of it is missing or has another type.
    """
    document = _whole_json(source)
    if document is None:
        raise DataError(
            f"{source.name}: the file as a whole is not JSON",
            "write one JSON object per line, or one object with a list `data`, as SQuAD has it",
        )
    for number, entry in enumerate(_squad_list(document, "data", source.name), 1):
        where = f"{source.name}: article {number}"
        if isinstance(entry, dict) and "paragraphs" in entry:
            yield from _squad_questions(entry, number, source.name)
        elif isinstance(entry, dict):
            yield entry, f"{source.name}: {entry.get('id', f'row {number}')}"
        else:
            raise DataError(f"{where}: a {type(entry).__name__}, not an object")


def _whole_json(source: Source) -> Any:
    """The file as one JSON value; None if it is not one.

    Raises:
        DataError: It has half of a character.
    """
    text = "".join(line.text for line in read_lines(source.path, 0, source.longest))
    try:
        return _parse_json(text)
    except UnicodeEncodeError as error:
        raise _half_a_character(source.name, error) from error
    except (ValueError, RecursionError):
        return None


def _squad_questions(article: dict[str, Any], number: int, name: str) -> Rows:
    title = str(article.get("title") or f"article {number}")
    for place, paragraph in enumerate(_squad_list(article, "paragraphs", f"{name}: {title}"), 1):
        where = f"{name}: {title}/{place}"
        context = _squad_text(paragraph, "context", where)
        for question in _squad_list(paragraph, "qas", where):
            label = question.get("id") if isinstance(question, dict) else None
            origin = f"{where}/{label}"
            yield (
                {
                    "id": str(label),
                    "title": title,
                    "context": context,
                    "question": _squad_text(question, "question", origin),
                    "answers": _squad_answers(question, origin),
                    "is_impossible": bool(question.get("is_impossible", False)),
                },
                origin,
            )


def _squad_answers(question: dict[str, Any], origin: str) -> dict[str, list[Any]] | None:
    """The answers; None if the file has none, as for a test set."""
    if question.get("answers") is None:
        return None
    columns: dict[str, list[Any]] = {"text": [], "answer_start": []}
    for answer in _squad_list(question, "answers", origin):
        columns["text"].append(_squad_text(answer, "text", f"{origin}: an answer"))
        columns["answer_start"].append(answer.get("answer_start"))
    return columns


def _squad_list(values: Any, key: str, where: str) -> list[Any]:
    value = values.get(key) if isinstance(values, dict) else None
    if not isinstance(value, list):
        raise DataError(f"{where}: no list {key!r}", _SQUAD_FORMAT)
    return value


def _squad_text(values: Any, key: str, where: str) -> str:
    value = values.get(key) if isinstance(values, dict) else None
    if not isinstance(value, str):
        raise DataError(f"{where}: no text {key!r}", _SQUAD_FORMAT)
    return value
