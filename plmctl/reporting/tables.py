"""Results as tables for the terminal.

Cells are ``Text``, since a string would be read as rich's markup: a label ``[red]`` would vanish.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from plmctl.formatting import shown


def figures_table(title: str, figures: Mapping[str, object]) -> Table:
    """Names and figures, one a row."""
    table = _table(title, show_header=False)
    table.add_column()
    table.add_column(justify="right", style="bold")
    for name, value in figures.items():
        table.add_row(Text(name), Text(shown(value)))
    return table


def rows_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table with a header; the first column is text, the others figures."""
    table = _table(title)
    for number, name in enumerate(columns):
        # A long name is folded; figures stay whole.
        table.add_column(Text(name), justify="left" if number == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    return table


def confusion_table(labels: Sequence[str], matrix: Sequence[Sequence[int]]) -> Table:
    """How often each class was taken for each: the truth in rows, the right ones bold.

    Args:
        labels: Names by number.
        matrix: Counts, a row a true class and a column a predicted one.
    """
    table = _table("confusion: truth in rows, prediction in columns")
    table.add_column()
    for label in labels:
        table.add_column(Text(label), justify="right")
    for place, (label, counts) in enumerate(zip(labels, matrix, strict=True)):
        table.add_row(Text(label), *(_count(count, place == n) for n, count in enumerate(counts)))
    return table


def classification_tables(title: str, results: Mapping[str, object]) -> list[Table]:
    """Key figures, a row a class or paradigm, and the confusion matrix of a classifier.

    Args:
        title: Above the first table.
        results: As ``metrics.classification`` gives them, with any further figures.
    """
    apart = ("per_class", "confusion", "paradigms")
    figures = {k: v for k, v in results.items() if k not in apart and v is not None}
    tables = [figures_table(title, figures)]
    paradigms = results.get("paradigms")
    if isinstance(paradigms, list) and paradigms:
        columns = list(paradigms[0])
        rows = [[row[column] for column in columns] for row in paradigms]
        tables.append(rows_table("by paradigm", columns, rows))
    per_class, confusion = results.get("per_class"), results.get("confusion")
    if isinstance(per_class, list):
        columns = ["label", "precision", "recall", "f1", "support"]
        rows = [[row[column] for column in columns] for row in per_class]
        tables.append(rows_table("by class", columns, rows))
    if isinstance(confusion, dict):
        tables.append(confusion_table(confusion["labels"], confusion["matrix"]))
    return tables


def protocol_table(title: str, document: Mapping[str, Any]) -> Table:
    """A row a setting: its figure over the seeds; the chosen one is marked.

    Args:
        title: Above the table.
        document: ``settings`` and ``chosen``, as ``runs.finetune_protocol.compare`` gives them.
    """
    columns = ["setting", "runs", "median", "std", "min", "max", "best run"]
    rows = []
    for at in document["settings"]:
        name = ", ".join(f"{key}={value}" for key, value in at["setting"].items()) or "as given"
        mark = " *" if at["setting"] == document["chosen"]["setting"] else ""
        figures = [at[column] for column in ("n", "median", "std", "min", "max")]
        rows.append([name + mark, *figures, at["best_run"]])
    return rows_table(title, columns, rows)


def _count(count: int, right: bool) -> Text:
    if right:
        return Text(f"{count:,}", style="bold")
    return Text(f"{count:,}", style="" if count else "dim")


def _table(title: str, *, show_header: bool = True) -> Table:
    return Table(
        # On one line, though the table be narrower: a run's folder is not to be broken up.
        title=Text(title, style="bold", no_wrap=True, overflow="ignore"),
        title_justify="left",
        box=SIMPLE_HEAD,
        show_header=show_header,
        show_edge=False,
        pad_edge=False,
    )
