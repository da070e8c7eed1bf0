"""``plmctl suite MODEL NAME``: a model finetuned and scored task by task, in one table.

The parts in their order: the tasks and the user's settings, the recipe and the data of each task,
their runs (as those of ``finetune --seeds``), the scores of the finished runs, and their table
beside published results.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from plmctl import registry
from plmctl.commands.evaluate import kept_results
from plmctl.commands.finetune import made_from
from plmctl.commands.finetune_grid import (
    ProtocolRun,
    check_unfinished,
    compare_settings,
    finetune_all,
    protocol_runs,
)
from plmctl.commands.suite_parts import (
    Checkpoints,
    LabelledFile,
    PartRun,
    checkpoints_of,
    finish_part,
    group_tables,
    left_out,
    missing_files,
    part_scores,
    parts_of,
    planned_parts,
    reported_scores,
    write_submission,
)
from plmctl.config.load import find_config
from plmctl.corpus.source import content_hash, resolve
from plmctl.errors import ConfigError, DataError, PlmError, listed, nearest
from plmctl.evaluation.model import LoadedModel
from plmctl.families.base import get_family, refuse_both_sides
from plmctl.files import read_json
from plmctl.folders import check_model
from plmctl.hashing import model_hashes
from plmctl.metrics.deciding import larger_is_better
from plmctl.metrics.statistics import spread
from plmctl.run.configs import FinetuneConfig, SuiteConfig, load
from plmctl.run.display import say, show_result
from plmctl.run.folder import (
    AtWork,
    check_run,
    open_run,
    read_results,
    versions,
    write_environment,
    write_results,
)
from plmctl.run.several import finish_all, refuse_changed, some_failed
from plmctl.run.yardstick import methods_beside
from plmctl.suites.base import Column, Recipe, Suite, SuitePart, SuiteTask, get_suite
from plmctl.tasks.base import ScoredConfig

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class SuiteRequest:
    """The options of the command line.

    Attributes:
        model: A pretrained folder or Hub id.
        overrides: ``KEY=VALUE`` for every recipe, or ``TASK.KEY=VALUE``.
        data: The data directory; None: the recipes' own sources.
        tasks: Names; None: the whole suite.
        jobs: Runs at once; None: one per CUDA device, or one.
        fresh: Move the suite's folder aside, if it exists.
        lang: The language of the data; None: as the treebank's files are named.
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
    lang: str | None = None


