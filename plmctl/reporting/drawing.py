"""Plots drawn by matplotlib: embedded in a page as SVG, or written as SVG, PNG and PDF files.

A function per kind of plot returns a ``Figure``; ``embedded_svg`` and ``write_plots`` save it.
matplotlib is imported when the first plot is drawn.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plmctl.files import writing
from plmctl.reporting.html import PALETTE, Html, element, join
from plmctl.reporting.plots import Interval, LawPlot, Plot, plots_of
from plmctl.reporting.run_files import each_run, read_runs

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Lengths in points; a point is a pixel of an embedded plot.
_HEIGHT, _LEFT, _RIGHT, _TITLE, _BOTTOM = 240, 66, 18, 30, 40  # of the axes, and around them
_NARROW, _WIDE = 560, 1140
_LAW_HEIGHT = 320
_LEGEND_ROW = 20
_MAX_MARKERS = 80  # a dashed line of more points has no markers
_INTERVAL_ROW, _INTERVAL_NAMES, _INTERVAL_VALUES = 30, 440, 80

# Okabe and Ito's colors, which color-blind readers can tell apart, a little darker for thin lines.
# They are those of report.css; an embedded plot takes its colors from there, for light and dark.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#b5568f", "#c78800", "#3f9fd4", "#5c6570")
_INK, _SOFT, _GRID = "#1b1f24", "#57606a", "#dfe3e8"
_VARIABLES = {_INK: "--ink", _SOFT: "--soft", _GRID: "--line"} | {
    color: f"--c{number}" for number, color in enumerate(_COLORS)
}

# The first font has Latin letters, the others Chinese characters; those not installed are left out.
_FONTS = (
    "DejaVu Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK TC",
    "Noto Sans CJK JP",  # as matplotlib names the collection of all of them
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "SimHei",
)
_LINE_STYLES: dict[str, dict[str, Any]] = {
    "solid": {"linewidth": 2},
    "faint": {"linewidth": 1, "alpha": 0.28},
    "dashed": {"linewidth": 1.8, "linestyle": (0, (3.5, 2.2))},
    "level": {"linewidth": 1.4, "linestyle": (0, (1, 1.6))},
}

FORMATS = ("svg", "png", "pdf")


# --- Kinds of plots ---


def draw_curves(plot: Plot, *, wide: bool = False) -> Figure:
    """Lines over steps, with title, legend and labelled axes."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
    from matplotlib.transforms import blended_transform_factory

    width = _WIDE if wide else _NARROW
    names = [line.name for line in plot.lines if line.name]
    names += [plot.dashed] if plot.dashed else []
    columns = _legend_columns(names, width - _LEFT)
    rows = -(-len(names) // columns)
    with _style():
        figure, axes = _new_figure(width, _HEIGHT, top=_TITLE + rows * _LEGEND_ROW)
        for line in plot.lines:
            marked = len(line.x) == 1 or (line.style == "dashed" and len(line.x) <= _MAX_MARKERS)
            axes.plot(
                line.x,
                line.y,
                color=_SOFT if line.style == "level" else _COLORS[line.color % PALETTE],
                label=line.name or "_",
                marker="o" if marked else None,
                markersize=5,
                clip_on=False,  # all is inside; half of a marker at the edge is not to be cut off
                **_LINE_STYLES[line.style],
                **({"dashes": (1, 1.6, 4, 1.6)} if line.style == "level" and line.color else {}),
            )
        x = np.concatenate([line.x for line in plot.lines])
        y = np.concatenate([line.y[np.isfinite(line.y)] for line in plot.lines])
        axes.set_xlim(0, x.max() or 1)
        axes.set_xlabel(plot.along)
        axes.xaxis.set_major_locator(MaxNLocator(10 if wide else 6, steps=[1, 2, 5, 10]))
        beside = blended_transform_factory(figure.transFigure, axes.transAxes)
        axes.set_ylabel(f"{plot.unit} (log scale)" if plot.log else plot.unit)
        axes.yaxis.set_label_coords(16 / width, 0.5, transform=beside)
        if plot.log:
            axes.set_yscale("log", nonpositive="mask")
            y = y[y > 0]
            ratio = y.max() / y.min()
            digits = (1,) if ratio > 1000 else (1, 2, 5) if ratio > 10 else (1, 1.5, 2, 3, 4, 6, 8)
            axes.yaxis.set_major_locator(LogLocator(subs=digits))
            axes.yaxis.set_minor_locator(NullLocator())
            margin = max(ratio, 1.1) ** 0.05
            axes.set_ylim(y.min() / margin, y.max() * margin)
        else:
            axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
            if plot.zero:
                axes.set_ylim(0, 1.06 * y.max() or 1)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(_tick_label(axis)))
        for step, label in plot.marks:
            axes.axvline(step, color=_SOFT, linewidth=1, linestyle=(0, (2, 3)))
            right = step > x.max() / 2  # the label stays inside the axes
            axes.annotate(
                label,
                (step, 1),
                xycoords=axes.get_xaxis_transform(),
                xytext=(-5 if right else 5, -4),
                textcoords="offset points",
                ha="right" if right else "left",
                va="top",
            )
        handles = [line for line in axes.get_lines() if line.get_label() in names]
        if plot.dashed:
            style = _LINE_STYLES["dashed"] | {"color": _SOFT, "marker": "o", "markersize": 5}
            handles.append(Line2D([], [], label=plot.dashed, **style))
        if handles:
            figure.legend(
                handles=handles,
                loc="upper left",
                bbox_to_anchor=(_LEFT / width, 1 - (_TITLE - 8) / _points(figure)[1]),
                ncols=columns,
                frameon=False,
                borderpad=0,
                borderaxespad=0,
                columnspacing=1.5,
                handlelength=2,
            )
        figure.text(0, 1, plot.title, fontsize=15, fontweight="bold", color=_INK, va="top")
    return figure


