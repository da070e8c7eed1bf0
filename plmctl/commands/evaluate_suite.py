"""``plmctl eval MODEL --suite NAME``: a model finetuned and scored task by task, in one table.

First the recipes of the tasks are chosen, with their data and a user's settings; then their runs
are made as ``finetune --seeds`` makes them; then their scores are set beside published ones.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from plmctl.commands.finetune import ProtocolRun, compare_settings, finish_all, protocol_runs
from plmctl.config.load import find_config
from plmctl.corpus.source import resolve
from plmctl.errors import ConfigError, DataError, PlmError, nearest
from plmctl.evaluation.model import family_of
from plmctl.metrics.statistics import spread
from plmctl.run.configs import FinetuneConfig, SuiteConfig, load
from plmctl.run.display import say, show_result
from plmctl.run.folder import (
    AtWork,
    check_run,
    open_run,
    versions,
    write_environment,
    write_results,
)
from plmctl.run.preflight import check_model
from plmctl.suites.base import Recipe, Suite, SuiteTask, get_suite

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class SuiteRequest:
    """What a user asks for.

    Attributes:
        model: A pretrained folder or Hub id.
        suite: Its name.
        overrides: ``KEY=VALUE`` for every recipe, or ``TASK.KEY=VALUE``.
        data: The data directory; None: the recipes' own sources.
        tasks: Names; None: the whole suite.
        seeds: Runs of each task.
        grid: Try the recipes' grids.
        jobs: Runs at once; None: one a CUDA device, or one.
        fresh: Move the suite's folder aside, if it is there.
    """

    model: str
    suite: str
    overrides: Sequence[str] = ()
    data: str | None = None
    tasks: Sequence[str] | None = None
    seeds: int = 1
    grid: bool = False
    jobs: int | None = None
    fresh: bool = False


def run(asked: SuiteRequest, *, as_json: bool) -> None:
    """Run what is not finished, and show every task that is, beside what was published.

    Raises:
        ConfigError: No such suite or task, a family without recipes, or a wrong setting.
        DataError: Data are not there; nothing was run.
        PlmError: Some of the runs failed; the others are kept, and in the table.
    """
    suite = get_suite(asked.suite)
    check_model(asked.model)
    family = family_of(asked.model)
    chosen = tasks_of(suite, asked.suite, family, asked.tasks)
    folder, settings, of_task = settings_of(suite, asked.overrides)
    config = SuiteConfig(
        run=folder or f"runs/suites/{asked.suite}/{_slug(asked.model)}",
        suite=asked.suite,
        model=asked.model,
        data=asked.data,
        settings=settings,
        grid=asked.grid,
    )
    check_run(config, config.run, fresh=asked.fresh)
    planned = entries(config, chosen, suite.recipes[family], of_task)
    members = _members(planned, asked)
    open_run(config, config.run, fresh=asked.fresh)
    say(f"{asked.suite}: {_names(members)}, {sum(map(len, members.values()))} runs")
    several = [member.config for runs in members.values() for member in runs]
    with AtWork(Path(config.run)) as work:
        failed = finish_all(several, asked.jobs)
        document = _document(config, suite, family, planned, members)
        work.promise([f"eval/{asked.suite}.json"])
        write_results(Path(config.run), asked.suite, document)
        if document["columns"]:
            show_result(document, [suite_table(suite, document)], as_json=as_json)
            for line in table_notes(suite, document):
                say(line)
        if failed:
            shown = "\n  ".join(f"{name}: {said}" for name, said in failed.items())
            raise PlmError(
                f"{len(failed)} of {len(several)} runs failed:\n  {shown}",
                "the others are kept; the same command tries these again",
            )
        work.finish()


def _names(members: Mapping[str, Sequence[Any]]) -> str:
    return f"{len(members)} task{'s' if len(members) > 1 else ''} ({', '.join(members)})"


def _slug(model: str) -> str:
    """A folder's name for a model: ``runs/proof/bert/model`` is proof-bert."""
    parts = [part for part in Path(model).parts if part not in ("/", "..", "runs")]
    kept = parts[:-1] if parts[-1:] == ["model"] and len(parts) > 1 else parts
    return re.sub(r"[^\w.-]+", "-", "-".join(kept)) or "model"