def run(request: SuiteRequest, *, as_json: bool) -> None:
    """Run what is not finished, and show every finished task beside published results.

    Raises:
        ConfigError: There is no such suite or task, the family has no recipes, or a setting is
            wrong.
        DataError: Data are missing, or a finished run was made from another model or other rows;
            nothing was run.
        PlmError: Some of the runs failed; the others are kept, and in the table.
    """
    suite = in_language(get_suite(request.suite), request.lang, request.data)
    request = replace(request, model=check_model(request.model))
    family = LoadedModel(request.model).family.name
    tasks = tasks_of(suite, family, request.tasks, request.data)
    at_checkpoints = {part.name for part in suite.parts if part.at_checkpoints}
    saved: Checkpoints = ""
    if at_checkpoints & set(request.tasks or at_checkpoints):
        saved = checkpoints_of(request.model)
    parts = parts_of(suite, family, request.tasks, request.data, saved)
    reported = reported_scores(suite, request.data)
    if suite.partial and request.tasks is None:
        tasks, parts = with_files(suite, tasks, parts, request.data)
    config, task_settings = suite_config(suite, request)
    # Whatever can be refused is refused before the first run: a suite trains for hours or days.
    check_run(config, config.run, fresh=request.fresh)
    part_runs, missing = planned_parts(config, parts, task_settings, saved)
    if any(one.config.both_sides for one in part_runs):
        from plmctl.models.load import config_of  # it imports PyTorch

        refuse_both_sides(request.model, config_of(request.model))
    planned = entries(config, tasks, recipes_of(suite, family), task_settings, missing)
    if request.grid and not any(entry.config.grid for entry in planned):
        raise ConfigError("--grid: none of these recipes has a grid", "leave out --grid")
    runs_of_task = {
        entry.task.name: protocol_runs(
            entry.config, request.seeds, grid=request.grid and bool(entry.config.grid)
        )
        for entry in planned
    }
    configs = [run.config for runs in runs_of_task.values() for run in runs]
    if not request.fresh:
        refuse_changed(configs, made_from, "or add --fresh, which moves the suite's folder aside")
    check_unfinished(configs)
    open_run(config, config.run, fresh=request.fresh)
    count = len(configs) + len(part_runs)
    names = [*(one.part.name for one in part_runs), *runs_of_task]
    what = f"{len(names)} task{'s' if len(names) > 1 else ''} ({', '.join(names)})"
    say(f"{request.suite}: {what}, {count} run{'s' if count > 1 else ''}")
    with AtWork(Path(config.run)) as work:
        by_run = {one.config.run: one for one in part_runs}
        failed = finish_all(
            [one.config for one in part_runs], lambda config: finish_part(by_run[config.run])
        )
        failed |= finetune_all(configs, request.jobs) if configs else {}
        # The table has what is finished, also if a run failed; the same command then runs the rest.
        document = suite_scores(config, suite, family, planned, runs_of_task, part_runs, reported)
        work.promise([f"eval/{request.suite}.json"])
        write_results(Path(config.run), request.suite, document)
        submission = write_submission(
            suite,
            Path(config.run),
            document["results"],
            part_runs,
            _labelled_files(planned, document["tasks"]),
        )
        tables = group_tables(document["tasks"])
        if document["columns"]:
            tables.append(suite_table(suite, document))
        if tables:
            show_result(document, tables, as_json=as_json)
            for line in table_notes(suite, document):
                say(line)
        if submission is not None:
            done = {name for name in (*names, *reported) if name in document["tasks"]}
            every = [task.name for task in suite.tasks if not (task.asked_for or task.optional)]
            every = [*(part.name for part in suite.parts if not part.asked_for), *every]
            every += suite.reported.names if suite.reported else ()
            lacking = [name for name in every if name not in done]
            without = f", without {listed(lacking)}" if lacking else ""
            say(f"{submission}: the file for the leaderboard{without}")
        if failed:
            raise some_failed(failed, count)
        work.finish()


# --- The tasks, and the user's settings ---


def in_language(suite: Suite, lang: str | None, data: str | None) -> Suite:
    """The suite beside the published results of a language, if it has several.

    Args:
        lang: None: the first part of the names of a treebank and its folder, as in cy_ccg.
        data: The data directory.

    Raises:
        ConfigError: The suite has no languages.
    """
    if not suite.languages:
        if lang is not None:
            raise ConfigError(f"--lang: {suite.name} is of one language", "leave it out")
        return suite
    if lang is None and data is not None:
        files = Path(data).glob("**/*-ud-train.conllu*")
        names = {name.partition("_")[0] for name in (Path(data).name, *(f.name for f in files))}
        lang = (
            next(iter(names & suite.languages.keys()))
            if len(names & suite.languages.keys()) == 1
            else None
        )
    beside = suite.in_language(lang or "")
    if beside.published:
        say(f"published results for {lang} are on {suite.languages[str(lang)]}")
        return beside
    known = ", ".join(code for code in suite.languages if suite.in_language(code).published)
    none = f"no published results are known for {lang}; there are for {known}"
    say(none if lang else f"--lang CODE puts published results beside yours: {known}")
    return beside


def with_files(
    suite: Suite, tasks: Sequence[SuiteTask], parts: Sequence[SuitePart], data: str | None
) -> tuple[list[SuiteTask], list[SuitePart]]:
    """The tasks and parts that have files; a line for each other one says where to get them.

    All of them, if none has: ``entries`` refuses that.
    """
    absent = {task.name: _files(task, data or "DIR")[1] for task in tasks}
    absent |= {part.name: [line for line in [missing_files(part, data)] if line] for part in parts}
    lines = [line for of in absent.values() for line in of]
    if all(absent.values()):
        return list(tasks), list(parts)
    for line in lines:
        say(f"left out: {line}")
    return (
        [task for task in tasks if not absent[task.name]],
        [part for part in parts if not absent[part.name]],
    )


