"""Drawing of plots: as SVG inside a page, as PNG files with matplotlib, and as text.

Colors and fonts of SVG come from the style sheet of the page (``report.css``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plmctl.arrays import Floats
from plmctl.errors import PlmError
from plmctl.reporting.html import PALETTE, Html, element
from plmctl.reporting.plots import Interval, Line, Plot, plots_of
from plmctl.reporting.run_files import read_runs

# --- A plot as inline SVG ---


_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 250, 50, 16, 34, 26

_NARROW, _WIDE = 560, 1140

_LEGEND_ROW = 20

_MAX_DOTS = 80  # points of a dashed line that have a dot and tell their value


def draw_svg(plot: Plot) -> Html:
    """The plot with its title, legend and axes."""
    width = _WIDE if plot.wide else _NARROW
    legend, rows = _svg_legend(plot, width)
    top = _TOP + rows * _LEGEND_ROW
    frame = _SvgFrame(plot, width, top)
    height = top + _HEIGHT + _BOTTOM
    return element(
        "svg",
        element("title", f"{plot.title} ({plot.unit}) by {plot.along}"),
        *_svg_titles(plot),
        legend,
        *frame.grid(),
        *frame.marks(),
        *(part for line in plot.lines for part in frame.line(line)),
        class_="plot wide" if plot.wide else "plot",
        viewBox=f"0 0 {width} {height}",
        role="img",
    )


class _SvgFrame:
    """The area of the lines, in pixels from the upper left corner."""

    def __init__(self, plot: Plot, width: int, top: int) -> None:
        self._plot, self._top = plot, top
        self._width = width - _LEFT - _RIGHT
        y = np.concatenate([line.y for line in plot.lines])
        x = np.concatenate([line.x for line in plot.lines])
        self._y: Axis = log_axis(y) if plot.log else linear_axis(y, zero=plot.zero)
        self._x: Axis = linear_axis(x, zero=True, tight=True)

    def across(self, steps: Floats) -> Floats:
        return _LEFT + self._width * self._x.at(steps)

    def down(self, values: Floats) -> Floats:
        return self._top + _HEIGHT * (1 - self._y.at(values))

    def grid(self) -> list[Html]:
        """Lines at the ticks of the vertical axis; labels at those of both."""
        right, bottom = _LEFT + self._width, self._top + _HEIGHT
        parts = []
        for tick, y in zip(self._y.ticks, self.down(np.array(self._y.ticks)), strict=True):
            parts.append(_segment(_LEFT, y, right, y, "grid"))
            parts.append(_svg_text(_LEFT - 7, y + 4, self._y.label(tick), "tick end"))
        for tick, x in zip(self._x.ticks, self.across(np.array(self._x.ticks)), strict=True):
            parts.append(_segment(x, bottom, x, bottom + 4, "axis"))
            if x < right - 8 * len(self._plot.along) - 8:  # the name of the axis is there
                parts.append(_svg_text(x, bottom + 18, self._x.label(tick), "tick middle"))
        parts.append(_segment(_LEFT, bottom, right, bottom, "axis"))
        parts.append(_svg_text(right, bottom + 18, self._plot.along, "tick end"))
        return parts

    def marks(self) -> list[Html]:
        parts = []
        for step, label in self._plot.marks:
            x = float(self.across(np.array([step]))[0])
            parts.append(_segment(x, self._top, x, self._top + _HEIGHT, "mark"))
            parts.append(_svg_text(x - 5, self._top + 12, label, "tick end"))
        return parts

    def line(self, line: Line) -> list[Html]:
        x, y = self.across(line.x), self.down(line.y)
        style = f"line {line.style} c{line.color % PALETTE}"
        parts = [element("path", class_=style, d=svg_path(x, y))]
        if len(x) == 1 or (line.style == "dashed" and len(x) <= _MAX_DOTS):
            for step, value, cx, cy in zip(line.x, line.y, x, y, strict=True):
                if math.isfinite(cy):
                    at = f"at {self._plot.along} {step:,.0f}"
                    told = element("title", f"{line.name} {value:.4g} {at}".strip())
                    place = {"cx": f"{cx:.1f}", "cy": f"{cy:.1f}", "r": "2.6"}
                    parts.append(
                        element("circle", told, class_=f"c{line.color % PALETTE}", **place)
                    )
        return parts


def svg_path(x: Floats, y: Floats) -> str:
    """The commands of a path through points; a point that is nan makes a gap."""
    commands, drawing = [], False
    for across, down in zip(x, y, strict=True):
        if math.isfinite(down) and math.isfinite(across):
            commands.append(f"{'L' if drawing else 'M'}{across:.1f} {down:.1f}")
            drawing = True
        else:
            drawing = False
    return "".join(commands)


def _svg_legend(plot: Plot, width: int) -> tuple[Html, int]:
    """The names of the lines beside a piece of each, in as many rows as they need."""
    named = [line for line in plot.lines if line.name]
    parts: list[Html] = []
    x, row = float(_LEFT), 0
    for line in named:
        needed = 28 + text_width(line.name) + 18
        if x > _LEFT and x + needed > width:
            x, row = float(_LEFT), row + 1
        y = _TOP + row * _LEGEND_ROW
        style = f"line {line.style} c{line.color % PALETTE}"
        parts.append(element("path", class_=style, d=f"M{x:.0f} {y}h22"))
        if line.style == "dashed":
            dot = {"cx": f"{x + 11:.0f}", "cy": str(y), "r": "2.6"}
            parts.append(element("circle", class_=f"c{line.color % PALETTE}", **dot))
        parts.append(_svg_text(x + 28, y + 4, line.name, "key"))
        x += needed
    return element("g", *parts), row + 1 if named else 0


def text_width(text: str) -> float:
    """About the width of a text of 12 pixels; a Chinese character is as wide as it is high."""
    return sum(12.5 if ord(character) > 0x2E80 else 6.6 for character in text)


def _svg_titles(plot: Plot) -> list[Html]:
    return [
        element(
            "text",
            element("tspan", plot.title, class_="title"),
            element("tspan", plot.unit, dx="8"),
            x="0",
            y="14",
            class_="key",
        )
    ]


def _svg_text(x: float, y: float, text: str, style: str) -> Html:
    return element("text", text, x=f"{x:.1f}", y=f"{y:.1f}", class_=style)


def _segment(x1: float, y1: float, x2: float, y2: float, style: str) -> Html:
    ends = {
        name: f"{v:.1f}" for name, v in zip(("x1", "y1", "x2", "y2"), (x1, y1, x2, y2), strict=True)
    }
    return element("line", class_=style, **ends)


# --- Ranges and ticks of an axis: pure functions of its values ---


_MAX_TICKS = 5  # about as many as can be read on a plot of this size


@dataclass(frozen=True)
class Axis:
    """A range and where its ticks are.

    Attributes:
        low: The value at the beginning.
        high: The value at the end; more than ``low``.
        ticks: Between them, ascending.
        log: Logarithmic.
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def at(self, values: Floats) -> Floats:
        """Where values are on it, 0 at the beginning and 1 at the end; nan stays nan."""
        if self.log:
            values = np.log(np.where(values > 0, values, math.nan))
            low, high = math.log(self.low), math.log(self.high)
        else:
            low, high = self.low, self.high
        return (values - low) / (high - low)

    def label(self, tick: float) -> str:
        """A tick as text, in the manner of its neighbours: ``20k``, ``2e-4``, ``0.5``."""
        largest = max(abs(self.low), abs(self.high))
        if tick and largest < 0.01:
            mantissa, exponent = f"{tick:.2e}".split("e")
            return f"{float(mantissa):g}e{int(exponent)}"
        for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
            if largest >= 5 * unit or (letter != "k" and largest >= unit):
                return f"{tick / unit:g}{letter}" if tick else "0"
        return f"{tick:,.10g}"


