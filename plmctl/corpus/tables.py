"""Labelled rows: csv, tsv, jsonl, parquet, folders of ``datasets``, the Hub, samples."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from plmctl.corpus.source import resolve
from plmctl.corpus.split import share_of
from plmctl.corpus.tabular import rows
from plmctl.errors import DataError, nearest

if TYPE_CHECKING:
    from plmctl.config.data import TableConfig


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
        held_out = [share_of(_content(row, columns)) < share for row in rows]
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


def _content(row: Row, columns: Sequence[str]) -> str:
    return repr([(column, row.cell(column)) for column in columns])
