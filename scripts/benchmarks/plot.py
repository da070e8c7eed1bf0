"""The rounds as a picture."""

from importlib.resources import files
from pathlib import Path
from typing import Any

from benchmarks.duel import SPEEDS


def write(result: dict[str, Any], path: Path) -> None:
    """Tokens or megabytes a second of both sides in every round."""
    import numpy as np

    from plmctl.reporting.plots import Curve, Plot

    lines = tuple(
        Curve(side, np.arange(1.0, len(speeds) + 1), np.array(speeds), color, "dashed")
        for color, (side, speeds) in enumerate(result["by_round"].items())
    )
    unit = next(SPEEDS[name] for name in SPEEDS if name in result)
    plot = Plot("rounds", result["title"], unit, lines, zero=True, along="round")
    path.write_text(standalone(plot), encoding="utf-8")


def standalone(plot: Any) -> str:
    """A plot as an SVG file's text, with the report's style sheet inside."""
    from plmctl.reporting.drawing import embedded_curves
    from plmctl.reporting.html import Html, element

    style = Html(files("plmctl.reporting").joinpath("report.css").read_text(encoding="utf-8"))
    head = '<svg xmlns="http://www.w3.org/2000/svg" '
    drawn = embedded_curves(plot).replace("<svg ", head, 1)
    inside = drawn.index(">") + 1
    return drawn[:inside] + element("style", style) + drawn[inside:]