def linear_axis(values: Floats, *, zero: bool = False, tight: bool = False) -> Axis:
    """A linear axis.

    Args:
        values: [N], with a finite one among them.
        zero: Begin at 0; for values that are not negative.
        tight: End where the values end, not at the next tick.
    """
    low, high = _finite_range(values)
    low = min(low, 0.0) if zero else low
    if high == low:
        low, high = (
            (0.0, 1.0) if zero and not high else (low - abs(low or 1), high + abs(high or 1))
        )
    step = nice_step((high - low) / _MAX_TICKS)
    if not tight:
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    # Twelve digits: 3 * 0.1 is to be 0.3 on a label.
    return Axis(low, high, tuple(float(f"{k * step:.12g}") for k in range(first, last + 1)))


def log_axis(values: Floats) -> Axis:
    """A logarithmic axis for positive values; what is not positive has no place on it."""
    low, high = _finite_range(values[values > 0])
    margin = (high / low) ** 0.04 if high > low else 1.5
    low, high = low / margin, high * margin
    for digits in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = (float(f"{digit * 10.0**decade:.12g}") for decade in decades for digit in digits)
        ticks = tuple(tick for tick in found if low <= tick <= high)
        if len(ticks) >= 3:
            return Axis(low, high, ticks, log=True)
    inside = linear_axis(np.array([low, high]), tight=True).ticks
    return Axis(low, high, inside, log=True)


