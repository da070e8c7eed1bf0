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