def recipes_of(suite: Suite, family: str) -> dict[str, Recipe]:
    """The recipes of a family's tasks."""
    return suite.recipes_of(family, get_family(family).ANSWERS)


def tasks_of(
    suite: Suite,
    family: str,
    requested: Sequence[str] | None,
    data: str | None = None,
) -> list[SuiteTask]:
    """The tasks to run, in the suite's order.

    Args:
        requested: Names of tasks and parts; None: all tasks of the score that the family has a
            recipe for.
        data: The data directory, in which optional tasks are looked for.

    Raises:
        ConfigError: There is no such task, or no recipe of it for the family.
    """
    tasks = {task.name: task for task in suite.tasks}
    recipes = recipes_of(suite, family)
    parts = {part.name for part in suite.parts}
    if not recipes and not parts:
        known = [one for one in registry.names("families") if recipes_of(suite, one)]
        raise ConfigError(
            f"{suite.name}: no recipe for {family}", f"there are recipes for {', '.join(known)}"
        )
    for task_name in requested or ():
        if task_name in parts:
            continue
        if task_name not in tasks:
            near = nearest(task_name, [*parts, *tasks])
            raise ConfigError(f"--tasks: {suite.name} has no task {task_name!r}{near}")
        if task_name not in recipes:
            raise ConfigError(
                f"--tasks: {suite.name} has no recipe of {task_name} for {family}",
                f"there are recipes of {', '.join(recipes) or 'none'}",
            )
    if requested is not None:
        return [task for task in suite.tasks if task.name in requested]
    if parts and (without := [task for task in tasks if task not in recipes]):
        say(f"skipped: there is no recipe of {', '.join(without)} for {family}")
    chosen = [task for task in suite.tasks if task.name in recipes and not task.asked_for]
    for task in [one for one in chosen if one.hidden and not (data and _files(one, data)[0])]:
        chosen.remove(task)
        say(left_out(task.name, data, f"{task.stems[0][0]}.jsonl", task.hub))
    return [task for task in chosen if not (task.optional and _files(task, data)[1])]


def suite_config(suite: Suite, request: SuiteRequest) -> tuple[SuiteConfig, dict[str, list[str]]]:
    """The config of the suite's run, and the settings of each task.

    Raises:
        ConfigError: A key cannot be the same for all tasks.
    """
    folder, settings, task_settings = settings_of(suite, request.overrides)
    config = SuiteConfig(
        run=folder or f"runs/suites/{request.suite}/{_slug(request.model)}",
        suite=request.suite,
        model=request.model,
        data=request.data,
        settings=settings,
        grid=request.grid,
    )
    return config, task_settings


def settings_of(
    suite: Suite, overrides: Sequence[str]
) -> tuple[str | None, tuple[str, ...], dict[str, list[str]]]:
    """The user's settings: the suite's folder, all settings, and those of each task.

    ``KEY=VALUE`` is set in every recipe, ``TASK.KEY=VALUE`` in the recipe of one task.

    Raises:
        ConfigError: A key cannot be the same for all tasks.
    """
    run: str | None = None
    kept: list[str] = []
    of_task: dict[str, list[str]] = {task.name: [] for task in suite.tasks}
    of_part: dict[str, list[str]] = {part.name: [] for part in suite.parts}
    for given in overrides:
        key, separator, value = given.partition("=")
        first, _, rest = key.partition(".")
        if not separator or not all(key.split(".")):
            raise ConfigError(f"override {given}: expected KEY=VALUE, as in train.epochs=1")
        if key == "run":
            run = value
            continue
        named = first in of_task or first in of_part
        bare = rest if named else key
        if bare in ("run", "model") or (not named and _is_data(key)):
            raise ConfigError(
                f"override {given}: a suite sets `{bare}` itself",
                "MODEL is the model, run=FOLDER the suite's folder, --data DIR the data; files of "
                "one task are TASK.data.train=[FILE] and TASK.data.valid=[FILE]",
            )
        kept.append(given)
        if first in of_part:
            of_part[first].append(f"{bare}={value}")
            continue
        for name in (first,) if first in of_task else of_task:
            of_task[name].append(f"{bare}={value}")
        if key in ("compute.device", "both_sides"):  # of everything; not the precision of parts
            for settings in of_part.values():
                settings.append(f"{bare}={value}")
    return run, tuple(kept), {**of_task, **of_part}


