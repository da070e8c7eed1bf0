"""Rows of jsonl, csv, tsv, CoNLL, SQuAD and parquet files, of ``datasets`` folders and the hubs.

Each row comes with its origin (``file:line``) for error messages.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl import hub
from plmctl.corpus import sample
from plmctl.corpus.cells import number_of
from plmctl.corpus.conll import tagged_rows
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


def text_column(source: Source) -> str | None:
    """The column of a table that has the longest text; None for text files, and without text."""
    if source.kind in ("text", "conll", "sample"):
        return None
    lengths = dict[str, int]()
    try:
        for values, _ in islice(rows(source), 50):
            for key, value in values.items():
                if isinstance(value, str):
                    lengths[key] = lengths.get(key, 0) + len(value)
    except DataError:  # the rows before it decide; the file is looked at later
        pass
    return "text" if "text" in lengths else max(lengths, key=lambda key: lengths[key], default=None)


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
        except _TwiceError as error:
            raise DataError(f"{locate(source.path, start, line.number)}: {error}", _ONCE) from None
        except (ValueError, RecursionError) as error:
            where = locate(source.path, start, line.number)
            raise DataError(f"{where}: not JSON: {error}", _LINES) from error
        if not isinstance(values, dict):
            where = locate(source.path, start, line.number)
            raise DataError(f"{where}: a JSON {type(values).__name__}, not an object", _LINES)
        origin = origin_of(source, start, line.offset, line.number)
        if isinstance(values.get("qas"), list) and "question" not in values:
            yield from _squad_paragraph(values, origin, str(values.get("title") or ""))
        else:
            yield values, origin


_LINES = "one JSON object per line; if the whole file is one list of objects, name it .json"

_ONCE = "which of the values counts? write each key once"


class _TwiceError(ValueError):
    """An object of JSON has a key twice; json.loads would keep the last value."""


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise _TwiceError(f"the key {twice!r} is here twice")
    return values


def _parse_json(text: str) -> Any:
    """A value of JSON.

    Raises:
        UnicodeEncodeError: It has half of a surrogate pair, which is no text.
        _TwiceError: An object has a key twice.
        ValueError: It is not JSON.
        RecursionError: It is nested too deeply.
    """
    value = json.loads(text, parse_constant=_CONSTANTS.__getitem__, object_pairs_hook=_distinct)
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _half_a_character(where: str, error: UnicodeEncodeError) -> DataError:
    return DataError(
        f"{where}: {ascii(error.object[error.start])[1:-1]} is a lone surrogate: "
        "half of a UTF-16 character",
        "write the text again with whole characters, or remove this one",
    )


def _csv_rows(source: Source) -> Rows:
    csv.field_size_limit(source.longest)  # a document may be a field
    lines = (line.text for line in read_lines(source.path, 0, source.longest))
    if source.kind == "csv":
        reader = csv.reader(lines, strict=True)
    elif _has_quoted_fields(source):
        reader = csv.reader(lines, delimiter="\t", strict=True)
    else:  # as GLUE's: a single quote in a sentence is only a quote
        reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    first = 1
    header: list[str] | None = None
    try:
        for values in reader:
            where, first = f"{source.name}:{first}", reader.line_num + 1
            if not values:
                continue
            if header is None:
                known: set[str] = set()
                for name in values:
                    if name in known:
                        raise DataError(
                            f"{where}: two columns have the name {name!r}", "rename one of them"
                        )
                    known.add(name)
                header = values
            elif len(values) != len(header):
                raise DataError(
                    f"{where}: {len(values)} fields where the header has {len(header)} columns",
                    "quote fields with commas or line ends in them"
                    if source.kind == "csv"
                    else "quotes count in a tsv file only if every quote in it is written as "
                    "pandas and csv.writer do; write csv or jsonl",
                )
            else:
                yield dict(zip(header, values, strict=True)), where
    except csv.Error as error:
        raise DataError(
            f"{source.name}:{reader.line_num}: {error}", "check the quotes of this row"
        ) from error


_LOOKED_AT = 1_000_000  # lines of a tsv file that decide whether it has quoted fields


def _has_quoted_fields(source: Source) -> bool:
    """Whether a tsv file is written by pandas, csv.writer or R, which quote fields.

    They quote a field if it has a tab, a quote or a line end, and double its quotes; or all texts;
    or all fields. In other files, such as GLUE's, a quote is only a quote. A file is quoted if it
    has quotes, and all of its rows are written in one of these ways.
    """
    raw: list[str] = []

    def lines() -> Iterator[str]:
        for line in read_lines(source.path, 0, source.longest):
            raw.append(line.text)
            yield line.text

    some, ways = False, {0, 1, 2}
    reader = csv.reader(lines(), delimiter="\t", strict=True)
    try:
        for values in reader:
            text = "".join(raw).rstrip("\r\n")
            raw.clear()
            some = some or '"' in text
            if '"' not in text:
                ways &= {0}  # the quick way: a row has a text
            elif values:
                ways &= {way for way, row in enumerate(_ways_to_quote(values)) if row == text}
            if not ways:
                return False
            if reader.line_num >= _LOOKED_AT:
                break
    except csv.Error:
        return False
    return some


def _ways_to_quote(values: Sequence[str]) -> list[str]:
    """A row of a tsv file with quotes where they are needed, around texts, around all fields."""
    quoted = ['"' + value.replace('"', '""') + '"' for value in values]
    needed = [bool(re.search(r'[\t\r\n"]', value)) for value in values]
    texts = [number_of(value) is None for value in values]
    return [
        "\t".join(q if wanted else v for q, v, wanted in zip(quoted, values, which, strict=True))
        for which in (needed, texts, [True] * len(values))
    ]


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


# --- Whole files of JSON: a list of rows, or reading comprehension as SQuAD publishes it ---
#
# SQuAD's file is one object whose ``data`` are articles. An article has paragraphs; a paragraph has
# a context and questions. A row is a question, with the columns that ``datasets`` gives it: id,
# title, context, question, answers (text, answer_start) and is_impossible. ``data`` may also be a
# list of paragraphs or of rows; and the file may be that list, or one article or paragraph.
# CMRC 2018's own form has other names (context_text, query_text, query_id) and answers as texts.


_SQUAD_FORMAT = "SQuAD's format: data, paragraphs, qas, answers"

_JSON_FORMS = (
    "write a list of objects, one per row; or SQuAD's nested form: "
    '{"data": [{"paragraphs": [{"context": ..., "qas": [{"question": ..., "answers": [...]}]}]}]}; '
    "pandas: table.to_json(file, orient='records')"
)


def is_nested(source: Source) -> bool:
    """Whether a ``.json`` file is one list or object, not one object per line."""
    if ".json" not in source.path.suffixes:
        return False
    for line in read_lines(source.path, 0, source.longest):
        if line.text.strip():
            try:
                first = _parse_json(line.text)
            except _TwiceError:  # reported with its line
                return False
            except (ValueError, RecursionError):
                return line.text.strip() in ("{", "[", "[{") or _whole_json(source) is not None
            return isinstance(first, list) or (isinstance(first, dict) and _is_whole(first))
    return False


def _is_whole(value: dict[str, Any]) -> bool:
    """Whether an object is a file as a whole and no row: SQuAD's parts, or a table by columns."""
    paragraphs = value.get("paragraphs")
    first = paragraphs[0] if isinstance(paragraphs, list) and paragraphs else None
    if isinstance(value.get("data"), list) or (isinstance(first, dict) and "qas" in first):
        return True
    return bool(value) and all(
        isinstance(column, dict) and "0" in column for column in value.values()
    )


