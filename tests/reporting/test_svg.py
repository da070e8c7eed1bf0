import math

import numpy as np
import pytest

from plmctl.reporting.drawing import draw_svg, svg_path, text_width
from plmctl.reporting.html import page
from plmctl.reporting.plots import Line, Plot
from tests.reporting.markup import read


def line(name="", y=(1.0, 2.0, 3.0), style="solid", color=0):
    return Line(name, np.arange(len(y), dtype=float), np.array(y), color, style)


def drawn(*lines, **more):
    return read(page("t", draw_svg(Plot("key", "Title", "unit", lines, **more))))


def test_a_gap_where_there_is_no_value():
    x, y = np.arange(5.0), np.array([1.0, 2.0, math.nan, 4.0, 5.0])
    assert svg_path(x, y) == "M0.0 1.0L1.0 2.0M3.0 4.0L4.0 5.0"
    assert svg_path(x, np.full(5, math.nan)) == ""


def test_points_are_where_the_axes_say():
    found = drawn(line("valid", (0.0, 5.0, 10.0), "dashed"), zero=True)
    circles = [c for c in found.attributes("circle") if c["cy"] != "34"]  # not the legend's
    # 560 wide: 50 to the left and 16 to the right; 250 high, under a title and one legend row
    assert [float(c["cx"]) for c in circles] == [50.0, 50 + 494 / 2, 560 - 16]
    assert [float(c["cy"]) for c in circles] == [54 + 250, 54 + 125, 54]


def test_what_stands_on_the_plot():
    found = drawn(line("bert <1>"), line("", style="faint"), marks=((1.0, "length 128"),))
    texts = found.texts("text")
    assert texts[0] == "Titleunit"
    assert "bert <1>" in texts
    assert "length 128" in texts
    assert "step" in texts
    assert {"1", "2", "3"} <= set(texts)
    assert found.attributes("svg")[0]["role"] == "img"
    assert found.texts("title")[1] == "Title (unit) by step"


def test_a_long_legend_takes_more_rows():
    def height(*names):
        found = drawn(*(line(name) for name in names))
        return int(found.attributes("svg")[0]["viewbox"].split()[3])

    assert height("a" * 30, "b" * 30) == height("a")
    assert height("a" * 30, "b" * 30, "c" * 30) == height("a") + 20
    assert height("") == height("a") - 20


def test_chinese_is_twice_as_wide():
    assert text_width("语料") == pytest.approx(2 * text_width("ab"), rel=0.1)


def test_more_lines_than_colors_begin_again():
    found = drawn(*(line(str(n), color=n) for n in range(9)))
    styles = [p["class"] for p in found.attributes("path")]
    assert styles[-1] == "line solid c1"


def test_one_point_is_seen():
    assert len(drawn(line("", (3.0,))).attributes("circle")) == 1


def test_values_that_are_not_positive_are_left_out_of_a_logarithmic_plot():
    found = drawn(line("", (1.0, 0.0, 100.0)), log=True)
    assert found.attributes("path")[0]["d"].count("M") == 2
