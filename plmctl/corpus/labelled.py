"""Labelled rows: reading, splitting, and checks before training.

Sources are csv, tsv, jsonl and parquet files, folders of ``datasets``, the Hub, and samples. The
checks look for empty rows, duplicates, imbalance, and training texts in the validation rows.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from plmctl.corpus.cells import MISSING, look_alikes, number_of
from plmctl.corpus.document import share_of
from plmctl.corpus.source import resolve
from plmctl.corpus.tabular import rows
from plmctl.errors import DataError, nearest

if TYPE_CHECKING:
    from plmctl.config.sections import TableConfig


# --- Reading and splitting rows ---


_BRACES = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True)
class Row:
    """A row and its origin (``file:line``)."""

    values: Mapping[str, Any]
    origin: str

    def cell(self, column: str) -> Any:
        """The value in a column.

        Args:
            column: Its name; or a text with names in braces, as in ``Question: {question}``, in
                which each is replaced by its value. ``{target.name}`` is a field of a column.

        Raises:
            DataError: The column does not exist, or the value is null.
        """
        if column not in self.values and _BRACES.search(column):
            return _BRACES.sub(lambda match: str(self.cell(match[1])), column)
        head, _, field = column.partition(".")
        fields = self.values.get(head)
        if column not in self.values and isinstance(fields, Mapping) and field in fields:
            return fields[field]
        if column not in self.values:
            raise DataError(
                f"{self.origin}: no column {column!r}{nearest(column, self.values)}",
                "name the columns under `task`; with `predict --input`: --column FIELD=COLUMN",
            )
        value = self.values[column]
        if value is None:
            raise DataError(f"{self.origin}: column {column!r} is null", "leave the row out")
        return value


def read_rows(names: Sequence[str]) -> list[Row]:
    """All rows of the sources, in order.

    Raises:
        DataError: A source does not exist or has no rows, or a row is malformed.
    """
    all_rows = [
        Row(values, origin) for source in resolve(tuple(names)) for values, origin in rows(source)
    ]
    if not all_rows:
        raise DataError(f"no rows in {', '.join(names)}", "check the paths")
    return all_rows


@dataclass(frozen=True)
class Split:
    """Training and validation rows.

    Attributes:
        valid: Validation rows by the name of their set; "valid" if the config has no names.
        unlabelled: Number of rows without a gold label, which were left out, by side.
    """

    train: list[Row]
    valid: dict[str, list[Row]]
    unlabelled: dict[str, int]


def split_rows(
    config: TableConfig,
    seed: int,
    columns: Sequence[str],
    is_labelled: Callable[[Row], bool] = lambda row: True,
) -> Split:
    """Training and validation rows of a config.

    Args:
        config: The sources. If ``valid`` is a share, rows are held out by a hash. ``max_rows`` is
            the size of a sample of the training rows; a smaller sample is part of a larger one.
        columns: The columns to hash, so that rows with equal values there are on the same side.
        is_labelled: False for rows to leave out.

    Raises:
        DataError: One side is empty, or a column is missing.
    """
    sides = {"train": read_rows(config.train)}
    if isinstance(config.valid, float):
        share, rows = config.valid, sides["train"]
        contents = [repr([(column, row.cell(column)) for column in columns]) for row in rows]
        held_out = [share_of(content) < share for content in contents]
        sides["train"] = [row for row, out in zip(rows, held_out, strict=True) if not out]
        sides["valid"] = [row for row, out in zip(rows, held_out, strict=True) if out]
    else:
        named = config.valid if isinstance(config.valid, dict) else {"valid": config.valid}
        sides |= {name: read_rows(sources) for name, sources in named.items()}
    labelled = {name: [row for row in rows if is_labelled(row)] for name, rows in sides.items()}
    unlabelled = {name: len(rows) - len(labelled[name]) for name, rows in sides.items()}
    train = labelled.pop("train")
    if not train or not all(labelled.values()):
        counts = ", ".join(f"{len(rows)} of {name}" for name, rows in labelled.items())
        raise DataError(
            f"{', '.join(config.train)}: {len(train)} training rows, and validation rows: {counts}",
            "change data.valid: set a larger or smaller share, or separate files",
        )
    if config.max_rows is not None and config.max_rows < len(train):
        generator = np.random.Generator(np.random.Philox(seed))
        train = [train[index] for index in generator.permutation(len(train))[: config.max_rows]]
    return Split(train, labelled, unlabelled)


def rows_digest(rows: Sequence[Row]) -> str:
    """Hash of the values of rows and of their order."""
    digest = hashlib.blake2b(digest_size=16)
    for row in rows:
        digest.update(repr(sorted(row.values.items(), key=lambda item: item[0])).encode())
    return digest.hexdigest()


# --- Checks: balance, duplicates, leakage ---


Texts = tuple[str, ...]

_MAX_EXAMPLES = 3
"""How many rows of each kind are named."""

_MAX_LABELS = 12

_MAX_ODD = 6

_FEW_ROWS = 50
"""Validation rows below which a warning is given: accuracy is then uncertain by 0.14 or more."""

Labels = list[tuple[Any, str]]
"""The labels of a row: each as it is written, and its name."""


def refuse_empty(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Refuse rows without text.

    Raises:
        DataError: A row has no text in any of the columns; the message has its file and line.
    """
    for row in rows:
        if not any(text.strip() for text in row_texts(row, columns)):
            raise DataError(
                f"{row.origin}: no text in {' and '.join(map(repr, columns))}",
                "leave the row out, or name other columns under `task`",
            )