def _members(planned: Sequence[Entry], asked: SuiteRequest) -> dict[str, list[ProtocolRun]]:
    """The runs of each task.

    Raises:
        ConfigError: A grid is asked for, and no recipe has one.
    """
    if asked.grid and not any(entry.config.grid for entry in planned):
        raise ConfigError("--grid: none of these recipes has a grid", "leave it out")
    return {
        entry.task.name: protocol_runs(
            entry.config, asked.seeds, grid=asked.grid and bool(entry.config.grid)
        )
        for entry in planned
    }


# --- What is run: the recipe of each task, its data, and a user's settings ---


_FORMATS = (".jsonl", ".json", ".tsv", ".csv", ".parquet")

_COMPRESSED = ("", ".gz", ".zst")


@dataclass(frozen=True)
class Entry:
    """One task that is to be run.

    Attributes:
        task: Of the suite.
        config: Of its finetuning; its runs go into folders under ``config.run``.
        also: Further labelled files to score, by their stem.
    """

    task: SuiteTask
    config: FinetuneConfig
    also: Mapping[str, str]


def tasks_of(suite: Suite, name: str, family: str, asked: Sequence[str] | None) -> list[SuiteTask]:
    """The tasks to run, in the suite's order.

    Args:
        suite: All of them.
        name: Of the suite, for messages.
        family: Of the model.
        asked: Names; None: all that the family has a recipe for and that need not be asked for.

    Raises:
        ConfigError: A task that there is not, or no recipe of it for the family.
    """
    known = {task.name: task for task in suite.tasks}
    there = suite.recipes.get(family, {})
    if not there:
        raise ConfigError(
            f"{name}: no recipe for {family}",
            f"there are recipes for {', '.join(suite.recipes)}",
        )
    for one in asked or ():
        if one not in known:
            raise ConfigError(f"--tasks: {name} has no task {one!r}{nearest(one, known)}")
        if one not in there:
            raise ConfigError(
                f"--tasks: {name} has no recipe of {one} for {family}",
                f"there are: {', '.join(there)}",
            )
    if asked is not None:
        return [task for task in suite.tasks if task.name in asked]
    return [task for task in suite.tasks if task.name in there and not task.asked_for]


def settings_of(
    suite: Suite, overrides: Sequence[str]
) -> tuple[str | None, tuple[str, ...], dict[str, list[str]]]:
    """What a user set: the suite's folder, all of the settings, and those of each task.

    ``KEY=VALUE`` is set in every recipe, ``TASK.KEY=VALUE`` in that of a task.

    Raises:
        ConfigError: A key that cannot be the same for all tasks.
    """
    run: str | None = None
    kept: list[str] = []
    of_task: dict[str, list[str]] = {task.name: [] for task in suite.tasks}
    for given in overrides:
        key, separator, value = given.partition("=")
        first, _, rest = key.partition(".")
        if not separator or not all(key.split(".")):
            raise ConfigError(f"override {given}: expected KEY=VALUE, as in train.epochs=1")
        if key == "run":
            run = value
            continue
        bare = rest if first in of_task else key
        if bare in ("run", "model") or (first not in of_task and _is_data(key)):
            raise ConfigError(
                f"override {given}: a suite sets `{bare}` itself",
                "MODEL is the model, run=FOLDER the suite's folder, --data DIR the data; files of "
                "one task are TASK.data.train=[FILE] and TASK.data.valid=[FILE]",
            )
        kept.append(given)
        for name in (first,) if first in of_task else of_task:
            of_task[name].append(f"{bare}={value}")
    return run, tuple(kept), of_task


def _is_data(key: str) -> bool:
    return key in ("data", "data.train", "data.valid")