def _is_data(key: str) -> bool:
    return key in ("data", "data.train", "data.valid")


def _slug(model: str) -> str:
    """A folder's name for a model: ``runs/proof/bert/model`` is proof-bert."""
    parts = [part for part in Path(model).parts if part not in ("/", "..", "runs")]
    kept = parts[:-1] if parts[-1:] == ["model"] and len(parts) > 1 else parts
    return re.sub(r"[^\w.-]+", "-", "-".join(kept)) or "model"


# --- The recipe and the data of each task ---


_FORMATS = (".jsonl", ".json", ".tsv", ".csv", ".parquet", ".conllu", ".txt")

_COMPRESSED = ("", ".gz", ".zst")


@dataclass(frozen=True)
class Entry:
    """One task to run.

    Attributes:
        config: The config of its finetuning; its runs go into folders under ``config.run``.
        also: Further labelled files to score, by their stem.
    """

    task: SuiteTask
    config: FinetuneConfig
    also: Mapping[str, str]


def entries(
    config: SuiteConfig,
    chosen: Sequence[SuiteTask],
    recipes: Mapping[str, Recipe],
    settings: Mapping[str, Sequence[str]],
    missing_parts: Sequence[str] = (),
) -> list[Entry]:
    """The tasks with their configs and data.

    Args:
        settings: The settings of each task, in the order of the command line.
        missing_parts: A line for each part of the suite whose files are missing.

    Raises:
        ConfigError: A recipe does not exist, or a setting is wrong.
        DataError: Data of a task are missing; the message lists them, with what to download.
    """
    result, missing = [], list(missing_parts)
    for task in chosen:
        own_data = any(
            setting.startswith(("data.train=", "data.valid=")) for setting in settings[task.name]
        )
        files, absent = ({}, []) if own_data else _files(task, config.data)
        missing += absent
        recipe = recipes[task.name]
        values = [f"{key}=[{json.dumps(value)}]" for key, value in files.items() if _is_data(key)]
        changes = [
            *recipe.changes,
            f"model={json.dumps(config.model)}",
            f"run={json.dumps(f'{config.run}/{task.name}')}",
            "launch.processes=1",
            *values,
            *settings[task.name],
        ]
        path = find_config(Path("configs/finetune") / recipe.path, ("finetune",))
        loaded = load("finetune", path, changes)
        if not any(one.startswith("train.max_length=") for one in settings[task.name]):
            loaded = _within_positions(loaded)
        also = {stem: files.get(stem, task.also[stem]) for stem in task.also}
        also = {stem: source for stem, source in also.items() if source}
        result.append(Entry(task, loaded, {} if own_data else also))
    if not config.data:
        missing += _absent_from_hub(result)
    if missing:
        shown = "\n    ".join(missing)
        where = config.data or "DIR"
        layout = f"{where}/TASK/train.jsonl and {where}/TASK/dev.jsonl"
        option = "" if config.data else " and add --data DIR"
        put = f"put them into {layout}{option} (jsonl, json, tsv, csv or parquet)"
        if missing_parts:
            put = "put them there" if config.data else "put them into a folder, and add --data DIR"
        raise DataError(
            f"{config.suite}: data are missing, nothing was scored:\n    {shown}",
            f"{put}, or choose tasks with --tasks",
        )
    return result


def _within_positions(config: FinetuneConfig) -> FinetuneConfig:
    """The config with a ``train.max_length`` that the network has positions for."""
    from plmctl.families.base import longest_input
    from plmctl.models.load import config_of

    longest = longest_input(config_of(config.model))
    if longest is None or config.train.max_length <= longest:
        return config
    say(
        f"{config.run}: train.max_length is {longest}, the positions of {config.model}, not "
        f"{config.train.max_length}"
    )
    train = config.train.model_copy(update={"max_length": longest})
    return config.model_copy(update={"train": train})


