"""What a suite is going to run: the recipe of each task, with its data and what a user set."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plmctl.config.finetune import FinetuneConfig
from plmctl.config.load import load
from plmctl.config.shipped import find
from plmctl.config.suite import SuiteConfig
from plmctl.corpus.source import resolve
from plmctl.errors import ConfigError, DataError, nearest
from plmctl.suites import Recipe, Suite, SuiteTask

_ENDS = (".jsonl", ".json", ".tsv", ".csv", ".parquet")
_PACKED = ("", ".gz", ".zst")


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
        own = _own_data(settings[task.name])
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
            "finetune", find(Path("configs/finetune") / recipe.path, ("finetune",)), changes
        )
        also = {stem: found.get(stem, task.also[stem]) for stem in task.also}
        made.append(Entry(task, loaded, {} if own else also))
    if not config.data:
        missing += _absent_from_hub(made)
    if missing:
        raise _not_there(config, missing)
    return made


def _own_data(settings: Sequence[str]) -> bool:
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
    paths = (folder / f"{stem}{end}{packed}" for end in _ENDS for packed in _PACKED)
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


def _not_there(config: SuiteConfig, missing: Sequence[str]) -> DataError:
    shown = "\n    ".join(missing)
    where = config.data or "DIR"
    layout = f"{where}/TASK/train.jsonl and {where}/TASK/dev.jsonl"
    option = "" if config.data else " and add --data DIR"
    return DataError(
        f"{config.suite}: data are not there, so that nothing was scored:\n    {shown}",
        f"put them into {layout}{option} (jsonl, json, tsv, csv or parquet), or take a part with "
        "--tasks",
    )