def draw_law(plot: LawPlot) -> Figure:
    """Points, the law through them with its band, and predictions with their intervals."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    shown = [*plot.points, *(curve for curve in plot.curves if curve.name)]
    names = [line.name for line in shown] + (["prediction"] if plot.predictions else [])
    columns = _legend_columns(names, _NARROW - _LEFT)
    rows = -(-len(names) // columns)
    with _style():
        figure, axes = _new_figure(_NARROW, _LAW_HEIGHT, top=_TITLE + rows * _LEGEND_ROW)
        if plot.band is not None:
            axes.fill_between(*plot.band, color=_SOFT, alpha=0.15, linewidth=0)
        for curve in plot.curves:
            color = _SOFT if curve.name else _COLORS[curve.color % PALETTE]
            style = _LINE_STYLES[curve.style]
            axes.plot(curve.x, curve.y, color=color, label=curve.name or "_", **style)
        for line in plot.points:
            color = _COLORS[line.color % PALETTE]
            axes.plot(line.x, line.y, "o", color=color, markersize=6, label=line.name)
        for number, one in enumerate(plot.predictions):
            if one.low is not None and one.high is not None:
                axes.plot([one.x, one.x], [one.low, one.high], color=_INK, linewidth=1.4)
            label = "_" if number else "prediction"
            axes.plot([one.x], [one.value], "D", color=_INK, markersize=5.5, label=label)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3), numticks=12))
        axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(_law_tick))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:.4g}"))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(f"{plot.along} (log scale)")
        axes.set_ylabel(f"{plot.unit} (log scale)")
        figure.legend(
            loc="upper left",
            bbox_to_anchor=(_LEFT / _NARROW, 1 - (_TITLE - 8) / _points(figure)[1]),
            ncols=columns,
            frameon=False,
            borderpad=0,
            borderaxespad=0,
            columnspacing=1.5,
            handlelength=2,
        )
        figure.text(0, 1, plot.title, fontsize=15, fontweight="bold", color=_INK, va="top")
    return figure


def _law_tick(tick: float, _: int | None = None) -> str:
    """``300k``, ``3M``, ``1B``; ``3e10`` beyond."""
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if unit <= tick < 1e10:
            return f"{tick / unit:.4g}{letter}"
    mantissa, exponent = f"{tick:.1e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def draw_intervals(intervals: Sequence[Interval]) -> Figure:
    """A row per difference with its interval, all on one scale with a line at zero."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    rows = range(len(intervals))
    with _style():
        figure, axes = _new_figure(
            _WIDE,
            _INTERVAL_ROW * len(intervals),
            top=8,
            left=_INTERVAL_NAMES,
            right=_INTERVAL_VALUES,
        )
        axes.grid(visible=False, axis="y")
        axes.grid(axis="x", color=_GRID, linewidth=1)
        axes.axvline(0, color=_SOFT, linewidth=1)
        for row, interval in zip(rows, intervals, strict=True):
            ends = [interval.low, interval.high]
            axes.plot(ends, [row, row], color=_COLORS[0], linewidth=2)
            axes.plot([interval.value], [row], color=_COLORS[0], marker="o", markersize=7)
            beside = axes.get_yaxis_transform()
            axes.text(1.01, row, f"{interval.value:+.3f}", transform=beside, va="center")
        axes.set_ylim(len(intervals) - 0.5, -0.5)
        axes.set_yticks(rows, [interval.name for interval in intervals], ha="left")
        axes.tick_params(axis="y", pad=_INTERVAL_NAMES)
        axes.set_xlabel("difference")
        axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(_tick_label(axes.xaxis)))
    return figure