def _files(task: SuiteTask, data: str | None) -> tuple[dict[str, str], list[str]]:
    """The files of a task in a data directory by config key or stem, and which are missing."""
    if data is None:
        return {}, []
    root = Path(data)
    for train, dev in task.stems:
        pair = (_file(root, train), _file(root, dev))
        if pair[0] and pair[1]:
            break
    else:
        train, dev = task.stems[0]
        pair = (_file(root, train), _file(root, dev))
    folder = (root / dev).parent
    files = {"data.train": pair[0], "data.valid": pair[1]}
    files |= {stem: _file(folder, stem) for stem in task.also}
    paths = (root / train, root / dev, *(folder / stem for stem in task.also))
    needed = (True, True, *map(bool, task.also.values()))
    absent = [
        path
        for path, file, must in zip(paths, files.values(), needed, strict=True)
        if file is None and must
    ]
    if not absent:
        return {key: str(path) for key, path in files.items() if path is not None}, []
    wanted = ", ".join(f"{path}{task.ending}" for path in absent)
    return {}, [f"{task.name}: {wanted} ({task.rows}); {task.origin}"]


def _file(folder: Path, stem: str) -> str | None:
    """The file with this stem, or the folder saved by ``datasets``."""
    if (folder / stem / "state.json").is_file():
        return str(folder / stem)
    paths = [folder / f"{stem}{end}{packed}" for end in _FORMATS for packed in _COMPRESSED]
    where = (folder / stem).parent  # a treebank's files have its name, as in cy_ccg-ud-train.conllu
    paths += sorted(where.glob(f"*-ud-{Path(stem).name}.conllu*"))
    return next((str(path) for path in paths if path.is_file()), None)


def _absent_from_hub(planned: Sequence[Entry]) -> list[str]:
    """A line for each task from the first whose sources cannot be opened; no row is read yet.

    The tasks after it are not checked: without a network, each takes half a minute to fail.
    """
    from plmctl.corpus.tabular import open_dataset

    for number, entry in enumerate(planned):
        data = entry.config.data
        names = [*data.train, *(data.valid if isinstance(data.valid, tuple) else ())]
        try:
            for source in resolve((*names, *entry.also.values())):
                if source.kind in ("hf", "ms"):
                    open_dataset(source)
        except DataError as error:
            lines = [
                f"{one.task.name}: {one.task.hub or one.task.source} ({one.task.rows})"
                for one in planned[number:]
            ]
            later = ["(the other tasks were not checked)"] if lines[1:] else []
            return [f"{lines[0]}: {error.message}", *lines[1:], *later]
    return []


# --- The runs of each task ---


# --- The scores of the finished runs ---


_NORMAL = 1.96

_DEFINITION = (
    "per cent on the validation rows, the median over the seeds; se: the bootstrap's standard "
    "error over these rows (1,000 draws), low to high its 95 % interval, each the median over the "
    "seeds; std: of the metric over the seeds. Of an average: se from its tasks', scores of one "
    "task taken to err together, and 1.96 se to both sides"
)


def suite_scores(
    config: SuiteConfig,
    suite: Suite,
    family: str,
    planned: Sequence[Entry],
    runs_of_task: Mapping[str, Sequence[ProtocolRun]],
    part_runs: Sequence[PartRun],
    reported: Mapping[str, Any],
) -> dict[str, Any]:
    """The results of every finished task and part, with the earlier results of the folder."""
    folder = Path(config.run)
    hashes = model_hashes(config.model)
    path, rest = folder / "eval" / f"{config.suite}.json", "only what is run now is in the table"
    before = kept_results(path, hashes, rest) or {}
    tasks: dict[str, Any] = {**before.get("tasks", {}), **reported}
    for entry in planned:
        try:
            compared = compare_settings(entry.config, runs_of_task[entry.task.name])
        except PlmError:  # none of its runs is finished
            tasks.pop(entry.task.name, None)
            continue
        tasks[entry.task.name] = _task_scores(entry, compared)
        _write_rows(folder, entry, tasks[entry.task.name]["runs"])
    for one in part_runs:
        scores = part_scores(one)
        if scores is None:
            tasks.pop(one.part.name, None)
        else:
            tasks[one.part.name] = scores
    write_environment(folder, hashes | {name: task["data"] for name, task in tasks.items()})
    names = [*(part.name for part in suite.parts), *(task.name for task in suite.tasks)]
    names += suite.reported.names if suite.reported else ()
    ordered = {name: tasks[name] for name in names if name in tasks}
    columns = suite_columns(suite, ordered)
    averages = suite_averages(suite, columns)
    flat = {c["name"]: c["value"] for c in (*columns, *averages)}
    flat |= {f"{c['name']}_se": c["se"] for c in (*columns, *averages) if c["se"] is not None}
    return {
        "kind": "suite",
        "suite": config.suite,
        "title": suite.title,
        "model": config.model,
        "settings": list(config.settings),
        "family": family,
        "shape": _shape(config.model),
        "hashes": hashes,
        "versions": versions(),
        "definition": _DEFINITION,
        "results": flat,
        "columns": columns,
        "averages": averages,
        "incomplete": incomplete_averages(suite, columns),
        "tasks": ordered,
        "published": published_results(suite, family),
    }


