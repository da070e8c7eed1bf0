"""``plmctl compare``: finished runs side by side, and whether they differ by more than chance."""

import json
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plmctl.errors import ConfigError
from plmctl.metrics.bootstrap import paired
from plmctl.reporting.figures import figures_of
from plmctl.reporting.reader import Run, read_runs
from plmctl.reporting.report import write
from plmctl.reporting.tables import rows_table
from plmctl.runs.say import show

if TYPE_CHECKING:
    from rich.table import Table

_SEED = 0  # every pair of runs is resampled by the same draws


def run(folders: Sequence[str], *, out: str | None, as_json: bool) -> None:
    """Tables of all key figures and of all pairs of finetuned runs; a page with curves on request.

    Raises:
        ConfigError: Fewer than two runs, or a folder that is none.
    """
    if len(folders) < 2:
        raise ConfigError("compare: one run alone", "name two run folders or more")
    runs = read_runs([Path(folder) for folder in folders])
    figures = {run.name: {f.name: f.value for f in figures_of(run)} for run in runs}
    differences = [
        pair for one, two in combinations(runs, 2) if (pair := difference(one, two)) is not None
    ]
    tables = [_side_by_side(figures)]
    if differences:
        tables.append(_differences(differences))
    document: dict[str, Any] = {"figures": figures, "differences": differences}
    if out is not None:
        document["report"] = str(write([run.path for run in runs], Path(out)))
    show(document, tables, as_json=as_json)
    if out is not None and not as_json:
        print(out)


def difference(one: Run, two: Run) -> dict[str, Any] | None:
    """The paired bootstrap of two finetuned runs; None where they have no rows in common.

    Returns:
        first, second, credit (what a row is worth), rows, difference (second minus first), low,
        high and p (``metrics.bootstrap.paired``).
    """
    first, second = _credits(one), _credits(two)
    if first is None or second is None:
        return None
    if (first["rows"], first["credit"]) != (second["rows"], second["credit"]):
        return None
    ones, twos = np.array(first["values"]), np.array(second["values"])
    found = paired(lambda said, _: float(said.mean()), ones, twos, np.zeros(len(ones)), _SEED)
    names = {"first": one.name, "second": two.name, "credit": first["credit"], "rows": len(ones)}
    return {**names, **found}


def _credits(run: Run) -> dict[str, Any] | None:
    path = run.path / "eval" / "rows" / "valid.json"
    if not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def _side_by_side(figures: dict[str, dict[str, Any]]) -> "Table":
    """A row a figure, a column a run: there are more figures than runs."""
    names = list(dict.fromkeys(name for found in figures.values() for name in found))
    rows = [[name, *(found.get(name, "") for found in figures.values())] for name in names]
    return rows_table("side by side", ["", *figures], rows)


def _differences(differences: list[dict[str, Any]]) -> "Table":
    rows = [
        [
            f"{pair['second']} - {pair['first']}",
            pair["credit"],
            pair["rows"],
            f"{pair['difference']:+.3f}",
            f"{pair['low']:+.3f} to {pair['high']:+.3f}",
            f"{pair['p']:.3f}",
        ]
        for pair in differences
    ]
    columns = ["pair", "of a row", "rows", "difference", "95 %", "p"]
    return rows_table("the same rows, paired bootstrap", columns, rows)