def entries(
    config: SuiteConfig,
    chosen: Sequence[SuiteTask],
    recipes: Mapping[str, Recipe],
    settings: Mapping[str, Sequence[str]],
) -> list[Entry]:
    """The tasks with their configs and data.

    Args:
        config: Of the suite's run.
        chosen: The tasks to run.
        recipes: Of the model's family.
        settings: Of each task, in the order in which they were given.

    Raises:
        ConfigError: A recipe that is not there, or a wrong setting.
        DataError: Data of any task are not there: which, what to download, and where to put it.
    """
    made, missing = [], []
    for task in chosen:
        own = _has_own_data(settings[task.name])
        found, absent = ({}, []) if own else _files(task, config.data)
        missing += absent
        recipe = recipes[task.name]
        values = [f"{key}=[{json.dumps(value)}]" for key, value in found.items() if "." in key]
        changes = [
            *recipe.changes,
            f"model={json.dumps(config.model)}",
            f"run={json.dumps(f'{config.run}/{task.name}')}",
            "launch.processes=1",
            *values,
            *settings[task.name],
        ]
        loaded = load(
            "finetune", find_config(Path("configs/finetune") / recipe.path, ("finetune",)), changes
        )
        also = {stem: found.get(stem, task.also[stem]) for stem in task.also}
        made.append(Entry(task, loaded, {} if own else also))
    if not config.data:
        missing += _absent_from_hub(made)
    if missing:
        raise _missing_data(config, missing)
    return made


def _has_own_data(settings: Sequence[str]) -> bool:
    return any(given.startswith(("data.train=", "data.valid=")) for given in settings)


def _files(task: SuiteTask, data: str | None) -> tuple[dict[str, str], list[str]]:
    """The files of a task in a data directory by config key or stem, and what is missing there."""
    if data is None:
        return {}, []
    folder = Path(data) / task.name
    for train, dev in task.stems:
        pair = (_file(folder, train), _file(folder, dev))
        if pair[0] and pair[1]:
            break
    found = {"data.train": pair[0], "data.valid": pair[1]}
    found |= {stem: _file(folder, stem) for stem in task.also}
    names = ("train", "dev", *task.also)
    absent = [name for name, path in zip(names, found.values(), strict=True) if path is None]
    if not absent:
        return {key: str(path) for key, path in found.items()}, []
    wanted = ", ".join(f"{folder}/{name}.jsonl" for name in absent)
    return {}, [f"{task.name}: {wanted} ({task.rows}); of the Hub: {task.hub}"]


def _file(folder: Path, stem: str) -> str | None:
    """The file of that stem, or the folder saved by ``datasets``."""
    if (folder / stem / "state.json").is_file():
        return str(folder / stem)
    paths = (folder / f"{stem}{end}{packed}" for end in _FORMATS for packed in _COMPRESSED)
    return next((str(path) for path in paths if path.is_file()), None)


def _absent_from_hub(made: Sequence[Entry]) -> list[str]:
    """A line for each task from the first on whose sources cannot be opened; no row is read yet.

    What comes after that one is not looked for: where there is no network, each takes half a
    minute to fail.
    """
    from plmctl.corpus.tabular import open_dataset

    for number, entry in enumerate(made):
        data = entry.config.data
        names = [*data.train, *(data.valid if isinstance(data.valid, tuple) else ())]
        try:
            for source in resolve((*names, *entry.also.values())):
                if source.kind == "hf":
                    open_dataset(source)
        except DataError as error:
            lines = [f"{one.task.name}: {one.task.hub} ({one.task.rows})" for one in made[number:]]
            later = ["(the others were not looked for)"] if lines[1:] else []
            return [f"{lines[0]}: {error.message}", *lines[1:], *later]
    return []


def _missing_data(config: SuiteConfig, missing: Sequence[str]) -> DataError:
    shown = "\n    ".join(missing)
    where = config.data or "DIR"
    layout = f"{where}/TASK/train.jsonl and {where}/TASK/dev.jsonl"
    option = "" if config.data else " and add --data DIR"
    return DataError(
        f"{config.suite}: data are not there, so that nothing was scored:\n    {shown}",
        f"put them into {layout}{option} (jsonl, json, tsv, csv or parquet), or take a part with "
        "--tasks",
    )


# --- The scores of the finished runs ---


