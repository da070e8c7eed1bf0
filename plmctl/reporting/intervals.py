"""Differences with their intervals, drawn beside zero: as text, and as SVG."""

from collections.abc import Sequence
from dataclasses import dataclass

from plmctl.reporting.html import Html, element

_CELLS = 21  # of a line of text
# Of the drawing, in pixels.
_BAR_ROW, _BAR_LEFT, _BAR_WIDTH, _BAR_RIGHT = 30, 440, 600, 100


@dataclass(frozen=True)
class Interval:
    """A difference.

    Attributes:
        name: What of what.
        value: The difference itself.
        low: Where its interval begins.
        high: Where it ends.
    """

    name: str
    value: float
    low: float
    high: float


def bars(intervals: Sequence[Interval]) -> list[str]:
    """A line of text for each, all on one scale: ``-`` the interval, ``o`` the value, ``|`` zero.

    An interval that does not touch zero leaves the ``|`` alone.
    """
    return [_bar(interval, *_ends(intervals)) for interval in intervals]


def _bar(interval: Interval, least: float, most: float) -> str:
    def cell(value: float) -> int:
        return round((value - least) / (most - least) * (_CELLS - 1))

    line = [" "] * _CELLS
    for place in range(cell(interval.low), cell(interval.high) + 1):
        line[place] = "-"
    line[cell(0.0)] = "|"
    line[cell(interval.value)] = "o"
    return "".join(line)


def draw(intervals: Sequence[Interval]) -> Html:
    """A row for each, all on one scale with a line at zero."""
    least, most = _ends(intervals)
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


def _ends(intervals: Sequence[Interval]) -> tuple[float, float]:
    """The scale: zero and all intervals are on it."""
    least = min(0.0, *(interval.low for interval in intervals))
    most = max(0.0, *(interval.high for interval in intervals))
    return (least, most) if most > least else (-1.0, 1.0)


def _segment(x1: float, y1: float, x2: float, y2: float, kind: str) -> Html:
    ends = {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
    return element("line", class_=kind, **ends)