def _task_scores(entry: Entry, compared: Mapping[str, Any]) -> dict[str, Any]:
    """The results of the chosen setting's runs, on the validation rows and on further rows."""
    runs = list(compared["chosen"]["runs"])
    environment = read_json(Path(runs[0]) / "environment.json")
    scored = {"dev": [read_results(Path(run) / "eval" / "valid.json") for run in runs]}
    for stem, source in entry.also.items():
        scored[stem] = [_further_scores(entry, run, stem, source) for run in runs]
    return {
        "runs": runs,
        "setting": compared["chosen"]["setting"],
        "settings_tried": len(compared["settings"]),
        "items": len(read_results(Path(runs[0]) / "eval/rows/valid.json", "values")["values"]),
        "data": environment["hashes"]["data"],
        "counting": [methods_beside(Path(run)) for run in runs],
        "scored": {
            stem: [
                {
                    "results": {
                        name: value
                        for name, value in one["results"].items()
                        if isinstance(value, int | float) and not isinstance(value, bool)
                    },
                    "uncertainty": one.get("uncertainty", {}),
                }
                for one in documents
            ]
            for stem, documents in scored.items()
        },
    }


def _labelled_files(planned: Sequence[Entry], tasks: Mapping[str, Any]) -> Iterator[LabelledFile]:
    """The dev rows of every finished task, and its further rows, with the first of its runs."""
    for entry in planned:
        name, valid = entry.task.name, entry.config.data.valid
        if name not in tasks or not isinstance(valid, tuple):
            continue
        run, compute = tasks[name]["runs"][0], entry.config.compute
        yield LabelledFile(name, name, run, valid, compute)
        for stem, source in entry.also.items():
            yield LabelledFile(name, stem.removesuffix(".valid"), run, (source,), compute)


def _further_scores(entry: Entry, run: str, stem: str, source: str) -> dict[str, Any]:
    """The results of a finetuned folder on further rows; they are computed once."""
    from plmctl.measures.task import Config, FinetunedTask
    from plmctl.training.engine import make_accelerator

    folder = str(Path(run) / "model")
    hashes = {**model_hashes(folder), "data": content_hash((source,))}
    kept = kept_results(Path(run) / "eval" / f"{stem}.json", hashes)
    if kept is not None:
        return kept
    say(f"scoring {run} on {source}")
    task = entry.config.task
    assert isinstance(task, ScoredConfig)  # every task's config is one
    model = LoadedModel(folder, make_accelerator(entry.config.compute))
    config = Config(data=(source,), metrics=task.metrics)
    _, examples, answers, _ = FinetunedTask(config).predict(model)
    document = {
        "kind": "eval",
        "model": model.name,
        "hashes": hashes,
        "versions": versions(),
        "results": {**examples.compute_metrics(answers), "rows": len(answers)},
        "uncertainty": examples.uncertainty(answers),
    }
    write_results(Path(run), stem, document)
    return document


