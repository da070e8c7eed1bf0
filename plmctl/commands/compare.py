"""``plmctl compare``: finished runs side by side, and whether their differences are significant."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plmctl.errors import ConfigError, DataError
from plmctl.formatting import printable
from plmctl.metrics.statistics import paired
from plmctl.reporting.plots import Interval
from plmctl.reporting.report import write_report
from plmctl.reporting.run_files import Run, as_number, metrics_of, outdated, read_runs
from plmctl.reporting.tables import interval_bars, rows_table
from plmctl.run.display import say, show_result
from plmctl.run.folder import read_results

if TYPE_CHECKING:
    from rich.table import Table

_SEED = 0  # every pair of runs is resampled by the same draws


def run(folders: Sequence[str], *, out: str | None, as_json: bool) -> None:
    """Tables of the key metrics, and of all pairs of runs that were measured on the same items.

    Args:
        folders: Two run folders or more.
        out: A page to write, with curves and a drawing of the differences.

    Raises:
        ConfigError: Fewer than two runs, or a folder is not a run.
    """
    if len(folders) < 2:
        raise ConfigError("compare: only one run is given", "name two run folders or more")
    runs = read_runs([Path(folder) for folder in folders])
    metrics = {run.name: {m.name: m.value for m in metrics_of(run)} for run in runs}
    shown = {run.name: _shown(run) for run in runs}
    items = [_items(run) for run in runs]
    pairs = [
        pair
        for first, second in _pairs(len(runs))
        for pair in differences(runs[first], runs[second], items[first], items[second])
    ]
    for line in not_comparable(runs, items):
        say(line)
    if pairs and len(runs) > _MOST_RUNS:
        say(f"of more than {_MOST_RUNS} runs each is compared with the first, not with all others")
    # A row per metric, a column per run: there are more metrics than runs.
    names = list(dict.fromkeys(name for values in shown.values() for name in values))
    rows = [[name, *(values.get(name, "") for values in shown.values())] for name in names]
    tables = [rows_table("side by side", ["", *shown], rows)]
    if sum(any("perplexity" in name for name in of) for of in shown.values()) > 1:
        say(
            "perplexity per token is only comparable between models with the same tokenizer; "
            "bits per byte is comparable between all models on the same text"
        )
    losses = [run for run in runs if run.kind == "pretrain"]
    if len({run.comparable for run in losses}) > 1:
        say(
            "the losses cannot be compared: a loss is per target of an objective and per token of "
            "a tokenizer, and these runs have different ones"
        )
    if pairs:
        tables.append(_differences(pairs))
    document: dict[str, Any] = {"figures": metrics, "differences": pairs}
    if out is not None:
        drawn = [_interval(pair) for pair in pairs]
        document["report"] = str(write_report([run.path for run in runs], Path(out), drawn))
    show_result(document, tables, as_json=as_json)
    if out is not None and not as_json:
        print(printable(str(out)))


_MOST_RUNS = 20  # with 190 pairs, of which each takes a part of a second


def _pairs(count: int) -> Iterable[tuple[int, int]]:
    """The numbers of the runs that are compared; of very many runs each with the first."""
    if count > _MOST_RUNS:
        return ((0, number) for number in range(1, count))
    return combinations(range(count), 2)


Items = Mapping[str, dict[str, Any]]
"""The scores of the items of a run, by the name of the file."""


def differences(
    one: Run, two: Run, items_of_one: Items, items_of_two: Items
) -> list[dict[str, Any]]:
    """The paired bootstrap of two runs, for every measure that both ran on the same items.

    Returns:
        For each: first, second, measure (the file's name under ``eval/rows/``), credit (the score
        of an item), better ("high" or "low"), rows, difference (second minus first), low, high
        and p (``metrics.statistics.paired``).
    """
    result = []
    for name, first in items_of_one.items():
        if name not in items_of_two:
            continue
        second = items_of_two[name]
        if (first["rows"], first["credit"]) != (second["rows"], second["credit"]):
            continue
        ones, twos = _values(first), _values(second)
        if len(ones) < 2:  # every draw of one row is the same: no interval
            continue
        names = {
            "first": one.name,
            "second": two.name,
            "measure": name,
            "credit": first["credit"],
            "better": first.get("better", "high"),
            "rows": len(ones),
        }
        result.append({**names, **paired(_ratio, ones, twos, np.zeros(len(ones)), _SEED)})
    return result


def not_comparable(runs: Sequence[Run], items: Sequence[Items]) -> list[str]:
    """Lines about runs of a table that have different rows, or different models."""
    lines = []
    for name in dict.fromkeys(name for of in items for name in of):
        rows: dict[str, list[str]] = {}
        for run, of in zip(runs, items, strict=True):
            if name in of:
                shown = f"{run.name} ({len(of[name]['values']):,} rows)"
                rows.setdefault(of[name]["rows"], []).append(shown)
        if len(rows) > 1:
            groups = "; ".join(", ".join(group) for group in rows.values())
            measure = "the validation rows" if name == "valid" else f"the rows of {name}"
            lines.append(f"{measure} differ, so these runs cannot be compared by them: {groups}")
    for name in dict.fromkeys(name for run in runs for name in _hashes(run)):
        by_hash: dict[str, dict[str, list[str]]] = {}
        for run in runs:
            if name in _hashes(run) and (named := _named_in_config(run, name)):
                by_hash.setdefault(named, {}).setdefault(_hashes(run)[name], []).append(run.name)
        for groups_of in by_hash.values():
            if len(groups_of) > 1:
                groups = "; ".join(", ".join(group) for group in groups_of.values())
                lines.append(f"the {name} changed between these runs: {groups}")
    return [*lines, *(line for run in runs for line in outdated(run))]


def _hashes(run: Run) -> Mapping[str, Any]:
    hashes = run.environment.get("hashes")
    return hashes if isinstance(hashes, Mapping) else {}


def _named_in_config(run: Run, name: str) -> str:
    """What the config of a run says of one of its inputs; empty: no other run has the same one.

    The rows of a finetuning depend on its seed, their files do not; the tokens of a pretraining on
    its tokenizer and its objective.
    """
    if run.kind == "finetune" and not name.startswith(("model ", "data files")):
        return ""
    key = {"init_from": "model", "teacher": "objective"}.get(name.split()[0], name.split()[0])
    keys = ("data", "tokenizer", "objective") if name == "data" else (key,)
    values = [run.setting(one) for one in keys]
    return "" if None in values else f"{run.kind} {json.dumps(values, sort_keys=True)}"


def _ratio(values: Any, _: Any) -> float:
    """Sum of the values over the sum of their sizes."""
    return float(values[:, 0].sum() / values[:, 1].sum())


def _values(document: dict[str, Any]) -> Any:
    """[N, 2] values, and their sizes: 1 if the metric is a mean."""
    values = np.array(document["values"], dtype=np.float64)
    sizes = np.array(document.get("sizes", np.ones(len(values))), dtype=np.float64)
    return np.stack([values, sizes], axis=1)


def _items(run: Run) -> Items:
    """The scores of the items, by the name of the file.

    Raises:
        DataError: A file is damaged.
    """
    paths = sorted((run.path / "eval" / "rows").glob("*.json"))
    return {path.stem: _read_items(path) for path in paths}


def _read_items(path: Path) -> dict[str, Any]:
    document = read_results(path, "values", "rows", "credit")
    values: Any = document["values"]
    sizes: Any = document.get("sizes", [1] * len(values) if isinstance(values, list) else None)
    for numbers, least in ((values, -math.inf), (sizes, 0)):
        right = isinstance(numbers, list) and len(numbers) == len(values) > 0
        # A comparison with nan is false.
        if not right or not all(as_number(number) >= least for number in numbers):
            raise DataError(
                f"{path}: damaged: not a finite number for each item", "run the evaluation again"
            )
    if not sum(sizes):
        raise DataError(f"{path}: damaged: all sizes are 0", "run the evaluation again")
    return document


def _interval(pair: dict[str, Any]) -> Interval:
    return Interval(_named(pair), pair["difference"], pair["low"], pair["high"])


def _named(pair: dict[str, Any]) -> str:
    low = ", lower is better" if pair["better"] == "low" else ""
    of = "" if pair["measure"] == "valid" else f"{pair['measure']}: "
    return f"{pair['second']} - {pair['first']} ({of}{pair['credit']}{low})"


def _shown(run: Run) -> dict[str, object]:
    """The metrics of a run for the table: those of a measure with its name, and no definitions."""
    measure = next(iter(run.evaluations), "")
    alone = run.kind == "eval" and len(run.evaluations) == 1  # else the names have it already
    return {
        f"{measure}: {metric.name}" if alone else metric.name: metric.value
        for metric in metrics_of(run)
        if not metric.name.endswith("definition")
    }


def _differences(differences: list[dict[str, Any]]) -> "Table":
    """A row per pair and measure, with its interval; the intervals of a measure share a scale."""
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
