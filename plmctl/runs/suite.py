"""``plmctl eval MODEL --suite NAME``: a model finetuned and scored task by task, in one table."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plmctl import suites
from plmctl.config.suite import SuiteConfig
from plmctl.errors import ConfigError, PlmError
from plmctl.evaluation.language import family_of
from plmctl.runs import finetune_protocol, suite_table
from plmctl.runs.finetune import check_model
from plmctl.runs.folder import (
    AtWork,
    check_run,
    open_run,
    versions,
    write_environment,
    write_results,
)
from plmctl.runs.say import say, show
from plmctl.runs.suite_plan import Entry, entries, settings_of, tasks_of


@dataclass(frozen=True)
class Asked:
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


def run(asked: Asked, *, as_json: bool) -> None:
    """Run what is not finished, and show every task that is, beside what was published.

    Raises:
        ConfigError: No such suite or task, a family without recipes, or a wrong setting.
        DataError: Data are not there; nothing was run.
        PlmError: Some of the runs failed; the others are kept, and in the table.
    """
    suite = suites.get(asked.suite)
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
        failed = finetune_protocol.finish_all(several, asked.jobs)
        document = _document(config, suite, family, planned, members)
        work.promise([f"eval/{asked.suite}.json"])
        write_results(Path(config.run), asked.suite, document)
        if document["columns"]:
            show(document, [suite_table.table(suite, document)], as_json=as_json)
            for line in suite_table.notes(suite, document):
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


def _members(planned: Sequence[Entry], asked: Asked) -> dict[str, list[finetune_protocol.Member]]:
    """The runs of each task.

    Raises:
        ConfigError: A grid is asked for, and no recipe has one.
    """
    if asked.grid and not any(entry.config.grid for entry in planned):
        raise ConfigError("--grid: none of these recipes has a grid", "leave it out")
    return {
        entry.task.name: finetune_protocol.members(
            entry.config, asked.seeds, grid=asked.grid and bool(entry.config.grid)
        )
        for entry in planned
    }


def _document(
    config: SuiteConfig,
    suite: suites.Suite,
    family: str,
    planned: Sequence[Entry],
    members: Mapping[str, Sequence[finetune_protocol.Member]],
) -> dict[str, Any]:
    """The figures of every task that is finished, with those that the folder has from before."""
    folder = Path(config.run)
    before = _kept(folder / "eval" / f"{config.suite}.json")
    found: dict[str, Any] = dict(before.get("tasks", {}))
    hashes: dict[str, str] = {}
    for entry in planned:
        try:
            compared = finetune_protocol.compare(entry.config, members[entry.task.name])
        except PlmError:  # none of its runs is finished
            found.pop(entry.task.name, None)
            continue
        found[entry.task.name] = _task(entry, compared)
        _write_rows(folder, entry, found[entry.task.name]["runs"])
    for name, task in found.items():
        hashes[name] = task["data"]
    write_environment(folder, hashes)
    ordered = {task.name: found[task.name] for task in suite.tasks if task.name in found}
    columns = suite_table.columns(suite, ordered)
    averages = suite_table.averages(suite, columns)
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
        "definition": suite_table.DEFINITION,
        "results": flat,
        "columns": columns,
        "averages": averages,
        "tasks": ordered,
        "published": suite_table.published(suite, family),
    }


def _kept(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _task(entry: Entry, compared: Mapping[str, Any]) -> dict[str, Any]:
    """What the chosen setting's runs found, on the validation rows and on further ones."""
    runs = list(compared["chosen"]["runs"])
    environment = json.loads((Path(runs[0]) / "environment.json").read_text(encoding="utf-8"))
    scored = {"dev": [_kept(Path(run) / "eval" / "valid.json") for run in runs]}
    for stem, source in entry.also.items():
        scored[stem] = [_also(entry, run, stem, source) for run in runs]
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


def _numbers(results: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: value
        for name, value in results.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _also(entry: Entry, run: str, stem: str, source: str) -> dict[str, Any]:
    """The figures of a finetuned folder on further rows, taken once."""
    path = Path(run) / "eval" / f"{stem}.json"
    if path.is_file():
        return _kept(path)
    from plmctl.corpus.source import content_hash, resolve
    from plmctl.evaluation.measures import Subject, task
    from plmctl.tasks import uncertainty
    from plmctl.training.engine import make_accelerator

    say(f"scoring {run} on {source}")
    accelerator = make_accelerator(entry.config.compute)
    subject = Subject(str(Path(run) / "model"), entry.config.seed, 32, accelerator)
    examples, found, _ = task.answered(task.Config(data=(source,)), subject)
    document = {
        "kind": "eval",
        "model": subject.model,
        "data_sha256": content_hash(resolve((source,))),
        "versions": versions(),
        "results": {**examples.figures(found), "rows": len(found)},
        "uncertainty": uncertainty(examples, found),
    }
    write_results(Path(run), stem, document)
    return document


def _write_rows(folder: Path, entry: Entry, runs: Sequence[str]) -> None:
    """What each validation row is worth, the mean over the seeds: what suites are compared by."""
    several = [_kept(Path(run) / "eval" / "rows" / "valid.json") for run in runs]
    values = [sum(row) / len(row) for row in zip(*(one["values"] for one in several), strict=True)]
    write_results(folder, f"rows/{entry.task.name}", {**several[0], "values": values})


def _shape(model: str) -> list[int] | None:
    """Layers and hidden size, where the model's config says them."""
    from plmctl.modeling.auto import config_of

    config = config_of(model)
    layers = getattr(config, "num_hidden_layers", None)
    width = getattr(config, "hidden_size", None)
    return [int(layers), int(width)] if layers and width else None
