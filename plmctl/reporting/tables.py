"""Results as tables for the terminal."""

from collections.abc import Mapping, Sequence

from rich.table import Table


def figures_table(title: str, figures: Mapping[str, object]) -> Table:
    """Names and figures, one a row."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in figures.items():
        table.add_row(name, shown(value))
    return table


def rows_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table with a header; the first column is text, the others figures."""
    table = Table(title=title, title_justify="left")
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*map(shown, row))
    return table


def shown(value: object) -> str:
    """A figure as people read it: thousands separated, four digits of a fraction."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4f}" if abs(value) < 100 else f"{value:,.1f}"


def classification_tables(title: str, results: Mapping[str, object]) -> list[Table]:
    """Key figures, a row a class, and the confusion matrix of a classifier.

    Args:
        title: Above the first table.
        results: As ``evaluation.metrics.classification`` gives them, with any further figures.
    """
    figures = {k: v for k, v in results.items() if k not in ("per_class", "confusion")}
    tables = [figures_table(title, figures)]
    per_class, confusion = results.get("per_class"), results.get("confusion")
    if isinstance(per_class, list):
        columns = ["label", "precision", "recall", "f1", "support"]
        rows = [[row[column] for column in columns] for row in per_class]
        tables.append(rows_table("by class", columns, rows))
    if isinstance(confusion, dict):
        labels = confusion["labels"]
        rows = [[label, *row] for label, row in zip(labels, confusion["matrix"], strict=True)]
        tables.append(rows_table("confusion (rows: truth)", ["", *labels], rows))
    return tables
