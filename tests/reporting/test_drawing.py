"""Plots as matplotlib draws them: in a page, and as files."""

import math
import re
import struct
import subprocess
import sys
import warnings

import numpy as np
import pytest

from plmctl.reporting.drawing import (
    draw_curves,
    draw_intervals,
    draw_law,
    embedded_curves,
    embedded_law,
    write_plots,
)
from plmctl.reporting.html import page
from plmctl.reporting.plots import Curve, Interval, LawPlot, Plot, Predicted, plots_of
from plmctl.reporting.run_files import read_runs
from plmctl.reporting.tables import interval_bars
from tests.reporting import sample_runs
from tests.reporting.markup import read


def line(name="", y=(1.0, 2.0, 3.0), style="solid", color=0):
    return Curve(name, np.arange(len(y), dtype=float), np.array(y), color, style)


def plot(*lines, **more):
    return Plot("key", "Title", "unit", lines, **more)


def embedded(*lines, **more):
    return read(page("t", embedded_curves(plot(*lines, **more))))


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


# --- Axes ---


@pytest.mark.parametrize(
    ("high", "expected"),
    [
        (0.0015, ["0", "5e-4", "1e-3", "1.5e-3"]),
        (0.4, ["0", "0.1", "0.2", "0.3", "0.4"]),
        (4000, ["0", "1,000", "2,000", "3,000", "4,000"]),
        (31000, ["0", "10k", "20k", "30k"]),
        (2_500_000, ["0", "0.5M", "1M", "1.5M", "2M", "2.5M"]),
    ],
)
def test_tick_labels_suit_the_size(high, expected):
    (axes,) = draw_curves(plot(line(y=(0.0, high)), zero=True)).axes
    shown = [t for t, y in zip(ticks(axes.yaxis), axes.get_yticks(), strict=True) if y <= high]
    assert shown == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.4, 8.0, 0.0, math.nan), ["0.5", "1", "2", "5"]),  # what is not positive is left out
        ((1e-3, 1e4), ["1e-3", "0.01", "0.1", "1", "10", "100", "1,000", "10k"]),
        ((1.0, 3.2), ["1", "1.5", "2", "3"]),
    ],
)
def test_ticks_of_a_logarithmic_axis(values, expected):
    (axes,) = draw_curves(plot(line(y=values), log=True)).axes
    low, high = axes.get_ylim()
    shown = zip(ticks(axes.yaxis), axes.get_yticks(), strict=True)
    labels = [label for label, tick in shown if low <= tick <= high]
    assert labels == expected


@pytest.mark.parametrize("value", [0.0, 5.0, -3.0])
def test_a_constant_has_an_axis_too(value):
    (axes,) = draw_curves(plot(line(y=(value, value)))).axes
    low, high = axes.get_ylim()
    assert low < value < high


def test_the_axes_are_labelled_with_their_units():
    (axes,) = draw_curves(plot(line(), along="ids")).axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("ids", "unit")
    (axes,) = draw_curves(plot(line(), log=True)).axes
    assert axes.get_ylabel() == "unit (log scale)"


# --- In a page ---


def test_the_text_of_a_plot_is_text():
    page = embedded(line("bert <1>"), line("", style="faint"), marks=((1.0, "length 128"),))
    texts = page.texts("text")
    assert {"Title", "unit", "step", "bert <1>", "length 128", "1", "2"} <= set(texts)
    assert page.attributes("svg")[0]["role"] == "img"
    assert page.texts("title")[1] == "Title (unit) by step"


def test_a_name_with_dollars_is_no_formula():
    assert "$a_b$" in embedded(line("$a_b$")).texts("text")


def test_colors_and_fonts_come_from_the_style_sheet():
    svg = embedded_curves(plot(line("a"), line("b", color=8), marks=((1.0, "here"),)))
    assert re.findall(r"#[0-9a-f]{6}\b", svg) == []
    assert {"var(--c0)", "var(--c1)", "var(--ink)", "var(--soft)", "var(--line)"} <= set(
        re.findall(r"var\(--[a-z0-9]+\)", svg)
    )
    assert "svg.plot text { font-family: var(--font) !important; }" in page("t")


def test_a_gap_stays_where_there_is_no_value():
    svg = embedded_curves(plot(line(y=(1.0, 2.0, math.nan, 4.0, 5.0))))
    drawn, *_ = re.findall(r'<path d="([^"]*)"[^>]*stroke: var\(--c0\)', svg)
    assert (drawn.count("M"), drawn.count("L")) == (2, 2)


def test_one_point_is_seen():
    assert embedded(line("", (3.0,))).attributes("use")


def test_dashed_lines_without_a_name_are_explained():
    page = embedded(line("a"), line("", style="dashed"), dashed="validation")
    assert "validation" in page.texts("text")


@pytest.mark.parametrize("names", [["a" * 30] * 5, ["中文模型", "b", "c"]])
def test_a_legend_stays_inside_and_above_the_axes(names):
    figure = draw_curves(plot(*(line(name) for name in names)))
    with warnings.catch_warnings(action="ignore"):  # no font here has Chinese characters
        figure.draw_without_rendering()
        box = figure.legends[0].get_window_extent()
    assert box.x1 <= figure.bbox.x1
    assert box.y0 >= figure.axes[0].get_window_extent().y1


def test_the_same_plot_is_the_same_text():
    assert embedded_curves(plot(line("a"))) == embedded_curves(plot(line("a")))