def _new_figure(
    width: int, height: int, *, top: int, left: int = _LEFT, right: int = _RIGHT
) -> tuple[Figure, Any]:
    """A figure with axes of so many points, and so many points around them.

    The margins are fixed: plots below each other are aligned, and nothing has to be drawn twice to
    be measured.
    """
    from matplotlib.figure import Figure  # not pyplot, which keeps figures and chooses a backend

    total = top + height + _BOTTOM
    figure = Figure(figsize=(width / 72, total / 72), dpi=72)
    axes = figure.add_axes(
        (left / width, _BOTTOM / total, (width - left - right) / width, height / total)
    )
    axes.grid(axis="y", color=_GRID, linewidth=1)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_SOFT)
    axes.tick_params(length=0)
    return figure, axes


def _legend_columns(names: Sequence[str], width: int) -> int:
    """Columns of a legend: as many as fit."""
    if not names:
        return 1
    # A Chinese character is measured by the width of a box if no font has it, so it gets no
    # neighbor: a browser that has a font shows the name wider.
    if any(ord(character) > 0x2E80 for name in names for character in name):
        return 1
    longest = max(map(len, names))
    return max(1, min(len(names), int(width / (54 + 7.6 * longest))))


def _tick_label(axis: Axis) -> Any:
    """Labels of one axis have one unit, except on a logarithmic one: ``20k``, ``2e-4``, ``0.5``."""

    def label(tick: float, _: int | None = None) -> str:
        largest = (
            abs(tick) if axis.get_scale() == "log" else max(map(abs, axis.get_view_interval()))
        )
        if abs(tick) < 1e-9 * largest:
            return "0"
        if largest < 0.01:
            mantissa, exponent = f"{tick:.2e}".split("e")
            return f"{float(mantissa):g}e{int(exponent)}"
        for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
            if largest >= 5 * unit or (letter != "k" and largest >= unit):
                return f"{tick / unit:.6g}{letter}"
        return f"{float(f'{tick:.9g}'):,.10g}"

    return label


def _points(figure: Figure) -> tuple[float, float]:
    width, height = figure.get_size_inches()
    return 72 * width, 72 * height


@contextmanager
def _style() -> Iterator[None]:
    """Matplotlib with our fonts and deterministic files, while it is open."""
    import matplotlib as mpl
    from matplotlib import font_manager

    installed = set(font_manager.get_font_names())
    settings: dict[Any, Any] = {
        "font.family": [name for name in _FONTS if name in installed],
        "font.size": 12,
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), _SOFT),
        "axes.unicode_minus": False,
        "text.parse_math": False,  # a run's name may have a $
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": "plmctl",  # else ids are random
        "pdf.fonttype": 42,
    }
    with mpl.rc_context(settings):
        yield


# --- Saving ---


