"""Results and training examples on the terminal.

Cells are ``Text``, since a string would be read as rich's markup: a label ``[red]`` would vanish.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from plmctl.arrays import Floats
from plmctl.examples.inspection import Example, ExampleToken, Kind
from plmctl.formatting import format_value, printable
from plmctl.reporting.plots import Interval, Plot
from plmctl.reporting.run_files import (
    CLASS_COLUMNS,
    chosen_setting,
    class_rows,
    setting_columns,
    setting_rows,
    yardstick_list,
)

# --- Tables of results ---


def metrics_table(title: str, metrics: Mapping[str, object]) -> Table:
    """A name and its value per row."""
    table = _table(title, show_header=False)
    table.add_column()
    table.add_column(justify="right", style="bold", overflow="fold")  # a path is never cut
    for name, value in metrics.items():
        text = format_value(value)
        # Long text, such as a path or the definition of a metric, is read from the left.
        table.add_row(Text(printable(name)), Text(text, justify="left" if len(text) > 40 else None))
    return table


def rows_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table with a header; the first column is text, the others are numbers."""
    table = _table(title)
    for number, name in enumerate(columns):
        cells = [format_value(row[number]) for row in rows]
        table.add_column(
            Text(printable(name)),
            justify="left" if number == 0 else "right",
            overflow="fold",
            no_wrap=_are_names(cells) or _are_names([name]),
        )
    for row in rows:
        table.add_row(*(Text(format_value(cell)) for cell in row))
    return table


_LONGEST_NAME = 100  # characters; a longer one is folded over lines


def _are_names(texts: Sequence[str]) -> bool:
    """Whether a column has names of runs, which can be copied only if they stay on one line."""
    names = [text for text in texts if text]
    whole = all(len(text) <= _LONGEST_NAME and not re.search(r"\s", text) for text in names)
    return whole and any("/" in text or "=" in text or "-" in text[1:] for text in names)


