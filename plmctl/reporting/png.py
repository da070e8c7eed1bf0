"""Plots as PNG files, for papers and slides, drawn with matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plmctl.errors import PlmError
from plmctl.reporting.plots import Line, Plot, plots_of
from plmctl.reporting.reader import read_runs

# The page's colors on white paper.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#b5568f", "#c78800", "#3f9fd4", "#5c6570")
_FONTS = ["DejaVu Sans", "Noto Sans CJK SC", "Noto Sans SC", "PingFang SC", "Microsoft YaHei"]
_STYLES: dict[str, dict[str, Any]] = {
    "solid": {"linewidth": 1.8},
    "faint": {"linewidth": 0.7, "alpha": 0.3},
    "dashed": {"linewidth": 1.5, "linestyle": "--", "marker": "o", "markersize": 3.5},
}


def write_plots(runs: Sequence[Path], folder: Path, *, dpi: int = 160) -> list[Path]:
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
                draw(plot, written[-1], dpi=dpi)
    except OSError as error:
        raise PlmError(f"{folder}: cannot be written: {error.strerror}") from error
    return written


def draw(plot: Plot, path: Path, *, dpi: int = 160) -> None:
    """Write one plot."""
    import matplotlib as mpl
    from matplotlib.figure import Figure  # not pyplot, which wants a display and keeps figures

    # Fonts that are not installed are passed over; without a Chinese one a name shows as boxes.
    with mpl.rc_context({"font.family": _installed(_FONTS), "font.size": 9}):
        figure = Figure(figsize=(9, 3.6) if plot.wide else (6, 3.6), layout="constrained")
        axes = figure.add_subplot()
        for line in plot.lines:
            _draw_line(axes, line)
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


def _draw_line(axes: Any, line: Line) -> None:
    color = _COLORS[line.color % len(_COLORS)]
    axes.plot(line.x, line.y, color=color, label=line.name or None, **_STYLES[line.style])


def _installed(names: Sequence[str]) -> list[str]:
    from matplotlib import font_manager

    known = set(font_manager.get_font_names())
    return [name for name in names if name in known]