def _document(
    config: SuiteConfig,
    suite: Suite,
    family: str,
    planned: Sequence[Entry],
    members: Mapping[str, Sequence[ProtocolRun]],
) -> dict[str, Any]:
    """The figures of every task that is finished, with those that the folder has from before."""
    folder = Path(config.run)
    before = _document_at(folder / "eval" / f"{config.suite}.json")
    found: dict[str, Any] = dict(before.get("tasks", {}))
    hashes: dict[str, str] = {}
    for entry in planned:
        try:
            compared = compare_settings(entry.config, members[entry.task.name])
        except PlmError:  # none of its runs is finished
            found.pop(entry.task.name, None)
            continue
        found[entry.task.name] = _task_scores(entry, compared)
        _write_rows(folder, entry, found[entry.task.name]["runs"])
    for name, task in found.items():
        hashes[name] = task["data"]
    write_environment(folder, hashes)
    ordered = {task.name: found[task.name] for task in suite.tasks if task.name in found}
    columns = suite_columns(suite, ordered)
    averages = suite_averages(suite, columns)
    flat = {c["name"]: c["value"] for c in (*columns, *averages)}
    flat |= {f"{c['name']}_se": c["se"] for c in (*columns, *averages) if c["se"] is not None}
    return {
        "kind": "suite",
        "suite": config.suite,
        "title": suite.title,
        "model": config.model,
        "family": family,
        "shape": _shape(config.model),
        "versions": versions(),
        "definition": _DEFINITION,
        "results": flat,
        "columns": columns,
        "averages": averages,
        "tasks": ordered,
        "published": published_results(suite, family),
    }


def _task_scores(entry: Entry, compared: Mapping[str, Any]) -> dict[str, Any]:
    """What the chosen setting's runs found, on the validation rows and on further ones."""
    runs = list(compared["chosen"]["runs"])
    environment = json.loads((Path(runs[0]) / "environment.json").read_text(encoding="utf-8"))
    scored = {"dev": [_document_at(Path(run) / "eval" / "valid.json") for run in runs]}
    for stem, source in entry.also.items():
        scored[stem] = [_further_scores(entry, run, stem, source) for run in runs]
    return {
        "runs": runs,
        "setting": compared["chosen"]["setting"],
        "settings_tried": len(compared["settings"]),
        "data": environment["hashes"]["data"],
        "scored": {
            stem: [
                {"results": _numbers(one["results"]), "uncertainty": one.get("uncertainty", {})}
                for one in documents
            ]
            for stem, documents in scored.items()
        },
    }


def _further_scores(entry: Entry, run: str, stem: str, source: str) -> dict[str, Any]:
    """The figures of a finetuned folder on further rows, taken once."""
    path = Path(run) / "eval" / f"{stem}.json"
    if path.is_file():
        return _document_at(path)
    from plmctl.corpus.source import content_hash, resolve
    from plmctl.evaluation.model import EvaluatedModel
    from plmctl.measures import task
    from plmctl.tasks.base import uncertainty_of
    from plmctl.training.engine import make_accelerator

    say(f"scoring {run} on {source}")
    accelerator = make_accelerator(entry.config.compute)
    subject = EvaluatedModel(str(Path(run) / "model"), entry.config.seed, 32, accelerator)
    examples, found, _ = task.answered(task.Config(data=(source,)), subject)
    document = {
        "kind": "eval",
        "model": subject.model,
        "data_sha256": content_hash(resolve((source,))),
        "versions": versions(),
        "results": {**examples.figures(found), "rows": len(found)},
        "uncertainty": uncertainty_of(examples, found),
    }
    write_results(Path(run), stem, document)
    return document


def _write_rows(folder: Path, entry: Entry, runs: Sequence[str]) -> None:
    """What each validation row is worth, the mean over the seeds: what suites are compared by."""
    several = [_document_at(Path(run) / "eval" / "rows" / "valid.json") for run in runs]
    values = [sum(row) / len(row) for row in zip(*(one["values"] for one in several), strict=True)]
    write_results(folder, f"rows/{entry.task.name}", {**several[0], "values": values})