def embedded_svg(figure: Figure, title: str, *, wide: bool = False) -> Html:
    """A figure as an element of a page, in the colors and fonts of its style sheet.

    Args:
        title: What is shown, for screen readers and as a tooltip.
        wide: Over the whole width of the page.
    """
    out = io.StringIO()
    figure.patch.set_visible(False)
    figure.axes[0].patch.set_visible(False)
    # The reader's machine chooses the font, so it is no matter which characters are in ours.
    with _style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    body = text[text.index("<g id=") : text.rindex("</svg>")]
    body = re.sub(r"<!--.*?-->\s*", "", body, flags=re.DOTALL)
    body = re.sub(r"<defs>\s*<style.*?</defs>\s*", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*"', "<g", body)  # they would be those of every plot of the page
    body = body.replace("xlink:href", "href")
    body = re.sub(r' (?:d|x|y|transform|width|height)="[^"]*"', _rounded, body)
    body = re.sub(r' transform="rotate\(-0 [^"]*"', "", body)
    for color, variable in _VARIABLES.items():
        body = body.replace(color, f"var({variable})")
    body = re.sub(r"\s*\n\s*", "\n", body)
    width, height = _points(figure)
    return element(
        "svg",
        join(element("title", title), Html(body)),
        class_="plot wide" if wide else "plot",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        role="img",
    )


def _rounded(attribute: re.Match[str]) -> str:
    """Positions to a tenth of a point: nobody sees more, and the page is half as large."""
    return re.sub(r"-?\d+\.\d\d+", lambda number: f"{float(number[0]):.1f}", attribute[0])


def embedded_curves(plot: Plot) -> Html:
    """``draw_curves`` as an element of a page."""
    title = f"{plot.title} ({plot.unit}) by {plot.along}"
    return embedded_svg(draw_curves(plot, wide=plot.wide), title, wide=plot.wide)


def embedded_law(plot: LawPlot) -> Html:
    """``draw_law`` as an element of a page."""
    return embedded_svg(draw_law(plot), f"{plot.title} ({plot.unit}) by {plot.along}")


def write_plots(
    runs: Sequence[Path], folder: Path, formats: Sequence[str] = ("svg", "png"), *, dpi: int = 160
) -> tuple[list[Path], str]:
    """Write every plot of the report to ``folder/<plot>.<format>``.

    Args:
        runs: Run folders; several runs of one kind are drawn together.
        folder: It is made if it is missing.
        formats: Some of ``FORMATS``.
        dpi: Pixels per inch of a PNG file.

    Returns:
        The files, and the characters that no installed font has: PNG and PDF files show them as
        boxes.

    Raises:
        ConfigError: A folder is no run folder.
        PlmError: ``folder`` cannot be written.
    """
    all_runs = [run for each in read_runs(runs) for run in each_run(each)]
    kinds = list(dict.fromkeys(run.kind for run in all_runs))
    written, missing = [], ""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for kind in kinds:
            prefix = f"{kind}-" if len(kinds) > 1 else ""
            for plot in plots_of([run for run in all_runs if run.kind == kind]):
                figure = draw_curves(plot)
                for suffix in formats:
                    written.append(folder / f"{prefix}{plot.key}.{suffix}")
                    missing += _save(figure, written[-1], dpi)
    return written, "".join(dict.fromkeys(missing))


def _save(figure: Figure, path: Path, dpi: int) -> str:
    """Write a figure; the characters that are missing from all fonts."""
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix, {})
    with _style(), warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message="Glyph .* missing from font")
        figure.savefig(path, dpi=dpi, bbox_inches="tight", pad_inches=0.15, metadata=metadata)
    if path.suffix == ".svg":  # its text is text: the reader's machine chooses the font
        fonts = "'DejaVu Sans', Arial, sans-serif"
        path.write_text(re.sub(r"'DejaVu Sans'[^;\"]*", fonts, path.read_text("utf-8")), "utf-8")
        return ""
    codes = [re.match(r"Glyph (\d+) ", str(warning.message)) for warning in caught]
    return "".join(chr(int(code[1])) for code in codes if code)
