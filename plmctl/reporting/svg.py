"""A plot as inline SVG: its colors and fonts come from the page's style sheet."""

import math

import numpy as np

from plmctl.arrays import Floats
from plmctl.reporting.axis import Axis, linear, logarithmic
from plmctl.reporting.html import Html, element
from plmctl.reporting.plots import Line, Plot

PALETTE = 7  # colors in the style sheet

_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 250, 50, 16, 34, 26
_NARROW, _WIDE = 560, 1140
_LEGEND_ROW = 20
_DOTS = 80  # points of a dashed line that have a dot and tell their value


def draw(plot: Plot) -> Html:
    """The plot with its title, legend and axes."""
    width = _WIDE if plot.wide else _NARROW
    legend, rows = _legend(plot, width)
    top = _TOP + rows * _LEGEND_ROW
    frame = _Frame(plot, width, top)
    height = top + _HEIGHT + _BOTTOM
    return element(
        "svg",
        element("title", f"{plot.title} ({plot.unit}) by {plot.along}"),
        *_titles(plot),
        legend,
        *frame.grid(),
        *frame.marks(),
        *(part for line in plot.lines for part in frame.line(line)),
        class_="plot wide" if plot.wide else "plot",
        viewBox=f"0 0 {width} {height}",
        role="img",
    )


class _Frame:
    """The area of the lines, in pixels from the upper left corner."""

    def __init__(self, plot: Plot, width: int, top: int) -> None:
        self._plot, self._top = plot, top
        self._width = width - _LEFT - _RIGHT
        y = np.concatenate([line.y for line in plot.lines])
        x = np.concatenate([line.x for line in plot.lines])
        self._y: Axis = logarithmic(y) if plot.log else linear(y, zero=plot.zero)
        self._x: Axis = linear(x, zero=True, tight=True)

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
            parts.append(_text(_LEFT - 7, y + 4, self._y.label(tick), "tick end"))
        for tick, x in zip(self._x.ticks, self.across(np.array(self._x.ticks)), strict=True):
            parts.append(_segment(x, bottom, x, bottom + 4, "axis"))
            if x < right - 8 * len(self._plot.along) - 8:  # the name of the axis is there
                parts.append(_text(x, bottom + 18, self._x.label(tick), "tick middle"))
        parts.append(_segment(_LEFT, bottom, right, bottom, "axis"))
        parts.append(_text(right, bottom + 18, self._plot.along, "tick end"))
        return parts

    def marks(self) -> list[Html]:
        parts = []
        for step, label in self._plot.marks:
            x = float(self.across(np.array([step]))[0])
            parts.append(_segment(x, self._top, x, self._top + _HEIGHT, "mark"))
            parts.append(_text(x - 5, self._top + 12, label, "tick end"))
        return parts

    def line(self, line: Line) -> list[Html]:
        x, y = self.across(line.x), self.down(line.y)
        style = f"line {line.style} c{line.color % PALETTE}"
        parts = [element("path", class_=style, d=path(x, y))]
        if len(x) == 1 or (line.style == "dashed" and len(x) <= _DOTS):
            for step, value, cx, cy in zip(line.x, line.y, x, y, strict=True):
                if math.isfinite(cy):
                    at = f"at {self._plot.along} {step:,.0f}"
                    told = element("title", f"{line.name} {value:.4g} {at}".strip())
                    place = {"cx": f"{cx:.1f}", "cy": f"{cy:.1f}", "r": "2.6"}
                    parts.append(
                        element("circle", told, class_=f"c{line.color % PALETTE}", **place)
                    )
        return parts


def path(x: Floats, y: Floats) -> str:
    """The commands of a path through points; a point that is nan makes a gap."""
    commands, drawing = [], False
    for across, down in zip(x, y, strict=True):
        if math.isfinite(down) and math.isfinite(across):
            commands.append(f"{'L' if drawing else 'M'}{across:.1f} {down:.1f}")
            drawing = True
        else:
            drawing = False
    return "".join(commands)


def _legend(plot: Plot, width: int) -> tuple[Html, int]:
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
        parts.append(_text(x + 28, y + 4, line.name, "key"))
        x += needed
    return element("g", *parts), row + 1 if named else 0


def text_width(text: str) -> float:
    """About the width of a text of 12 pixels; a Chinese character is as wide as it is high."""
    return sum(12.5 if ord(character) > 0x2E80 else 6.6 for character in text)


def _titles(plot: Plot) -> list[Html]:
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


def _text(x: float, y: float, text: str, style: str) -> Html:
    return element("text", text, x=f"{x:.1f}", y=f"{y:.1f}", class_=style)


def _segment(x1: float, y1: float, x2: float, y2: float, style: str) -> Html:
    ends = {
        name: f"{v:.1f}" for name, v in zip(("x1", "y1", "x2", "y2"), (x1, y1, x2, y2), strict=True)
    }
    return element("line", class_=style, **ends)
