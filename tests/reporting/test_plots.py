import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from plmctl.reporting.plots import plots_of, ratio_of_extremes, smooth, thin
from plmctl.reporting.run_files import read_runs
from tests.reporting import sample_runs


def keys(runs):
    return [plot.key for plot in plots_of(runs)]


def test_a_run_has_a_plot_for_each_part_of_its_loss(tmp_path):
    (run,) = read_runs([sample_runs.pretrain(tmp_path / "run", steps=400)])
    plots = {plot.key: plot for plot in plots_of([run])}
    assert list(plots) == [
        "loss-mlm",
        "loss-nsp",
        "accuracy",
        "learning-rate",
        "throughput",
        "gradient-norm",
    ]
    training, validation = plots["loss-mlm"].lines
    assert (training.name, validation.name) == ("training", "validation")
    assert training.y.tolist() == [record["loss/mlm"] for record in run.records if "lr" in record]
    assert validation.x.tolist() == [100, 200, 300, 400]
    assert plots["throughput"].zero
    assert plots["loss-mlm"].marks == ((360.0, "length 128"),)


def test_a_run_of_one_part_has_one_wide_plot_of_its_loss(tmp_path):
    (run,) = read_runs([sample_runs.finetune(tmp_path / "run")])
    loss = plots_of([run])[0]
    assert (loss.key, loss.wide, [line.name for line in loss.lines]) == ("loss", True, ["training"])


def test_several_runs_lie_over_each_other_in_their_colors(tmp_path):
    folders = [
        sample_runs.pretrain(tmp_path / name, steps=400, seed=n) for n, name in enumerate("abc")
    ]
    runs = read_runs(folders)
    plots = {plot.key: plot for plot in plots_of(runs)}
    assert [line.name for line in plots["loss"].lines if line.name] == ["a", "b", "c"]
    assert plots["loss"].dashed == "validation"
    assert [line.color for line in plots["valid-loss-nsp"].lines] == [0, 1, 2]
    assert "valid-accuracy-mlm" in plots


def test_a_run_that_has_nothing_has_no_plots(tmp_path):
    sample_runs.write(tmp_path / "run", {"run": "x", "tokenizer": "t"}, [])
    assert keys(read_runs([tmp_path / "run"])) == []


def test_a_run_without_validation_or_finite_values_has_fewer_plots(tmp_path):
    lines = [{"step": n, "loss": 5.0 - n / 10, "lr": None, "grad_norm": None} for n in range(1, 5)]
    sample_runs.write(tmp_path / "run", {"run": "x", "tokenizer": "t"}, lines)
    assert keys(read_runs([tmp_path / "run"])) == ["loss"]


def test_a_point_is_no_curve(tmp_path):
    sample_runs.write(tmp_path / "run", {"run": "x", "tokenizer": "t"}, [{"step": 1, "loss": 5.0}])
    assert keys(read_runs([tmp_path / "run"])) == []


def test_a_phase_that_is_not_reached_has_no_mark(tmp_path):
    (run,) = read_runs([sample_runs.pretrain(tmp_path / "run", steps=400, upto=300)])
    assert plots_of([run])[0].marks == ()


def test_a_wide_range_is_drawn_on_a_logarithmic_axis(tmp_path):
    for name, factor in (("narrow", 2), ("wide", 10)):
        lines = [{"step": 1, "loss": 1.0}, {"step": 2, "loss": float(factor)}]
        sample_runs.write(tmp_path / name, {"run": "x", "tokenizer": "t"}, lines)
        (plot,) = plots_of(read_runs([tmp_path / name]))
        assert plot.log == (name == "wide")


def test_spread():
    assert ratio_of_extremes(np.array([0.5, 2.0, np.nan])) == 4.0
    assert ratio_of_extremes(np.array([0.0, 2.0])) == 1.0
    assert ratio_of_extremes(np.array([np.nan])) == 1.0


def test_smoothing_by_hand():
    values = np.array([1.0, 2.0, 6.0, math.nan, 4.0])
    # the first alone; then three around the second; nan counts for nothing and stays
    smoothed = smooth(values, 1)
    assert smoothed[[0, 1, 2, 4]].tolist() == [1.0, 3.0, 4.0, 4.0]
    assert math.isnan(smoothed[3])


def test_smoothing_does_not_lag_behind_a_slope():
    slope = np.arange(200.0)
    assert np.allclose(smooth(slope, 7)[:-7], slope[:-7])


@given(
    st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=1, max_size=400),
    st.integers(2, 30),
)
def test_thinning_keeps_the_ends_and_every_extreme(values, buckets):
    x, y = np.arange(len(values), dtype=float), np.array(values)
    thin_x, thin_y = thin(x, y, buckets)
    assert len(thin_x) <= max(2 * buckets + 2, 1)
    assert (np.diff(thin_x) > 0).all()
    assert thin_x[0] == 0
    assert thin_x[-1] == len(values) - 1
    finite = y[np.isfinite(y)]
    if finite.size:
        assert np.nanmax(thin_y) == finite.max()
        assert np.nanmin(thin_y) == finite.min()