def check_rows(
    train: Sequence[Row],
    valid: Mapping[str, Sequence[Row]],
    columns: Sequence[str],
    labels_of: Callable[[Sequence[Row]], Sequence[Labels]] | None,
) -> dict[str, Any]:
    """Check rows for duplicates, conflicting labels, labels that look alike, and leaks.

    Args:
        valid: Validation rows, by the name of their set.
        columns: Text columns; rows with equal values in them are duplicates.
        labels_of: The labels of rows; None, or nothing for all rows: the task has none.

    Returns:
        train, and each set of valid: the numbers of rows, of duplicates (rows with the text of an
            earlier row) and of half_empty rows (without text in one of the columns), and the count
            of each label, the most frequent first;
        conflicts: number of training texts that occur with several labels;
        labels: what is odd about the labels, in sentences;
        leaks: number of validation rows whose text is also in the training rows, and the first few.
    """
    sides = {"train": train, **valid}
    texts = {name: [row_texts(row, columns) for row in rows] for name, rows in sides.items()}
    read = {name: labels_of(rows) if labels_of else [] for name, rows in sides.items()}
    checks: dict[str, Any] = {
        name: {
            "rows": len(rows),
            "duplicates": len(rows) - len(set(texts[name])),
            "half_empty": sum(not all(t.strip() for t in row) for row in texts[name]),
            **({"labels": _label_counts(read[name])} if read[name] else {}),
        }
        for name, rows in sides.items()
    }
    labels: dict[Texts, set[tuple[str, ...]]] = {}
    first: dict[Texts, str] = {}
    for number, (row, text) in enumerate(zip(train, texts["train"], strict=True)):
        first.setdefault(text, row.origin)
        names = tuple(name for _, name in read["train"][number]) if read["train"] else ()
        labels.setdefault(text, set()).add(names)
    leaks = [
        f"{row.origin} is {first[text]}"
        for name, rows in valid.items()
        for row, text in zip(rows, texts[name], strict=True)
        if text in first
    ]
    checks["labels"] = _odd_labels(label for rows in read.values() for row in rows for label in row)
    checks["conflicts"] = sum(len(of) > 1 for of in labels.values())
    checks["leaks"] = {"rows": len(leaks), "first": leaks[:_MAX_EXAMPLES]}
    return checks


def _label_counts(rows: Iterable[Labels]) -> dict[str, int]:
    counts = Counter(name for row in rows for _, name in row or [(None, "")])
    return dict(counts.most_common())


_LIKE_MISSING = {"_", *(name.casefold() for name in MISSING)}  # CoNLL-U: no value


def _odd_labels(labels: Iterable[tuple[Any, str]]) -> list[str]:
    """What a user should know of labels: spellings, names that look alike, decimals, ``nan``."""
    written: dict[str, list[str]] = {}
    for _, raw, name in sorted({(str(type(raw)), raw, name) for raw, name in labels}, key=ascii):
        written.setdefault(name, []).append(ascii(raw))
    lines = [
        f"the label {name!r} is written in {len(forms)} ways: {' and '.join(forms[:_MAX_EXAMPLES])}"
        for name, forms in sorted(written.items())
        if len(forms) > 1
    ]
    lines += [
        f"separate labels that look alike: {' and '.join(map(_plain, group[:_MAX_LABELS]))}; if "
        "they mean the same, write one of them everywhere"
        for group in look_alikes(written)
    ]
    if missing := sorted(name for name in written if name.casefold() in _LIKE_MISSING):
        lines.append(
            f"{missing[0]!r} is learned as a label; if it means that there is none, leave these "
            "rows out (classification: make the label empty, and set `task.unlabelled: drop`)"
        )
    numbers = [name for name in written if number_of(name) is not None]
    decimals = [name for name in numbers if "." in name]
    if decimals and len(numbers) == len(written):
        lines.append(
            f"decimals such as {decimals[0]} are learned as {len(written)} separate labels, "
            "without an order; to predict the number set `task.problem: regression`"
        )
    return lines