def _numbers(results: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: value
        for name, value in results.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _shape(model: str) -> list[int] | None:
    """Layers and hidden size, where the model's config says them."""
    from plmctl.models.load import config_of

    config = config_of(model)
    layers = getattr(config, "num_hidden_layers", None)
    width = getattr(config, "hidden_size", None)
    return [int(layers), int(width)] if layers and width else None


def _document_at(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


# --- The table, beside published results ---


# Of the terminal: what our own columns take, and one of a published model. Those that have no place
# are in eval/ all the same.
_OURS, _COLUMN, _LEAST = 42, 12, 2


_NORMAL = 1.96

_DEFINITION = (
    "per cent on the validation rows, the median over the seeds; se: the bootstrap's standard "
    "error over these rows (1,000 draws), low to high its 95 % interval, each the median over the "
    "seeds; std: of the figure over the seeds. Of an average: se from its tasks', figures of one "
    "task taken to err together, and 1.96 se to both sides"
)


def suite_columns(suite: Suite, tasks: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The figures of all tasks that are finished.

    Args:
        suite: Which there are.
        tasks: By name, as ``_document`` keeps them.

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


def suite_averages(suite: Suite, found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
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


def published_results(suite: Suite, family: str) -> list[dict[str, Any]]:
    """What was published of a family, with the averages of it that can be taken."""
    return [
        {
            "model": row.model,
            "split": row.split,
            "source": row.source,
            "shape": row.shape,
            "figures": {**row.figures, **_published_averages(suite, row.figures)},
        }
        for row in suite.published
        if row.family == family
    ]


def _published_averages(suite: Suite, figures: Mapping[str, float]) -> dict[str, float]:
    means = {average.name: average.of(figures) for average in suite.averages}
    return {name: mean for name, mean in means.items() if mean is not None}


def suite_table(suite: Suite, document: Mapping[str, Any]) -> Table:
    """A row a figure: ours with its error, then what was published of the nearest models."""
    from plmctl.reporting.tables import rows_table

    figures = [*document["columns"], *document["averages"]]
    seeds = _seeds(document)
    beside = _nearest_published(suite, document)
    head = ["", "here, se", "95 %", *(["std"] if seeds > 1 else [])]
    head += [f"{row.model} ({row.split})" for row in beside]
    rows = []
    for figure in figures:
        error = f" ± {_one_decimal(figure['se'])}" if figure["se"] is not None else ""
        cells = [_one_decimal(figure["value"]) + error, _interval(figure)]
        if seeds > 1:
            cells.append(_one_decimal(figure.get("std")))
        theirs = [{**row.figures, **_published_averages(suite, row.figures)} for row in beside]
        cells += [_one_decimal(of.get(figure["name"])) for of in theirs]
        rows.append([figure["name"], *cells])
    of = f"median of {seeds} seeds" if seeds > 1 else "one seed"
    title = f"{document['suite']} of {document['model']}, per cent, dev rows, {of}"
    return rows_table(title, head, rows)


def table_notes(suite: Suite, document: Mapping[str, Any]) -> Iterator[str]:
    """What the table leaves unsaid: what averages are, and where published figures stand."""
    for average in document["averages"]:
        yield f"{average['name']}: {average['what']}"
    for row in _nearest_published(suite, document):
        yield f"{row.model} ({row.split}): {row.source}"


def _nearest_published(suite: Suite, document: Mapping[str, Any]) -> tuple[Any, ...]:
    shape = document["shape"]
    here = {column["name"] for column in document["columns"]}
    rows = suite.nearest(document["family"], tuple(shape) if shape else None, len(suite.published))
    room = shutil.get_terminal_size().columns - _OURS - 6 * (_seeds(document) > 1)
    return tuple(row for row in rows if here & set(row.figures))[: max(_LEAST, room // _COLUMN)]


def _seeds(document: Mapping[str, Any]) -> int:
    return max(int(column["seeds"]) for column in document["columns"])


def _one_decimal(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _interval(figure: Mapping[str, Any]) -> str:
    if figure["low"] is None:
        return ""
    return f"[{figure['low']:.1f},{figure['high']:.1f}]"  # without a space: it is not to be broken
