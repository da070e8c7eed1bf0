"""``plmctl compare``: finished runs side by side, and whether they differ by more than chance."""

import json
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plmctl.errors import ConfigError
from plmctl.metrics.statistics import paired
from plmctl.reporting.plots import Interval
from plmctl.reporting.report import write_report
from plmctl.reporting.run_files import Run, metrics_of, read_runs
from plmctl.reporting.tables import interval_bars, rows_table
from plmctl.run.display import show_result

if TYPE_CHECKING:
    from rich.table import Table

_SEED = 0  # every pair of runs is resampled by the same draws


def run(folders: Sequence[str], *, out: str | None, as_json: bool) -> None:
    """Tables of all key figures and of all pairs of runs that were asked the same items.

    Args:
        folders: Two run folders or more.
        out: A page to write, with curves and the differences drawn.
        as_json: Print one JSON document.

    Raises:
        ConfigError: Fewer than two runs, or a folder that is none.
    """
    if len(folders) < 2:
        raise ConfigError("compare: one run alone", "name two run folders or more")
    runs = read_runs([Path(folder) for folder in folders])
    figures = {run.name: {f.name: f.value for f in metrics_of(run)} for run in runs}
    found = [pair for one, two in combinations(runs, 2) for pair in differences(one, two)]
    tables = [_side_by_side(figures)]
    if found:
        tables.append(_differences(found))
    document: dict[str, Any] = {"figures": figures, "differences": found}
    if out is not None:
        drawn = [_interval(pair) for pair in found]
        document["report"] = str(write_report([run.path for run in runs], Path(out), drawn))
    show_result(document, tables, as_json=as_json)
    if out is not None and not as_json:
        print(out)


def differences(one: Run, two: Run) -> list[dict[str, Any]]:
    """The paired bootstrap of two runs, for every measure whose items both were asked.

    Returns:
        Of each: first, second, measure (the file's name under ``eval/rows/``), credit (what an
        item is worth), better ("high" or "low"), rows, difference (second minus first), low, high
        and p (``metrics.statistics.paired``).
    """
    ours, theirs = _items(one), _items(two)
    found = []
    for name in ours:
        if name not in theirs:
            continue
        first, second = ours[name], theirs[name]
        if (first["rows"], first["credit"]) != (second["rows"], second["credit"]):
            continue
        ones, twos = _values(first), _values(second)
        names = {
            "first": one.name,
            "second": two.name,
            "measure": name,
            "credit": first["credit"],
            "better": first.get("better", "high"),
            "rows": len(ones),
        }
        found.append({**names, **paired(_ratio, ones, twos, np.zeros(len(ones)), _SEED)})
    return found


def _ratio(said: Any, _: Any) -> float:
    """Sum of the values over the sum of their sizes."""
    return float(said[:, 0].sum() / said[:, 1].sum())


def _values(document: dict[str, Any]) -> Any:
    """[N, 2] values, and what they are divided by: 1 where the figure is a mean."""
    values = np.array(document["values"], dtype=np.float64)
    sizes = np.array(document.get("sizes", np.ones(len(values))), dtype=np.float64)
    return np.stack([values, sizes], axis=1)


def _items(run: Run) -> dict[str, dict[str, Any]]:
    """What each item was worth, by the name of the file."""
    paths = sorted((run.path / "eval" / "rows").glob("*.json"))
    return {path.stem: json.loads(path.read_text("utf-8")) for path in paths}


def _interval(pair: dict[str, Any]) -> Interval:
    return Interval(_named(pair), pair["difference"], pair["low"], pair["high"])


def _named(pair: dict[str, Any]) -> str:
    low = ", less is better" if pair["better"] == "low" else ""
    of = "" if pair["measure"] == "valid" else f"{pair['measure']}: "
    return f"{pair['second']} - {pair['first']} ({of}{pair['credit']}{low})"


def _side_by_side(figures: dict[str, dict[str, Any]]) -> "Table":
    """A row a figure, a column a run: there are more figures than runs."""
    names = list(dict.fromkeys(name for found in figures.values() for name in found))
    rows = [[name, *(found.get(name, "") for found in figures.values())] for name in names]
    return rows_table("side by side", ["", *figures], rows)


def _differences(differences: list[dict[str, Any]]) -> "Table":
    """A row a pair and measure, the interval drawn beside it, by measure: they have one scale."""
    drawn: dict[int, str] = {}
    for measure in dict.fromkeys(pair["measure"] for pair in differences):
        places = [n for n, pair in enumerate(differences) if pair["measure"] == measure]
        lines = interval_bars([_interval(differences[place]) for place in places])
        drawn.update(zip(places, lines, strict=True))
    rows = [
        [
            _named(pair),
            pair["rows"],
            f"{pair['difference']:+.3f}",
            f"{pair['low']:+.3f} to {pair['high']:+.3f}",
            f"{pair['p']:.3f}",
            drawn[place],
        ]
        for place, pair in enumerate(differences)
    ]
    columns = ["pair", "rows", "difference", "95 %", "p", "0 is |"]
    return rows_table("the same rows, paired bootstrap", columns, rows)