def _plain(name: str) -> str:
    """A name in quotes; letters that look like others as their numbers."""
    return repr(name) if name.isascii() else f"{name!r} ({ascii(name)[1:-1]})"


def row_texts(row: Row, columns: Sequence[str]) -> Texts:
    """The values of the text columns as text; the items of a list are separate lines."""
    return tuple(_cell_text(row.cell(column)) for column in columns)


def _cell_text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def add_example_checks(
    checks: dict[str, Any],
    cut: Mapping[str, int],
    dropped: Sequence[str],
    unlabelled: Mapping[str, int],
) -> dict[str, Any]:
    """The result of ``check_rows``, with what happened when examples were made of the rows.

    Args:
        checks: The result of ``check_rows``.
        cut: Number of rows truncated to ``max_length``, by side.
        dropped: Training rows that cannot be used, with the reasons.
        unlabelled: Number of rows without a gold label, which were left out, by side.
    """
    sides = {
        name: {**checks[name], "cut": count, "unlabelled": unlabelled[name]}
        for name, count in cut.items()
    }
    return {
        **checks,
        **sides,
        "dropped": {"rows": len(dropped), "first": list(dropped[:_MAX_EXAMPLES])},
    }


def summarize_checks(checks: dict[str, Any]) -> list[str]:
    """The checks in a few readable lines; only problems are listed."""
    sides = {n: s for n, s in checks.items() if isinstance(s, dict) and "duplicates" in s}
    lines = [line for name, side in sides.items() for line in _summarize_side(name, side)]
    if odd := checks.get("labels", []):
        lines += odd[:_MAX_ODD]
        if len(odd) > _MAX_ODD:
            lines.append(f"and {len(odd) - _MAX_ODD:,} more of the labels")
    if checks["conflicts"]:
        lines.append(f"{checks['conflicts']:,} training texts occur with several labels")
    for key, words in (
        ("leaks", "validation rows have a text that is also in the training rows"),
        ("dropped", "training rows cannot be used and are left out"),
    ):
        several = checks.get(key, {"rows": 0})
        if several["rows"]:
            lines.append(f"{several['rows']:,} {words}:")
            lines += [f"  {line}" for line in several["first"]]
            if several["rows"] > len(several["first"]):
                lines.append("  ...")
    return lines


def _summarize_side(name: str, side: Mapping[str, Any]) -> list[str]:
    parts = [f"{side['rows']:,} rows"]
    for key, words in (
        ("duplicates", "duplicates" if side.get("duplicates") != 1 else "duplicate"),
        ("half_empty", "with an empty column"),
        ("cut", "cut to max_length"),
    ):
        if count := side.get(key, 0):
            parts.append(f"{count:,} {words} ({count / side['rows']:.1%})")
    lines = [f"{name}: {', '.join(parts)}{_summarize_labels(side)}"]
    if count := side.get("unlabelled", 0):
        lines.append(f"  {count:,} rows without a gold label are left out")
    if name != "train" and side["rows"] < _FEW_ROWS:
        few = f"{side['rows']} rows are" if side["rows"] > 1 else "1 row is"
        lines.append(
            f"  {few} few: one row is {100 / side['rows']:.0f} % of a score; validate on more "
            "rows (data.valid), or compare several --seeds"
        )
    return lines


def _summarize_labels(side: Mapping[str, Any]) -> str:
    labels = side.get("labels", {})
    if not labels:
        return ""
    total = sum(labels.values())
    shown = [f"{name or 'no label'} {count / total:.0%}" for name, count in labels.items()]
    more = f" and {len(shown) - _MAX_LABELS} more" if len(shown) > _MAX_LABELS else ""
    return f"; {', '.join(shown[:_MAX_LABELS])}{more}"
