"""The data of plots: lines from the records of runs, and differences with intervals.

``drawing`` draws them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from plmctl.arrays import Floats
from plmctl.reporting.run_files import Run, as_number, phase_steps

_POINTS = 300  # buckets of a line; two points each, about one per pixel

_LOG_SPREAD = 3.0  # largest over smallest value, above which the axis is logarithmic


@dataclass(frozen=True)
class Curve:
    """A line of a plot.

    Attributes:
        name: In the legend; empty: it is not listed.
        x: [N] steps.
        y: [N] values, nan where one is missing.
        color: Number in the palette; of a level 0: dotted, more: dashed and dotted.
        style: "solid", "dashed" with a dot at every point, "faint", or "level" (what
            counting gives).
    """

    name: str
    x: Floats
    y: Floats
    color: int
    style: str = "solid"


@dataclass(frozen=True)
class Plot:
    """A plot.

    Attributes:
        lines: Later ones lie on top.
        zero: The vertical axis starts at 0.
        marks: Steps where something changes, each with a label.
        wide: Over the whole width of a page.
        along: What the horizontal axis counts.
        dashed: What dashed lines without a name are, for the legend.
    """

    key: str
    title: str
    unit: str
    lines: tuple[Curve, ...]
    log: bool = False
    zero: bool = False
    marks: tuple[tuple[float, str], ...] = ()
    wide: bool = False
    along: str = "step"
    dashed: str = ""


def plots_of(runs: Sequence[Run]) -> list[Plot]:
    """All plots that these runs have data for."""
    plots = [*losses(runs), *accuracies(runs)]
    plots += [learning_rate(runs), throughput(runs), gradient_norm(runs)]
    return [plot for plot in plots if plot is not None]


def losses(runs: Sequence[Run]) -> list[Plot | None]:
    """Training and validation loss: of one run per loss term; of several also their sums.

    Loss terms have different ranges: on one axis the smaller ones would be flat.
    """
    if len(runs) > 1:
        terms = list(dict.fromkeys(key for run in runs for key in run.keys("valid/loss/")))
        title, unit = "Validation loss", "nats per target"
        separate = terms if len(terms) > 1 else []
        return [_totals(runs), *(_validation(runs, key, title, unit) for key in separate)]
    terms = runs[0].keys("loss/") or ["loss"]
    return [_loss(runs[0], key, wide=len(terms) == 1) for key in terms]


def accuracies(runs: Sequence[Run]) -> list[Plot | None]:
    """Validation accuracy: of one run all loss terms in a plot, of several a plot per term."""
    prefix = "valid/accuracy/"
    terms = list(dict.fromkeys(key for run in runs for key in run.keys(prefix)))
    title, unit = "Validation accuracy", "share of targets"
    if len(runs) > 1:
        return [_validation(runs, key, title, unit) for key in terms]
    lines = tuple(
        Curve(key.removeprefix(prefix), *runs[0].series(key), place, "dashed")
        for place, key in enumerate(terms)
    )
    return [_finished(Plot("accuracy", title, unit, lines, zero=True), runs)]


def learning_rate(runs: Sequence[Run]) -> Plot | None:
    """The learning rate of every logged step."""
    plot = Plot("learning-rate", "Learning rate", "learning rate", _raw(runs, "lr"), zero=True)
    return _finished(plot, runs)


def throughput(runs: Sequence[Run]) -> Plot | None:
    """Input tokens per second, without padding."""
    lines = _raw(runs, "tokens_per_second")
    return _finished(Plot("throughput", "Throughput", "tokens per second", lines, zero=True), runs)


def gradient_norm(runs: Sequence[Run]) -> Plot | None:
    """The global norm of the gradient before clipping."""
    lines = tuple(
        line
        for place, run in enumerate(runs)
        for line in _smoothed(_name(run, runs), *run.series("grad_norm"), place)
    )
    return _finished(Plot("gradient-norm", "Gradient norm", "norm before clipping", lines), runs)


def smooth(values: Floats, radius: int) -> Floats:
    """The mean of the values around each value, which does not lag as a running average does.

    Args:
        values: [N]; nan is left out.
        radius: Values on either side; fewer near the start, where curves are steep, so that both
            sides have as many.
    """
    places = np.arange(len(values))
    low = np.maximum(places - radius, 0)
    high = np.minimum(places + np.minimum(places, radius), len(values) - 1) + 1
    known = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    with np.errstate(invalid="ignore"):  # 0 / 0 gives nan, as intended
        means = (sums[high] - sums[low]) / (counts[high] - counts[low])
    return np.where(known, means, math.nan)


def thin(x: Floats, y: Floats, buckets: int = _POINTS) -> tuple[Floats, Floats]:
    """At most two points per bucket, its smallest and its largest value: no spike is lost."""
    if len(x) <= 2 * buckets:
        return x, y
    indices: set[int] = {0, len(x) - 1}
    for piece in np.array_split(np.arange(len(x)), buckets):
        finite = piece[np.isfinite(y[piece])]
        chosen = (finite[y[finite].argmin()], finite[y[finite].argmax()]) if finite.size else piece
        indices.update(int(place) for place in chosen[:2])
    order = np.array(sorted(indices))
    return x[order], y[order]


def _loss(run: Run, key: str, *, wide: bool) -> Plot | None:
    """One loss term of a run."""
    term = key.removeprefix("loss").removeprefix("/")
    lines = _smoothed("training", *run.series(key), 0)
    lines.append(Curve("validation", *run.series(f"valid/{key}"), 1, "dashed"))
    lines += _levels([run], term or "loss")
    title = f"Loss, {term}" if term else "Loss"
    name = f"loss-{term}" if term else "loss"
    return _finished(Plot(name, title, "nats per target", tuple(lines), wide=wide), [run])


def _totals(runs: Sequence[Run]) -> Plot | None:
    """The loss, a color per run."""
    lines = [_smoothed(r.name, *r.series("loss"), place)[-1] for place, r in enumerate(runs)]
    for place, run in enumerate(runs):
        lines.append(Curve("", *run.series("valid/loss"), place, "dashed"))
    lines += _levels(runs, "loss")
    return _finished(Plot("loss", "Loss", "nats per target", tuple(lines), wide=True), runs)


def _validation(runs: Sequence[Run], key: str, title: str, unit: str) -> Plot | None:
    """One loss term of several runs: comparable though the sums have different terms."""
    term = key.rpartition("/")[2]
    lines = tuple(Curve(r.name, *r.series(key), n, "dashed") for n, r in enumerate(runs))
    lines += _levels(runs, term) if "loss" in key else ()
    return _finished(Plot(key.replace("/", "-"), f"{title}, {term}", unit, lines), runs)


def _levels(runs: Sequence[Run], term: str) -> tuple[Curve, ...]:
    """The losses of counts, over all steps; equal ones once, and each name once."""
    last = max((as_number(run.last.get("step", 0)) for run in runs), default=0.0)
    levels: dict[str, dict[float, None]] = {}
    for name, y in (pair for run in runs for pair in run.counted_losses(term).items()):
        if math.isfinite(y):
            levels.setdefault(name, {})[round(y, 3)] = None
    return tuple(
        Curve("" if n else name, np.array([0.0, last]), np.full(2, y), kind, "level")
        for kind, (name, values) in enumerate(levels.items())
        for n, y in enumerate(values)
    )


def _raw(runs: Sequence[Run], key: str) -> tuple[Curve, ...]:
    return tuple(Curve(_name(run, runs), *run.series(key), place) for place, run in enumerate(runs))


def _smoothed(name: str, x: Floats, y: Floats, color: int) -> list[Curve]:
    """The values faintly with their average on top; of few values only the values."""
    if len(x) < 50:
        return [Curve(name, x, y, color)]
    average = smooth(y, len(x) // 60)
    return [Curve("", x, y, color, "faint"), Curve(name, x, average, color)]


def _name(run: Run, runs: Sequence[Run]) -> str:
    """One run alone needs no legend."""
    return run.name if len(runs) > 1 else ""


def _finished(plot: Plot, runs: Sequence[Run]) -> Plot | None:
    """Lines without values left out, and the scale chosen; None if no line is left."""
    shown = tuple(line for line in plot.lines if np.isfinite(line.y).any())
    if not any(np.isfinite(line.y).sum() > 1 for line in shown if line.style != "level"):
        return None  # a point is no curve; the metrics show it
    log = (
        not plot.zero
        and ratio_of_extremes(np.concatenate([line.y for line in shown])) > _LOG_SPREAD
    )
    dashed = any(not line.name and line.style == "dashed" for line in shown)
    marks = _phases(runs[0]) if len(runs) == 1 else ()
    thinned = []
    for line in shown:
        x, y = thin(line.x, line.y)
        thinned.append(replace(line, x=x, y=y))
    lines, name = tuple(thinned), "validation" if dashed else ""
    return replace(plot, lines=lines, log=log, marks=marks, dashed=name)


def _phases(run: Run) -> tuple[tuple[float, str], ...]:
    """The first step and the length of each phase after the first, up to the current step."""
    phases, last = run.setting("train", "phases"), as_number(run.last.get("step"))
    steps = phase_steps(run)
    if steps is None or not isinstance(phases, list):
        return ()
    begins = accumulate(steps[:-1])
    return tuple(
        (float(begin), f"length {phase['seq_len']}" if "seq_len" in phase else "")
        for begin, phase in zip(begins, phases[1:], strict=True)
        if begin < last
    )


def ratio_of_extremes(values: Floats) -> float:
    """The largest over the smallest finite value; 1 unless all of them are positive."""
    finite = values[np.isfinite(values)]
    if not finite.size or finite.min() <= 0:
        return 1.0
    return float(finite.max() / finite.min())


# --- Points, a law through them, and its predictions ---


@dataclass(frozen=True)
class Predicted:
    """A predicted value.

    Attributes:
        low: Start of its interval; None: unknown.
        high: End of its interval.
    """

    x: float
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class LawPlot:
    """Measured points and the law through them, both axes logarithmic.

    Attributes:
        along: What the horizontal axis counts.
        points: Measured; a line's color is that of its curve.
        band: x, low and high ends of the interval of the last curve; None: unknown.
    """

    title: str
    unit: str
    along: str
    points: tuple[Curve, ...]
    curves: tuple[Curve, ...]
    band: tuple[Floats, Floats, Floats] | None
    predictions: tuple[Predicted, ...]


# --- Differences with their intervals ---


@dataclass(frozen=True)
class Interval:
    """A difference."""

    name: str
    value: float
    low: float
    high: float