def nested_rows(source: Source) -> Rows:
    """The rows of a file, each with ``file: article/paragraph/question`` or so as its origin.

    Args:
        source: A source that ``is_nested``.

    Raises:
        DataError: It is not JSON, or a part of it is missing or has another type.
    """
    document, name = _whole_json(source), source.name
    if document is None:
        raise DataError(f"{name}: the file as a whole is not JSON", _LINES)
    if isinstance(document, dict):
        parts = {"paragraphs", "qas"} & set(document)
        document = [document] if parts else document.get("data")
    if not isinstance(document, list):
        raise DataError(f"{name}: no list of rows, and no list 'data'", _JSON_FORMS)
    for number, entry in enumerate(document, 1):
        if not isinstance(entry, dict):
            what = f"{name}: entry {number} is a {type(entry).__name__}, not an object"
            raise DataError(what, _JSON_FORMS)
        title = str(entry.get("title") or f"article {number}")
        if "paragraphs" in entry:
            paragraphs = _squad_list(entry, "paragraphs", f"{name}: {title}")
            for place, paragraph in enumerate(paragraphs, 1):
                yield from _squad_paragraph(paragraph, f"{name}: {title}/{place}", title)
        elif "qas" in entry:
            yield from _squad_paragraph(entry, f"{name}: {number}", title)
        else:
            yield entry, f"{name}: {entry.get('id', f'row {number}')}"


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
    except _TwiceError as error:
        raise DataError(f"{source.name}: {error}", _ONCE) from None
    except (ValueError, RecursionError):
        return None


def _squad_paragraph(paragraph: Any, where: str, title: str) -> Rows:
    """The questions about a context."""
    context = _squad_text(paragraph, ("context", "context_text"), where)
    for number, question in enumerate(_squad_list(paragraph, "qas", where), 1):
        label = None
        if isinstance(question, dict):
            label = next((question[k] for k in ("id", "query_id", "qid") if k in question), None)
        origin = f"{where}/{number if label is None else label}"
        yield (
            {
                "id": None if label is None else str(label),
                "title": title,
                "context": context,
                "question": _squad_text(question, ("question", "query_text"), origin),
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
        answer = {"text": answer} if isinstance(answer, str) else answer
        columns["text"].append(_squad_text(answer, ("text",), f"{origin}: an answer"))
        columns["answer_start"].append(answer.get("answer_start"))
    return columns


def _squad_list(values: Any, key: str, where: str) -> list[Any]:
    value = values.get(key) if isinstance(values, dict) else None
    if not isinstance(value, list):
        raise DataError(f"{where}: no list {key!r}", _SQUAD_FORMAT)
    return value


def _squad_text(values: Any, keys: Sequence[str], where: str) -> str:
    """The text of the first of these keys that there is."""
    key = next((key for key in keys if isinstance(values, dict) and key in values), keys[0])
    value = values.get(key) if isinstance(values, dict) else None
    if not isinstance(value, str):
        raise DataError(f"{where}: no text {key!r}", _SQUAD_FORMAT)
    return value