def text_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table of text, wrapped at words in the last column; a header if ``columns`` has names."""
    table = _table(title, show_header=any(columns))
    last = len(columns) - 1
    for number, name in enumerate(columns):
        table.add_column(
            Text(printable(name)), overflow="fold", min_width=24 if number == last else None
        )
    for row in rows:
        table.add_row(*(Text(format_value(cell)) for cell in row))
    return table


def confusion_table(labels: Sequence[str], matrix: Sequence[Sequence[int]]) -> Table:
    """A confusion matrix; correct predictions are bold.

    Args:
        matrix: Counts: a row per true class, a column per predicted class.
    """
    table = _table("confusion: truth in rows, prediction in columns")
    table.add_column()
    for label in labels:
        table.add_column(Text(printable(label)), justify="right")
    for place, (label, counts) in enumerate(zip(labels, matrix, strict=True)):
        table.add_row(
            Text(printable(label)),
            *(
                Text(f"{count:,}", style="bold" if place == n else "" if count else "dim")
                for n, count in enumerate(counts)
            ),
        )
    return table


def classification_tables(title: str, results: Mapping[str, object]) -> list[Table]:
    """The metrics of a task, a row per class or paradigm, and the confusion matrix.

    Args:
        results: As ``metrics.classification`` returns them, with any further metrics.
    """
    own_tables = ("per_class", "confusion", "paradigms", "groups", "yardsticks")
    metrics = {k: v for k, v in results.items() if k not in own_tables and v is not None}
    counted = {
        f"{one['name']} ({one['seconds']:.0f} s)": f"{one['metric']} {format_value(one['value'])}"
        for one in yardstick_list(results)
    }
    tables = [metrics_table(title, {**with_errors(metrics), **counted})]
    for name in ("paradigms", "groups"):
        members = results.get(name)
        if isinstance(members, list) and members:
            columns = list(members[0])
            rows = [[row[column] for column in columns] for row in members]
            tables.append(rows_table(f"by {name.removesuffix('s')}", columns, rows))
    if by_class := class_rows(results):
        tables.append(rows_table("by class", CLASS_COLUMNS, by_class))
    confusion = results.get("confusion")
    if isinstance(confusion, dict):
        tables.append(confusion_table(confusion["labels"], confusion["matrix"]))
    return tables


def with_errors(metrics: Mapping[str, object]) -> dict[str, object]:
    """Metrics for reading: a standard error beside its metric, and without definitions.

    The results in ``eval/`` have all of them.
    """
    shown: dict[str, object] = {}
    for name, value in metrics.items():
        error = metrics.get(f"{name}_se")
        if name.endswith("definition") or (name.endswith("_se") and name[:-3] in metrics):
            continue
        has_error = isinstance(error, float) and math.isfinite(error)
        shown[name] = f"{format_value(value)} ± {format_value(error)}" if has_error else value
    return shown


def protocol_table(title: str, document: Mapping[str, Any]) -> Table:
    """A row per setting: its metric over the seeds; the best one is marked.

    Args:
        document: ``settings`` and ``chosen``, of eval/protocol.json.
    """
    rows = setting_rows(document)
    best = chosen_setting(document)
    if best is not None:
        rows[best][0] = f"{rows[best][0]} *"
    return rows_table(title, setting_columns(document), rows)


_BAR_CHARACTERS = 21


def interval_bars(intervals: Sequence[Interval]) -> list[str]:
    """A line of text per difference: ``-`` the interval, ``o`` the value, ``|`` zero.

    All are on one scale. An interval that does not touch zero leaves the ``|`` alone.
    """
    least = min(0.0, *(interval.low for interval in intervals))
    most = max(0.0, *(interval.high for interval in intervals))
    if most == least:
        least, most = -1.0, 1.0

    def column(value: float) -> int:
        return round((value - least) / (most - least) * (_BAR_CHARACTERS - 1))

    lines = []
    for interval in intervals:
        line = [" "] * _BAR_CHARACTERS
        low, high = column(interval.low), column(interval.high) + 1
        line[low:high] = "-" * (high - low)
        line[column(0.0)] = "|"
        line[column(interval.value)] = "o"
        lines.append("".join(line))
    return lines


_CURVE_WIDTH, _CURVE_HEIGHT = 64, 12  # characters
_CURVE_MARKS = "*o+x#%@"
_CURVE_STYLES = ("blue", "red", "green", "magenta", "yellow", "cyan", "white")


def curves_text(plot: Plot) -> Text:
    """Lines drawn with a mark of their own, in plain characters: they can be pasted anywhere.

    Faint lines, the values behind an average, are left out, and levels are named below. Where lines
    meet, the later one shows.
    """
    lines = [
        line
        for line in plot.lines
        if line.style not in ("faint", "level") and np.isfinite(line.y).any()
    ]
    cells: dict[tuple[int, int], int] = {}
    scaled: list[tuple[int, Floats, Floats]] = []
    for line in lines:
        known = np.isfinite(line.y) & ((line.y > 0) | (not plot.log))
        if known.any():
            y = line.y[known]
            scaled.append((line.color, line.x[known], np.log10(y) if plot.log else y))
    if not scaled:
        return Text()
    all_x = np.concatenate([x for _, x, _ in scaled])
    all_y = np.concatenate([y for _, _, y in scaled])
    low, high = 0.0 if plot.zero else float(all_y.min()), float(all_y.max())
    first, last = float(all_x.min()), float(all_x.max())
    for color, x, y in scaled:
        columns = np.round((x - first) / ((last - first) or 1) * (_CURVE_WIDTH - 1)).astype(int)
        for column in np.unique(columns):  # the mean of what is in one column
            value = float(y[columns == column].mean())
            row = round((high - value) / ((high - low) or 1) * (_CURVE_HEIGHT - 1))
            cells[row, int(column)] = color
    text = Text(f"{printable(plot.title)} ({printable(plot.unit)})\n", style="")
    text.stylize("bold")
    for row in range(_CURVE_HEIGHT):
        end = {0: high, _CURVE_HEIGHT - 1: low}.get(row)
        label = "" if end is None else format_value(10**end if plot.log else end)
        text.append(f"{label:>9} |", style="not bold dim")
        for column in range(1 + max((c for r, c in cells if r == row), default=-1)):
            here = cells.get((row, column))
            text.append(*(" ", "") if here is None else _curve_mark(here))
        text.append("\n")
    text.append(f"{'':9} +{'-' * _CURVE_WIDTH}\n", style="not bold dim")
    ends = f"{first:,.6g}{printable(plot.along):^{_CURVE_WIDTH - 16}}"
    text.append(f"{'':11}{ends}{f'{last:,.6g}':>{_CURVE_WIDTH - len(ends)}}\n", style="dim")
    for line in lines:
        if line.name:
            text.append("  ")
            text.append(*_curve_mark(line.color))
            text.append(f" {printable(line.name)}", style="not bold")
    name = ""
    for level in (line for line in plot.lines if line.style == "level"):
        name = level.name or name  # of several equal names only the first is in the legend
        text.append(f"  {level.y[0]:.3f} = {printable(name)}", style="not bold")
    return text


def _curve_mark(color: int) -> tuple[str, str]:
    number = color % len(_CURVE_MARKS)
    return _CURVE_MARKS[number], f"not bold {_CURVE_STYLES[number]}"


def _table(title: str, *, show_header: bool = True) -> Table:
    return Table(
        # On one line even if the table is narrower: the folder of a run can be copied.
        title=Text(printable(title), style="bold", no_wrap=True, overflow="ignore"),
        title_justify="left",
        box=SIMPLE_HEAD,
        show_header=show_header,
        show_edge=False,
        pad_edge=False,
    )


# --- Training examples and their statistics: in color, or with plain marks ---


TokenTexts = Callable[[Sequence[int]], list[str]]
"""Maps the ids of a row to the text of each token."""

# Color, and the marks around a token if the terminal has no colors.
_PIECE_STYLES: dict[Kind, tuple[str, str, str]] = {
    "text": ("", "", ""),
    "special": ("dim", "", ""),
    "masked": ("bold red", "", ""),
    "random": ("bold yellow", "~", "~"),
    "kept": ("bold green", "=", "="),
    "target": ("cyan", "", ""),
}

_PIECE_MEANINGS: dict[Kind, str] = {
    "masked": "masked{original}",
    "random": "replaced by a random token{original}",
    "kept": "predicted, but left as it is",
}


def example_text(example: Example, shown: TokenTexts, gap: str, *, colour: bool) -> Text:
    """One example.

    Args:
        example: The tokens with what the objective did to each.
        colour: Show what was done by colors; otherwise by marks.
    """
    text = Text()
    for name, row in example.rows.items():
        text.append(f"{name}: " if len(example.rows) > 1 else "", style="bold")
        words = shown([piece.id for piece in row])
        # Originals are decoded together: the text of a token may depend on the one before it.
        originals = shown([piece.id if piece.original is None else piece.original for piece in row])
        for number, (piece, word, original) in enumerate(zip(row, words, originals, strict=True)):
            text.append(gap if number else "")
            text.append_text(_styled_piece(piece, word, original, colour))
        text.append("\n")
    if example.note:
        text.append(printable(f"{example.note}\n"), style="bold")
    return text


def example_legend(examples: Sequence[Example], *, colour: bool) -> Text:
    """What the colors or marks that occur mean."""
    there = {piece.kind for example in examples for row in example.rows.values() for piece in row}
    text = Text()
    for kind, meaning in _PIECE_MEANINGS.items():
        if kind in there:
            style, before, after = _PIECE_STYLES[kind]
            sample = "[MASK]" if kind == "masked" else "token"
            plain = sample if colour else f"{before}{sample}{after}"
            text.append("   " if text.plain else "")
            text.append(plain, style=style if colour else "")
            text.append(f" {meaning.format(original=' {original}')}", style="dim" if colour else "")
    return text


def statistics_table(
    title: str, statistics: Mapping[str, float], expected: Mapping[str, float]
) -> Table:
    """A statistic per row: the measured and, if it is known, the expected value."""
    rows = [(name, value, expected.get(name, "")) for name, value in statistics.items()]
    return rows_table(title, ["", "seen", "expected"], rows)


def _styled_piece(piece: ExampleToken, word: str, original: str, colour: bool) -> Text:
    style, before, after = _PIECE_STYLES[piece.kind]
    text = Text()
    if colour:
        text.append(printable(word), style=style)
    else:
        word = printable(word)
        inner = word.strip()
        text.append(word.replace(inner, f"{before}{inner}{after}") if inner else word)
    if piece.original is not None:
        text.append(printable(f"{{{original.strip()}}}"), style="dim" if colour else "")
    return text