def test_a_plot_of_many_points_stays_small(tmp_path):
    (run,) = read_runs([sample_runs.pretrain(tmp_path / "run", steps=100_000)])
    assert len(run.records) == 11_000
    for plot in plots_of([run]):
        assert len(embedded_curves(plot)) < 30_000


def test_matplotlib_is_imported_when_something_is_drawn():
    code = "import sys, plmctl.reporting.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- Files ---


def test_every_plot_of_the_report_is_a_file_of_each_format(tmp_path):
    folders = [
        sample_runs.pretrain(tmp_path / "bert", steps=400),
        sample_runs.finetune(tmp_path / "era"),
    ]
    written, missing = write_plots(folders, tmp_path / "plots", ("svg", "png", "pdf"), dpi=50)
    keys = [f"{run.kind}-{p.key}" for run in read_runs(folders) for p in plots_of([run])]
    assert [path.name for path in written] == [f"{k}.{f}" for k in keys for f in FILE_STARTS]
    for path in written:
        assert path.read_bytes().startswith(FILE_STARTS[path.suffix[1:]])
    assert missing == ""


FILE_STARTS = {"svg": b"<?xml", "png": b"\x89PNG\r\n\x1a\n", "pdf": b"%PDF"}


def test_the_plots_of_a_grid_are_those_of_its_runs(tmp_path):
    written, _ = write_plots([sample_runs.grid(tmp_path / "grid", seeds=(1,))], tmp_path, ("svg",))
    assert "grid/lr=0.001/seed=1" in (tmp_path / "loss.svg").read_text()
    assert len(written) > 2


def test_files_are_the_same_each_time(tmp_path):
    folder = sample_runs.finetune(tmp_path / "era")
    files = [write_plots([folder], tmp_path / n, ("svg", "png", "pdf"))[0][:3] for n in "ab"]
    for first, second in zip(*files, strict=True):
        assert first.read_bytes() == second.read_bytes()


def test_something_is_drawn(tmp_path):
    from matplotlib.image import imread

    ((path, *_), _) = write_plots(
        [sample_runs.finetune(tmp_path / "era")], tmp_path, ("png",), dpi=50
    )
    width, height = struct.unpack(">II", path.read_bytes()[16:24])
    assert 350 < width < 450
    assert 180 < height < 300
    pixels = imread(path)[..., :3]
    blue = abs(pixels - [0, 114 / 255, 178 / 255]).max(axis=-1) < 0.05
    assert 100 < blue.sum() < 0.1 * blue.size


def test_characters_that_no_font_has_are_named(tmp_path):
    folders = [sample_runs.finetune(tmp_path / name) for name in ("a\ue123", "b")]  # private use
    assert write_plots(folders, tmp_path / "plots", ("png",), dpi=40)[1] == "\ue123"
    assert write_plots(folders, tmp_path / "plots", ("svg",))[1] == ""
    svg = (tmp_path / "plots" / "loss.svg").read_text(encoding="utf-8")
    assert "a\ue123" in svg
    assert "'DejaVu Sans', Arial, sans-serif;" in svg


# --- Intervals ---


def test_intervals_are_drawn_on_one_scale():
    figure = draw_intervals([Interval("a", 1.0, 0.5, 2.0), Interval("b", -0.5, -2.0, 0.5)])
    (axes,) = figure.axes
    assert ticks(axes.yaxis) == ["a", "b"]
    spans = [list(drawn.get_xdata()) for drawn in axes.get_lines()]
    assert [0.5, 2.0] in spans
    assert [-2.0, 0.5] in spans
    assert {"+1.000", "-0.500"} <= {text.get_text() for text in axes.texts}


def test_bars_have_one_scale_with_zero_on_it() -> None:
    first, second = interval_bars([Interval("a", 1.0, 0.5, 2.0), Interval("b", -0.5, -2.0, 0.5)])
    assert (len(first), len(second)) == (21, 21)
    assert first.index("|") == second.index("|") == 10
    assert first.index("o") == 15
    assert first[:10].strip() == ""  # it does not reach zero
    assert second.startswith("-")
    assert second.index("o") == 8


def test_no_difference_is_in_the_middle() -> None:
    assert interval_bars([Interval("same", 0.0, 0.0, 0.0)]) == ["o".center(21)]
    assert draw_intervals([Interval("same", 0.0, 0.0, 0.0)]).axes


# --- A law through points ---


def test_a_law_has_logarithmic_axes_and_its_predictions():
    x = np.array([2e11, 2e12, 2e13])
    points = Curve("1x64", x, np.array([6.0, 5.0, 4.4]), 0)
    curve, band = Curve("lowest loss", x, np.array([6.1, 5.0, 4.3]), 0), (x, x * 0 + 4, x * 0 + 6)
    ahead = (Predicted(4e13, 4.1, 4.0, 4.2), Predicted(8e13, 3.9, None, None))
    law = LawPlot("Loss by compute", "nats", "FLOPs", (points,), (curve,), band, ahead)
    figure = draw_law(law)
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert {"3e11", "3e12", "1e13"} <= set(ticks(axes.xaxis))
    assert "5" in ticks(axes.yaxis)
    bars = [line for line in axes.get_lines() if list(line.get_xdata()) == [4e13, 4e13]]
    assert [list(bar.get_ydata()) for bar in bars] == [[4.0, 4.2]]
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {"1x64", "lowest loss", "prediction"}
    markup = read(page("t", embedded_law(law)))
    assert markup.texts("title")[-1] == "Loss by compute (nats) by FLOPs"