def _write_rows(folder: Path, entry: Entry, runs: Sequence[str]) -> None:
    """The score of each validation row, the mean over the seeds, by which suites are compared."""
    several = [read_results(Path(run) / "eval" / "rows" / "valid.json", "values") for run in runs]
    values = [sum(row) / len(row) for row in zip(*(one["values"] for one in several), strict=True)]
    write_results(folder, f"rows/{entry.task.name}", {**several[0], "values": values})


def _shape(model: str) -> list[int] | None:
    """Layers and hidden size, if the model's config has them."""
    from plmctl.models.load import config_of

    config = config_of(model)
    layers = getattr(config, "num_hidden_layers", None)
    hidden_size = getattr(config, "hidden_size", None)
    return [int(layers), int(hidden_size)] if layers and hidden_size else None


def suite_columns(suite: Suite, tasks: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The metrics of all finished tasks.

    Returns:
        For each: name, task, what, rows; value, se, low, high (None if the task has none); seeds
        and std; counting, the best that needs no network on these rows, or None.
    """
    result = []
    for column in suite.columns:
        scored = tasks.get(column.task, {}).get("scored", {}).get(column.rows, [])
        values = [one["results"].get(column.metric) for one in scored]
        if not values or None in values:
            continue
        scaled = [column.scale * value for value in values]
        errors = [one["uncertainty"].get(column.metric) for one in scored]
        uncertainty = {
            key: column.scale * median(one[key] for one in errors) if all(errors) else None
            for key in ("se", "low", "high")
        }
        result.append(
            {
                "name": column.name,
                "task": column.task,
                "what": column.what,
                "rows": column.rows,
                "value": median(scaled),
                **uncertainty,
                "seeds": len(scaled),
                "std": spread(scaled)["std"],
                "counting": counted(column, tasks[column.task]),
            }
        )
    return result


def counted(column: Column, task: Mapping[str, Any]) -> float | None:
    """The best that counting gives on the validation rows, the median over seeds; None: nothing."""
    best = max if larger_is_better(column.metric) else min
    values = [
        best(metrics)
        for methods in task.get("counting", ())
        if (metrics := [one[column.metric] for one in methods.values() if column.metric in one])
    ]
    whole = column.rows == "dev" and values and len(values) == len(task["runs"])
    return column.scale * median(values) if whole else None


def suite_averages(suite: Suite, columns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The suite's averages for which every column has a value."""
    values = {column["name"]: column["value"] for column in columns}
    errors = {column["name"]: column["se"] for column in columns if column["se"] is not None}
    counting = {c["name"]: c["counting"] for c in columns if c["counting"] is not None}
    means_of_counting = suite.means(counting)
    means, result = suite.means(values), []
    for average in suite.averages:
        if average.name not in means:
            continue
        value, error = means[average.name], average.error(errors)
        if error is not None:
            errors[average.name] = error
        margin = None if error is None else _NORMAL * error
        result.append(
            {
                "name": average.name,
                "what": average.what,
                "value": value,
                "se": error,
                "low": None if margin is None else value - margin,
                "high": None if margin is None else value + margin,
                "counting": means_of_counting.get(average.name),
            }
        )
    return result


def incomplete_averages(suite: Suite, columns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The leaderboard's averages that lack a column: which, and the value with zeros."""
    values = {column["name"]: column["value"] for column in columns}
    there = {**values, **suite.means(values)}
    with_zeros = suite.means({**{column.name: 0.0 for column in suite.columns}, **values})
    return [
        {"name": average.name, "missing": missing, "with_zeros": with_zeros[average.name]}
        for average in suite.averages
        if average.zeros
        and (names := [name for group in average.groups for name in group])
        and (missing := [name for name in names if name not in there])
        and len(missing) < len(names)
    ]


def published_results(suite: Suite, family: str) -> list[dict[str, Any]]:
    """The published results of a family, with the averages that they determine."""
    return [
        {
            "model": row.model,
            "split": row.split,
            "source": row.source,
            "shape": row.shape,
            "figures": {**row.scores, **suite.means(row.scores)},
        }
        for row in suite.beside(family)
    ]


# --- The table, beside published results ---


# Characters of the terminal for our own columns, and for a published model. Models without a place
# in the table are still in eval/.
_OURS, _COLUMN, _LEAST = 42, 12, 2


def suite_table(suite: Suite, document: Mapping[str, Any]) -> Table:
    """A row per metric: ours with its error, then the published results of the nearest models."""
    from plmctl.reporting.tables import rows_table

    scores = [*document["columns"], *document["averages"]]
    seeds = _seeds(document)
    beside, counts = _nearest_published(suite, document), _counts(document)
    head = ["", "here, se", "95 %", *(["std"] if seeds > 1 else []), *["counting"] * counts]
    head += [f"{row.model} ({row.split})" for row in beside]
    digits = {column.name: column.digits for column in suite.columns}
    rows = []
    for metric in scores:
        of_metric = digits.get(metric["name"], 1)
        error = f" ± {_decimal(metric['se'], of_metric)}" if metric["se"] is not None else ""
        # Without a space, so that it is not broken.
        cells = [
            _decimal(metric["value"], of_metric) + error,
            ""
            if metric["low"] is None
            else f"[{_decimal(metric['low'], of_metric)},{_decimal(metric['high'], of_metric)}]",
        ]
        if seeds > 1:
            cells.append(_decimal(metric.get("std"), of_metric))
        cells += [_decimal(metric["counting"], of_metric)] * counts
        theirs = [{**row.scores, **suite.means(row.scores)} for row in beside]
        cells += [_decimal(of.get(metric["name"]), of_metric) for of in theirs]
        rows.append([metric["name"], *cells])
    of = f"median of {seeds} seeds" if seeds > 1 else "one seed"
    scored = {"test" if one["rows"] == "test" else "dev" for one in document["columns"]}
    which = " and ".join(sorted(scored))
    title = f"{document['suite']} of {document['model']}, per cent, {which} rows, {of}"
    return rows_table(title, head, rows)


def table_notes(suite: Suite, document: Mapping[str, Any]) -> Iterator[str]:
    """Notes below the table: the averages, sets with other rows, sources of published results."""
    if settings := document.get("settings"):
        yield f"set by you: {' '.join(settings)}"
    methods = {
        name
        for task in document["tasks"].values()
        for methods in task.get("counting", ())
        for name in methods
    }
    if methods:
        best = "" if len(methods) == 1 else "the best of "
        yield (
            f"counting: {best}{listed(sorted(methods))}, on the same rows, without a network "
            "(`plmctl docs worth-it`)"
        )
    for average in document["averages"]:
        yield f"{average['name']}: {average['what']}"
    for one in document["incomplete"]:
        yield (
            f"no {one['name']}: {listed(one['missing'])} missing; the leaderboard counts a missing "
            f"part as 0, which gives {one['with_zeros']:.2f}"
        )
    official = {part.name: part.items for part in suite.parts}
    official |= {task.name: task.items for task in suite.tasks}
    for name, whole in official.items():
        items = document["tasks"].get(name, {}).get("items")
        if None not in (whole, items) and whole != items:
            yield (
                f"{name}: {items:,} rows, but the official set has {whole:,}: the score cannot be "
                "compared with published ones"
            )
    for name, task in document["tasks"].items():
        count = task["scored"].get("dev", [{"results": {}}])[0]["results"].get("unknown_pairs")
        if count:
            yield f"{name}: {count:,} pairs are wrong because the tokenizer lacks a character"
    for row in _nearest_published(suite, document):
        yield f"{row.model} ({row.split}): {row.source}"
    yield from suite.notes


def _nearest_published(suite: Suite, document: Mapping[str, Any]) -> tuple[Any, ...]:
    shape = document["shape"]
    here = {column["name"] for column in document["columns"]}
    rows = suite.nearest(document["family"], tuple(shape) if shape else None, len(suite.published))
    room = shutil.get_terminal_size().columns - _OURS
    room -= 6 * (_seeds(document) > 1) + 12 * _counts(document)
    return tuple(row for row in rows if here & set(row.scores))[: max(_LEAST, room // _COLUMN)]


def _counts(document: Mapping[str, Any]) -> bool:
    """Whether counting gave anything."""
    return any(column["counting"] is not None for column in document["columns"])


def _seeds(document: Mapping[str, Any]) -> int:
    return max((int(column["seeds"]) for column in document["columns"]), default=1)


def _decimal(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
