"""The figures of a suite, and the table that sets them beside published ones."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from plmctl.metrics.statistics import spread
from plmctl.suites import Suite

if TYPE_CHECKING:
    from rich.table import Table

# Of the terminal: what our own columns take, and one of a published model. Those that have no place
# are in eval/ all the same.
_OURS, _COLUMN, _LEAST = 42, 12, 2
_NORMAL = 1.96

DEFINITION = (
    "per cent on the validation rows, the median over the seeds; se: the bootstrap's standard "
    "error over these rows (1,000 draws), low to high its 95 % interval, each the median over the "
    "seeds; std: of the figure over the seeds. Of an average: se from its tasks', figures of one "
    "task taken to err together, and 1.96 se to both sides"
)


def columns(suite: Suite, tasks: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The figures of all tasks that are finished.

    Args:
        suite: Which there are.
        tasks: By name, as ``runs.suite`` keeps them.

    Returns:
        name, task, what, rows; value, se, low, high (None where the task does not say); seeds and
        std.
    """
    found = []
    for column in suite.columns:
        scored = tasks.get(column.task, {}).get("scored", {}).get(column.rows, [])
        values = [one["results"].get(column.figure) for one in scored]
        if not values or None in values:
            continue
        scaled = [column.scale * value for value in values]
        sure = [one["uncertainty"].get(column.figure) for one in scored]
        known = {
            key: column.scale * median(one[key] for one in sure) if all(sure) else None
            for key in ("se", "low", "high")
        }
        found.append(
            {
                "name": column.name,
                "task": column.task,
                "what": column.what,
                "rows": column.rows,
                "value": median(scaled),
                **known,
                "seeds": len(scaled),
                "std": spread(scaled)["std"],
            }
        )
    return found


def averages(suite: Suite, found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The suite's averages, those of which every column is there."""
    values = {column["name"]: column["value"] for column in found}
    errors = {column["name"]: column["se"] for column in found if column["se"] is not None}
    made = []
    for average in suite.averages:
        value, error = average.of(values), average.error(errors)
        if value is None:
            continue
        away = None if error is None else _NORMAL * error
        ends = {
            "low": None if away is None else value - away,
            "high": None if away is None else value + away,
        }
        made.append(
            {"name": average.name, "what": average.what, "value": value, "se": error, **ends}
        )
    return made


def published(suite: Suite, family: str) -> list[dict[str, Any]]:
    """What was published of a family, with the averages of it that can be taken."""
    return [
        {
            "model": row.model,
            "split": row.split,
            "source": row.source,
            "shape": row.shape,
            "figures": {**row.figures, **_means(suite, row.figures)},
        }
        for row in suite.published
        if row.family == family
    ]


def _means(suite: Suite, figures: Mapping[str, float]) -> dict[str, float]:
    means = {average.name: average.of(figures) for average in suite.averages}
    return {name: mean for name, mean in means.items() if mean is not None}


def table(suite: Suite, document: Mapping[str, Any]) -> "Table":
    """A row a figure: ours with its error, then what was published of the nearest models."""
    from plmctl.reporting.tables import rows_table

    figures = [*document["columns"], *document["averages"]]
    seeds = _seeds(document)
    beside = _nearest(suite, document)
    head = ["", "here, se", "95 %", *(["std"] if seeds > 1 else [])]
    head += [f"{row.model} ({row.split})" for row in beside]
    rows = []
    for figure in figures:
        error = f" ± {_shown(figure['se'])}" if figure["se"] is not None else ""
        cells = [_shown(figure["value"]) + error, _ends(figure)]
        if seeds > 1:
            cells.append(_shown(figure.get("std")))
        theirs = [{**row.figures, **_means(suite, row.figures)} for row in beside]
        cells += [_shown(of.get(figure["name"])) for of in theirs]
        rows.append([figure["name"], *cells])
    of = f"median of {seeds} seeds" if seeds > 1 else "one seed"
    title = f"{document['suite']} of {document['model']}, per cent, dev rows, {of}"
    return rows_table(title, head, rows)


def notes(suite: Suite, document: Mapping[str, Any]) -> Iterator[str]:
    """What the table leaves unsaid: what averages are, and where published figures stand."""
    for average in document["averages"]:
        yield f"{average['name']}: {average['what']}"
    for row in _nearest(suite, document):
        yield f"{row.model} ({row.split}): {row.source}"


def _nearest(suite: Suite, document: Mapping[str, Any]) -> tuple[Any, ...]:
    shape = document["shape"]
    here = {column["name"] for column in document["columns"]}
    rows = suite.nearest(document["family"], tuple(shape) if shape else None, len(suite.published))
    room = shutil.get_terminal_size().columns - _OURS - 6 * (_seeds(document) > 1)
    return tuple(row for row in rows if here & set(row.figures))[: max(_LEAST, room // _COLUMN)]


def _seeds(document: Mapping[str, Any]) -> int:
    return max(int(column["seeds"]) for column in document["columns"])


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _ends(figure: Mapping[str, Any]) -> str:
    if figure["low"] is None:
        return ""
    return f"[{figure['low']:.1f},{figure['high']:.1f}]"  # without a space: it is not to be broken
