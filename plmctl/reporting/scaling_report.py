"""A ladder of sizes and its law: tables for the terminal, and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from plmctl.formatting import format_duration, format_value
from plmctl.reporting.drawing import embedded_law
from plmctl.reporting.html import Html, element, join, page, panel, table
from plmctl.reporting.plots import Curve, LawPlot, Predicted
from plmctl.reporting.tables import metrics_table, rows_table

Document = Mapping[str, Any]
"""The document of ``scaling.json``."""

_RUNGS = ("rung", "parameters", "tokens", "FLOPs", "held-out loss", "fitted", "residual")
_HELD_OUT = ("size left out", "its longest run", "predicted loss", "measured", "error")
_PREDICTIONS = ("compute", "size", "parameters", "tokens", "steps", "loss", "95 %", "time here")


# --- Rows of the tables ---


def ladder_table(rungs: Sequence[Mapping[str, Any]]) -> Table:
    """The runs of a ladder, before they are trained."""
    columns = ("rung", "parameters", "tokens", "per parameter", "steps", "FLOPs")
    rows = [
        [
            row["rung"],
            _short(row["parameters"]),
            _short(row["tokens"]),
            f"{row['tokens'] / row['parameters']:.3g}",
            row["steps"],
            f"{row['flops']:.3g}",
        ]
        for row in rungs
    ]
    return rows_table(f"{len(rungs)} runs", columns, rows)


def scaling_tables(document: Document) -> list[Table]:
    """Runs, law, held-out sizes, predictions and warnings."""
    tables = [
        rows_table(f"{document['loss']} of {document['family']}", _RUNGS, _rung_rows(document)),
        metrics_table("law (95 % interval)", dict(_law_rows(document))),
    ]
    if document["held_out_sizes"]:
        title = "each size predicted by the others"
        tables.append(rows_table(title, _HELD_OUT, _held_out_rows(document)))
    tables.append(rows_table("next sizes", _PREDICTIONS, _prediction_rows(document)))
    if document["warnings"]:
        rows = [[warning] for warning in document["warnings"]]
        tables.append(rows_table("do not trust this too much", [""], rows))
    return tables


def _rung_rows(document: Document) -> list[list[object]]:
    return [
        [
            row["rung"],
            _short(row["parameters"]),
            _short(row["tokens"]),
            f"{row['flops']:.3g}",
            f"{row['loss']:.4f}",
            f"{row['fitted']:.4f}",
            f"{row['residual']:+.4f}",
        ]
        for row in document["rungs"]
    ]


def _law_rows(document: Document) -> list[tuple[str, str]]:
    rows = []
    if document["law"] is not None:
        rows.append(("L(N, D)", "E + A / N^alpha + B / D^beta"))
        rows += [(name, _interval(value)) for name, value in document["law"].items()]
        rows.append(("best N", f"C^a, a = {_interval(document['best_size_exponent'])}"))
    rows.append(("L(C), lowest losses", "K / C^gamma"))
    return rows + [(name, _interval(value)) for name, value in document["power_law"].items()]


def _short(count: int | None) -> str:
    """``187k``, ``2.72M``: three digits."""
    if count is None:
        return "-"
    for unit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= unit:
            return f"{count / unit:.3g}{letter}"
    return str(count)


def _interval(value: Mapping[str, float | None]) -> str:
    shown = f"{value['value']:.3g}"
    if value["low"] is None:
        return shown
    return f"{shown} ({value['low']:.3g} to {value['high']:.3g})"


def _held_out_rows(document: Document) -> list[list[object]]:
    return [
        [
            one["size"],
            one["rung"],
            f"{one['predicted']:.4f}",
            f"{one['loss']:.4f}",
            f"{one['error']:+.1%}",
        ]
        for one in document["held_out_sizes"]
    ]


def _prediction_rows(document: Document) -> list[list[object]]:
    return [
        [
            f"{one['factor']}x, {one['flops']:.2g}",
            one["size"],
            _short(one["parameters"]),
            _short(one["tokens"]),
            one["steps"],
            f"{one['loss']:.3f}",
            "-" if one["low"] is None else f"{one['low']:.3f} to {one['high']:.3f}",
            format_duration(one["seconds"]),
        ]
        for one in document["predictions"]
    ]


# --- The page ---


def scaling_page(document: Document) -> str:
    """The page as HTML."""
    laws = "L(N, D)" if document["law"] is not None else "L(C)"
    warnings = [element("li", warning) for warning in document["warnings"]]
    plots = [
        element("figure", element("div", embedded_law(plot), class_="scroll"), class_="panel")
        for plot in (_by_parameters(document), _by_compute(document))
    ]
    body = join(
        element("p", "Scaling", class_="eyebrow"),
        element("h1", f"{document['family']} · {document['objective']}"),
        element(
            "p",
            f"{len(document['rungs'])} runs, fitted by {laws}. N counts all parameters, embeddings "
            "included; D counts training tokens; bands and bars are 95 % intervals.",
            class_="soft",
        ),
        element("ul", *warnings, class_="notes") if warnings else "",
        element("div", *plots, class_="plots", style="margin-top:14px"),
        _section("Next sizes", _PREDICTIONS, _prediction_rows(document)),
        _section("Runs", _RUNGS, _rung_rows(document)),
        element("h2", "Law (95 % interval)"),
        panel(table((), [list(row) for row in _law_rows(document)], numbers=False)),
        _section("Each size predicted by the others", _HELD_OUT, _held_out_rows(document)),
    )
    footer = element("footer", "Written by plmctl scaling. Losses are in nats.")
    return page(f"scaling of {document['family']} · plmctl", element("main", body, footer))


def _section(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Html:
    if not rows:
        return Html()
    shown = [[format_value(cell) for cell in row] for row in rows]
    return join(element("h2", title), panel(table(columns, shown)))


def _by_parameters(document: Document) -> LawPlot:
    points, curves = _lines(document["plots"]["by_parameters"])
    predictions = tuple(
        Predicted(one["parameters"], one["loss"], one["low"], one["high"])
        for one in document["predictions"]
        if one["parameters"] is not None
    )
    return LawPlot(
        "Loss by size", "nats per target", "parameters", points, curves, None, predictions
    )


def _by_compute(document: Document) -> LawPlot:
    data = document["plots"]
    points, curves = _lines(data["by_compute"])
    x = np.array(data["frontier"]["x"])
    best = Curve("lowest loss", x, np.array(data["frontier"]["y"]), 0)
    power = Curve("K / C^gamma", x, np.array(data["power_law"]), 0, "dashed")
    more = (best, power) if document["law"] is not None else (power,)
    band = None
    if data["frontier"]["low"] is not None:
        band = x, np.array(data["frontier"]["low"]), np.array(data["frontier"]["high"])
    predictions = tuple(
        Predicted(one["flops"], one["loss"], one["low"], one["high"])
        for one in document["predictions"]
    )
    return LawPlot(
        "Loss by compute", "nats per target", "FLOPs", points, (*curves, *more), band, predictions
    )


def _lines(series: Sequence[Mapping[str, Any]]) -> tuple[tuple[Curve, ...], tuple[Curve, ...]]:
    """Points, and the curves that the law gives for them."""
    points = tuple(
        Curve(one["name"], np.array(one["x"]), np.array(one["y"]), place)
        for place, one in enumerate(series)
    )
    curves = tuple(
        Curve("", np.array(one["curve_x"]), np.array(one["curve_y"]), place)
        for place, one in enumerate(series)
        if "curve_x" in one
    )
    return points, curves
