"""A look at labelled rows before they are learnt from: balance, duplicates, leakage."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from plmctl.corpus.tables import Row
from plmctl.errors import DataError

Texts = tuple[str, ...]

_SHOWN = 3
"""Rows that are named of each kind."""
_CLASSES = 12


def refuse_empty(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """See that every row has some text.

    Raises:
        DataError: A row that has none in any of its columns, by file and row.
    """
    for row in rows:
        if not any(text.strip() for text in texts_of(row, columns)):
            raise DataError(
                f"{row.origin}: no text in {' and '.join(map(repr, columns))}",
                "leave the row out, or name other columns under `task`",
            )


def texts_of(row: Row, columns: Sequence[str]) -> Texts:
    """What stands in the text columns; a list as its items, one a line."""
    return tuple(_text(row.cell(column)) for column in columns)


def balance(rows: Sequence[Row], column: str) -> dict[str, int]:
    """How often each label occurs, the most frequent first; of a list each of its items counts."""
    counts: Counter[str] = Counter()
    for row in rows:
        value = row.values.get(column)
        counts.update(map(str, value) if isinstance(value, list | tuple) else (str(value),))
    return dict(counts.most_common())


def check(
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
    texts = {name: [texts_of(row, columns) for row in rows] for name, rows in sides.items()}
    found: dict[str, Any] = {
        name: {
            "rows": len(rows),
            "duplicates": len(rows) - len(set(texts[name])),
            "half_empty": sum(not all(t.strip() for t in row) for row in texts[name]),
            **({"labels": balance(rows, label)} if label else {}),
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
    found["leaks"] = {"rows": len(leaks), "first": leaks[:_SHOWN]}
    return found


def with_examples(
    found: dict[str, Any],
    cut: Mapping[str, int],
    dropped: Sequence[str],
    unlabelled: Mapping[str, int],
) -> dict[str, Any]:
    """What was found, with what became of the rows as examples.

    Args:
        found: As ``check`` gives it.
        cut: Rows that lost text to ``max_length``, by side.
        dropped: Training rows that cannot be learnt from, and why.
        unlabelled: Rows without a gold label, which were left out, by side.
    """
    sides = {
        name: {**found[name], "cut": count, "unlabelled": unlabelled[name]}
        for name, count in cut.items()
    }
    return {**found, **sides, "dropped": {"rows": len(dropped), "first": list(dropped[:_SHOWN])}}


def told(found: dict[str, Any]) -> list[str]:
    """The check in a few lines for reading; what is as it should be is left out."""
    sides = {n: s for n, s in found.items() if isinstance(s, dict) and "duplicates" in s}
    lines = [line for name, side in sides.items() for line in _side(name, side)]
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


def _side(name: str, side: Mapping[str, Any]) -> list[str]:
    parts = [f"{side['rows']:,} rows"]
    for key, words in (
        ("duplicates", "duplicates"),
        ("half_empty", "with an empty column"),
        ("cut", "cut to max_length"),
    ):
        if count := side.get(key, 0):
            parts.append(f"{count:,} {words} ({count / side['rows']:.1%})")
    lines = [f"{name}: {', '.join(parts)}{_classes(side)}"]
    if count := side.get("unlabelled", 0):
        lines.append(f"  {count:,} rows without a gold label are left out")
    return lines


def _classes(side: Mapping[str, Any]) -> str:
    labels = side.get("labels", {})
    if not labels:
        return ""
    total = sum(labels.values())
    shown = [f"{name} {count / total:.0%}" for name, count in labels.items()]
    more = f" and {len(shown) - _CLASSES} more" if len(shown) > _CLASSES else ""
    return f"; {', '.join(shown[:_CLASSES])}{more}"


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
