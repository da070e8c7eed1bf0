"""Labelled rows: reading, splitting, and checks before training.

Sources are csv, tsv, jsonl and parquet files, folders of ``datasets``, the Hub, and samples. The
checks look for empty rows, duplicates, imbalance, and training texts in the validation rows.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

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
        train: Training rows.
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
        seed: Seed of the sample.
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
    label: str | None,
) -> dict[str, Any]:
    """Check rows for duplicates, conflicting labels and leaks.

    Args:
        train: Training rows.
        valid: Validation rows, by the name of their set.
        columns: Text columns; rows with equal values in them are duplicates.
        label: Column of the label, if the task has one.

    Returns:
        train, and each set of valid: the numbers of rows, of duplicates (rows with the text of an
            earlier row) and of half_empty rows (without text in one of the columns), and the count
            of each label;
        conflicts: number of training texts that occur with several labels;
        mixed_labels: the labels that occur as a number and as a text; only if there are any;
        leaks: number of validation rows whose text is also in the training rows, and the first few.
    """
    sides = {"train": train, **valid}
    texts = {name: [row_texts(row, columns) for row in rows] for name, rows in sides.items()}
    checks: dict[str, Any] = {
        name: {
            "rows": len(rows),
            "duplicates": len(rows) - len(set(texts[name])),
            "half_empty": sum(not all(t.strip() for t in row) for row in texts[name]),
            **({"labels": label_counts(rows, label)} if label else {}),
        }
        for name, rows in sides.items()
    }
    labels: dict[Texts, set[str]] = {}
    first: dict[Texts, str] = {}
    for row, text in zip(train, texts["train"], strict=True):
        first.setdefault(text, row.origin)
        labels.setdefault(text, set()).add(str(row.values.get(label)) if label else "")
    leaks = [
        f"{row.origin} is {first[text]}"
        for name, rows in valid.items()
        for row, text in zip(rows, texts[name], strict=True)
        if text in first
    ]
    if label and (mixed := _mixed_labels([row for rows in sides.values() for row in rows], label)):
        checks["mixed_labels"] = mixed
    checks["conflicts"] = sum(len(of) > 1 for of in labels.values())
    checks["leaks"] = {"rows": len(leaks), "first": leaks[:_MAX_EXAMPLES]}
    return checks


def _mixed_labels(rows: Sequence[Row], column: str) -> list[str]:
    values = [row.values.get(column) for row in rows]
    texts = {value for value in values if isinstance(value, str)}
    return sorted(texts & {str(value) for value in values if isinstance(value, int | float)})


def row_texts(row: Row, columns: Sequence[str]) -> Texts:
    """The values of the text columns as text; the items of a list are separate lines."""
    return tuple(_cell_text(row.cell(column)) for column in columns)


def _cell_text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def label_counts(rows: Sequence[Row], column: str) -> dict[str, int]:
    """How often each label occurs, the most frequent first; each item of a list is a label."""
    counts: Counter[str] = Counter()
    for row in rows:
        value = row.values.get(column)
        counts.update(map(str, value) if isinstance(value, list | tuple) else (str(value),))
    return dict(counts.most_common())


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
    if mixed := checks.get("mixed_labels"):
        several = f" and {len(mixed) - 1:,} more" if len(mixed) > 1 else ""
        lines.append(f"one class each: {mixed[0]} as a number and as a text{several}")
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
    return lines


def _summarize_labels(side: Mapping[str, Any]) -> str:
    labels = side.get("labels", {})
    if not labels:
        return ""
    total = sum(labels.values())
    shown = [f"{name or 'no label'} {count / total:.0%}" for name, count in labels.items()]
    more = f" and {len(shown) - _MAX_LABELS} more" if len(shown) > _MAX_LABELS else ""
    return f"; {', '.join(shown[:_MAX_LABELS])}{more}"