def nice_step(size: float) -> float:
    """The 1, 2 or 5 times a power of ten that is next from above."""
    power = 10.0 ** math.floor(math.log10(size))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= size * (1 - 1e-9))


def _finite_range(values: Floats) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return float(finite.min()), float(finite.max())


# --- Differences with their intervals, beside zero: as text, and as SVG ---


_BAR_CHARACTERS = 21  # of a line of text


# Of the drawing, in pixels.
_BAR_ROW, _BAR_LEFT, _BAR_WIDTH, _BAR_RIGHT = 30, 440, 600, 100


def interval_bars(intervals: Sequence[Interval]) -> list[str]:
    """A line of text for each, all on one scale: ``-`` the interval, ``o`` the value, ``|`` zero.

    An interval that does not touch zero leaves the ``|`` alone.
    """
    return [_interval_bar(interval, *_interval_scale(intervals)) for interval in intervals]


def _interval_bar(interval: Interval, least: float, most: float) -> str:
    def cell(value: float) -> int:
        return round((value - least) / (most - least) * (_BAR_CHARACTERS - 1))

    line = [" "] * _BAR_CHARACTERS
    for place in range(cell(interval.low), cell(interval.high) + 1):
        line[place] = "-"
    line[cell(0.0)] = "|"
    line[cell(interval.value)] = "o"
    return "".join(line)


def draw_intervals(intervals: Sequence[Interval]) -> Html:
    """A row for each, all on one scale with a line at zero."""
    least, most = _interval_scale(intervals)
    height = _BAR_ROW * len(intervals) + 10

    def across(value: float) -> float:
        return _BAR_LEFT + _BAR_WIDTH * (value - least) / (most - least)

    parts = [_segment(across(0.0), 0, across(0.0), height, "axis")]
    for place, interval in enumerate(intervals):
        y = _BAR_ROW * (place + 0.5)
        told = element("title", f"{interval.low:+.4g} to {interval.high:+.4g}")
        dot = {"cx": f"{across(interval.value):.1f}", "cy": f"{y:.1f}", "r": "4"}
        path = f"M{across(interval.low):.1f} {y:.1f}L{across(interval.high):.1f} {y:.1f}"
        parts += [
            element("text", interval.name, x="0", y=f"{y + 4:.1f}", class_="tick"),
            element("path", class_="line solid c0", d=path),
            element("circle", told, class_="c0", **dot),
            element(
                "text",
                f"{interval.value:+.3f}",
                x=f"{_BAR_LEFT + _BAR_WIDTH + 10}",
                y=f"{y + 4:.1f}",
                class_="tick",
            ),
        ]
    return element(
        "svg",
        element("title", "differences with their 95 % intervals"),
        *parts,
        class_="plot wide",
        viewBox=f"0 0 {_BAR_LEFT + _BAR_WIDTH + _BAR_RIGHT} {height}",
        role="img",
    )


