"""Labelled rows: read, split, and checked before they are learned from.

They come from csv, tsv, jsonl and parquet files, folders of ``datasets``, the Hub, and samples. The
checks look for empty rows, duplicates, imbalance, and training texts among the validation rows.
"""

from __future__ import annotations

import hashlib
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


@dataclass(frozen=True)
class Row:
    """A row and where it came from (``file:line``)."""

    values: Mapping[str, Any]
    origin: str

    def cell(self, column: str) -> Any:
        """What stands in a column.

        Raises:
            DataError: There is no such column, or nothing in it.
        """
        if column not in self.values:
            raise DataError(
                f"{self.origin}: no column {column!r}{nearest(column, self.values)}",
                "name the columns under `task`",
            )
        value = self.values[column]
        if value is None:
            raise DataError(f"{self.origin}: column {column!r} is null", "leave the row out")
        return value


def read_rows(names: Sequence[str]) -> list[Row]:
    """All rows of the sources, in order.

    Raises:
        DataError: Nothing is there, or a malformed row.
    """
    found = [
        Row(values, origin) for source in resolve(tuple(names)) for values, origin in rows(source)
    ]
    if not found:
        raise DataError(f"no rows in {', '.join(names)}", "are the paths right?")
    return found


@dataclass(frozen=True)
class Split:
    """Rows to learn from and to be scored.

    Attributes:
        train: To learn from.
        valid: By the name of each validation set, "valid" where the config names none.
        unlabelled: Rows without a gold label, which are in neither, by side.
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
        config: The sources; ``valid`` as a share holds out rows by a hash, ``max_rows`` takes a
            sample of the training rows, of which a smaller one is a part of a larger one.
        seed: Of the sample.
        columns: What the hash is of, so that rows that are equal in it are on one side.
        is_labelled: False for the rows to leave out.

    Raises:
        DataError: One side is empty, or a column is missing.
    """
    sides = {"train": read_rows(config.train)}
    if isinstance(config.valid, float):
        share, rows = config.valid, sides["train"]
        held_out = [share_of(_row_content(row, columns)) < share for row in rows]
        sides["train"] = [row for row, out in zip(rows, held_out, strict=True) if not out]
        sides["valid"] = [row for row, out in zip(rows, held_out, strict=True) if out]
    else:
        named = config.valid if isinstance(config.valid, dict) else {"valid": config.valid}
        sides |= {name: read_rows(sources) for name, sources in named.items()}
    kept = {name: [row for row in rows if is_labelled(row)] for name, rows in sides.items()}
    unlabelled = {name: len(rows) - len(kept[name]) for name, rows in sides.items()}
    train = kept.pop("train")
    if not train or not all(kept.values()):
        counts = ", ".join(f"{len(rows)} of {name}" for name, rows in kept.items())
        raise DataError(
            f"{', '.join(config.train)}: {len(train)} training rows, and validation rows: {counts}",
            "change data.valid: a larger or smaller share, or files of its own",
        )
    if config.max_rows is not None and config.max_rows < len(train):
        generator = np.random.Generator(np.random.Philox(seed))
        train = [train[index] for index in generator.permutation(len(train))[: config.max_rows]]
    return Split(train, kept, unlabelled)


def rows_digest(rows: Sequence[Row]) -> str:
    """Hash of what stands in rows, and of their order."""
    found = hashlib.blake2b(digest_size=16)
    for row in rows:
        found.update(repr(sorted(row.values.items(), key=lambda item: item[0])).encode())
    return found.hexdigest()


def _row_content(row: Row, columns: Sequence[str]) -> str:
    return repr([(column, row.cell(column)) for column in columns])


# --- Checks: balance, duplicates, leakage ---


Texts = tuple[str, ...]

_MAX_EXAMPLES = 3
"""Rows that are named of each kind."""

_MAX_LABELS = 12


def refuse_empty(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """See that every row has some text.

    Raises:
        DataError: A row that has none in any of its columns, by file and row.
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
    """What is told of the rows.

    Args:
        train: Training rows.
        valid: Validation rows, by the name of their set.
        columns: Text columns; rows that are equal in them are duplicates.
        label: Column of the label, where the task has one.

    Returns:
        train, and each set of valid: rows, duplicates (rows whose text stood in an earlier
            one), half_empty (rows with a column that has no text), and labels by their counts;
        conflicts: training texts that occur with several labels;
        leaks: validation rows whose text is in the training rows too, the first few by name.
    """
    sides = {"train": train, **valid}
    texts = {name: [row_texts(row, columns) for row in rows] for name, rows in sides.items()}
    found: dict[str, Any] = {
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
    found["conflicts"] = sum(len(of) > 1 for of in labels.values())
    found["leaks"] = {"rows": len(leaks), "first": leaks[:_MAX_EXAMPLES]}
    return found


def row_texts(row: Row, columns: Sequence[str]) -> Texts:
    """What stands in the text columns; a list as its items, one a line."""
    return tuple(_cell_text(row.cell(column)) for column in columns)


def _cell_text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def label_counts(rows: Sequence[Row], column: str) -> dict[str, int]:
    """How often each label occurs, the most frequent first; of a list each of its items counts."""
    counts: Counter[str] = Counter()
    for row in rows:
        value = row.values.get(column)
        counts.update(map(str, value) if isinstance(value, list | tuple) else (str(value),))
    return dict(counts.most_common())


def add_example_checks(
    found: dict[str, Any],
    cut: Mapping[str, int],
    dropped: Sequence[str],
    unlabelled: Mapping[str, int],
) -> dict[str, Any]:
    """What was found, with what became of the rows as examples.

    Args:
        found: As ``check_rows`` gives it.
        cut: Rows that lost text to ``max_length``, by side.
        dropped: Training rows that cannot be learnt from, and why.
        unlabelled: Rows without a gold label, which were left out, by side.
    """
    sides = {
        name: {**found[name], "cut": count, "unlabelled": unlabelled[name]}
        for name, count in cut.items()
    }
    return {
        **found,
        **sides,
        "dropped": {"rows": len(dropped), "first": list(dropped[:_MAX_EXAMPLES])},
    }


def summarize_checks(found: dict[str, Any]) -> list[str]:
    """The check in a few lines for reading; what is as it should be is left out."""
    sides = {n: s for n, s in found.items() if isinstance(s, dict) and "duplicates" in s}
    lines = [line for name, side in sides.items() for line in _summarize_side(name, side)]
    if found["conflicts"]:
        lines.append(f"{found['conflicts']:,} training texts occur with several labels")
    for key, words in (
        ("leaks", "validation rows have a text that is in the training rows too"),
        ("dropped", "training rows cannot be learnt from and are left out"),
    ):
        several = found.get(key, {"rows": 0})
        if several["rows"]:
            lines.append(f"{several['rows']:,} {words}:")
            lines += [f"  {line}" for line in several["first"]]
            if several["rows"] > len(several["first"]):
                lines.append("  ...")
    return lines


def _summarize_side(name: str, side: Mapping[str, Any]) -> list[str]:
    parts = [f"{side['rows']:,} rows"]
    for key, words in (
        ("duplicates", "duplicates"),
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
    shown = [f"{name} {count / total:.0%}" for name, count in labels.items()]
    more = f" and {len(shown) - _MAX_LABELS} more" if len(shown) > _MAX_LABELS else ""
    return f"; {', '.join(shown[:_MAX_LABELS])}{more}"