def _interval_scale(intervals: Sequence[Interval]) -> tuple[float, float]:
    """The scale: zero and all intervals are on it."""
    least = min(0.0, *(interval.low for interval in intervals))
    most = max(0.0, *(interval.high for interval in intervals))
    return (least, most) if most > least else (-1.0, 1.0)


# --- Plots as PNG files, for papers and slides, with matplotlib ---


# The page's colors on white paper.
_PNG_COLORS = ("#0072b2", "#d55e00", "#009e73", "#b5568f", "#c78800", "#3f9fd4", "#5c6570")


_PNG_FONTS = ["DejaVu Sans", "Noto Sans CJK SC", "Noto Sans SC", "PingFang SC", "Microsoft YaHei"]

_PNG_LINE_STYLES: dict[str, dict[str, Any]] = {
    "solid": {"linewidth": 1.8},
    "faint": {"linewidth": 0.7, "alpha": 0.3},
    "dashed": {"linewidth": 1.5, "linestyle": "--", "marker": "o", "markersize": 3.5},
}


def write_png_files(runs: Sequence[Path], folder: Path, *, dpi: int = 160) -> list[Path]:
    """Write every plot of a report to ``folder/<plot>.png``.

    Args:
        runs: Run folders; several are drawn together.
        folder: Made if it is not there.
        dpi: Pixels an inch.

    Returns:
        The files.

    Raises:
        ConfigError: A folder that is no run folder.
        PlmError: ``folder`` cannot be written.
    """
    found = read_runs(runs)
    kinds = list(dict.fromkeys(run.kind for run in found))
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for kind in kinds:
            prefix = f"{kind}-" if len(kinds) > 1 else ""
            for plot in plots_of([run for run in found if run.kind == kind]):
                written.append(folder / f"{prefix}{plot.key}.png")
                draw_png(plot, written[-1], dpi=dpi)
    except OSError as error:
        raise PlmError(f"{folder}: cannot be written: {error.strerror}") from error
    return written


def draw_png(plot: Plot, path: Path, *, dpi: int = 160) -> None:
    """Write one plot."""
    import matplotlib as mpl
    from matplotlib.figure import Figure  # not pyplot, which wants a display and keeps figures

    # Fonts that are not installed are passed over; without a Chinese one a name shows as boxes.
    with mpl.rc_context({"font.family": _installed_fonts(_PNG_FONTS), "font.size": 9}):
        figure = Figure(figsize=(9, 3.6) if plot.wide else (6, 3.6), layout="constrained")
        axes = figure.add_subplot()
        for line in plot.lines:
            _draw_png_line(axes, line)
        for step, label in plot.marks:
            axes.axvline(step, color="#777777", linewidth=0.8, linestyle=":")
            high = axes.get_xaxis_transform()  # steps across, a share of the height up
            axes.text(step, 0.98, f"{label} ", transform=high, ha="right", va="top")
        axes.set_title(plot.title, loc="left", fontweight="bold")
        axes.set_xlabel("step")
        axes.set_ylabel(plot.unit)
        axes.set_yscale("log" if plot.log else "linear")
        axes.set_xlim(left=0)
        if plot.zero:
            axes.set_ylim(bottom=0)
        axes.grid(axis="y", color="#dddddd", linewidth=0.7)
        axes.spines[["top", "right", "left"]].set_visible(False)
        if any(line.name for line in plot.lines):
            axes.legend(frameon=False)
        figure.savefig(path, dpi=dpi)


def _draw_png_line(axes: Any, line: Line) -> None:
    color = _PNG_COLORS[line.color % len(_PNG_COLORS)]
    axes.plot(line.x, line.y, color=color, label=line.name or None, **_PNG_LINE_STYLES[line.style])


def _installed_fonts(names: Sequence[str]) -> list[str]:
    from matplotlib import font_manager

    known = set(font_manager.get_font_names())
    return [name for name in names if name in known]
