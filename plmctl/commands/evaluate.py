"""``plmctl eval``: a model folder in, figures out."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl.corpus.source import content_hash, resolve
from plmctl.errors import ConfigError
from plmctl.evaluation.model import EvaluatedModel
from plmctl.measures.base import PER_ITEM, get_measure
from plmctl.reporting.tables import classification_tables, rows_table
from plmctl.run import launch
from plmctl.run.configs import EvalConfig
from plmctl.run.display import say, show_result
from plmctl.run.folder import AtWork, open_run, versions, write_environment, write_results
from plmctl.run.preflight import check_model

if TYPE_CHECKING:
    from accelerate import Accelerator
    from rich.table import Table


def run(config: EvalConfig, *, at_checkpoints: bool, fresh: bool, as_json: bool) -> None:
    """Take every measure; those that a cut-short evaluation has taken already are kept.

    Args:
        config: The model and the measures.
        at_checkpoints: Measure every checkpoint that the model's run still has as well.
        fresh: Move the folder aside, if it is there.
        as_json: Print one JSON document.
    """
    from plmctl.training.engine import make_accelerator

    source = _run_of(config.model) if at_checkpoints else None
    if source is None:
        check_model(config.model)
    folder = open_run(config, config.run, fresh=fresh)
    with AtWork(folder) if launch.is_main() else nullcontext() as work:
        accelerator = make_accelerator(config.compute)
        write_environment(folder, {})
        if source is not None:
            _over_time(config, folder, source, accelerator, as_json=as_json)
        else:
            _once(config, folder, accelerator, as_json=as_json)
        if work is not None:
            made = sorted((folder / "eval").glob("*.json"))
            work.promise([f"eval/{path.name}" for path in made])
            work.finish()


def _once(config: EvalConfig, folder: Path, accelerator: "Accelerator", *, as_json: bool) -> None:
    """The model by every measure: its tables."""
    results = _measured(config, folder, config.model, accelerator)
    tables: list[Table] = []
    for name, found in results.items():
        tables += classification_tables(f"{name} of {config.model}", found)
    show_result({"model": config.model, "results": results}, tables, as_json=as_json)


def _run_of(model: str) -> Path:
    """The run folder of a model: the folder itself, or the one that its ``model/`` is in."""
    folder = Path(model)
    if (folder / "checkpoints").is_dir():
        return folder
    if (folder.parent / "checkpoints").is_dir():
        return folder.parent
    raise ConfigError(
        f"{model}: no checkpoints beside it", "name the run folder of a pretraining as `model`"
    )


def _over_time(
    config: EvalConfig, folder: Path, source: Path, accelerator: "Accelerator", *, as_json: bool
) -> None:
    """Every checkpoint by every measure: a table a measure, a row a step."""
    from plmctl.commands.export import checkpoints, exported

    found: dict[int, dict[str, Any]] = {}
    for step, checkpoint in sorted(checkpoints(source).items()):
        with exported(source, checkpoint) as model:
            found[step] = _measured(config, folder, model, accelerator, step)
    tables = [
        _steps_table(
            f"{name} of {source}", {step: results[name] for step, results in found.items()}
        )
        for name in next(iter(found.values()))
    ]
    show_result({"model": str(source), "steps": found}, tables, as_json=as_json)


def _measured(
    config: EvalConfig,
    folder: Path,
    model: str,
    accelerator: "Accelerator",
    step: int | None = None,
) -> dict[str, Any]:
    """The figures of every measure by its name, taken or read from ``eval/``."""
    subject = EvaluatedModel(model, config.seed, config.batch_size, accelerator)
    results: dict[str, Any] = {}
    for number, asked in enumerate(config.measures, 1):
        name = asked.name if asked.name not in results else f"{asked.name}-{number}"
        file = name if step is None else f"{name}-step-{step:06d}"
        path = folder / "eval" / f"{file}.json"
        of = config.model if step is None else f"{config.model}, step {step:,}"
        if not path.is_file():
            say(f"measuring {asked.name} of {of}")
            figures = get_measure(asked.name).measure(asked, subject)
            document = {
                "kind": "eval",
                "measure": asked.model_dump(),
                "model": of,
                "seed": config.seed,
                "data_sha256": content_hash(resolve(getattr(asked, "data", ()))),
                "versions": versions(),
            }
            for part, each in figures.pop(PER_ITEM, {}).items():
                write_results(
                    folder, f"rows/{file}-{part}" if part else f"rows/{file}", each.document()
                )
            write_results(folder, file, {**document, "results": figures})
        results[name] = json.loads(path.read_text(encoding="utf-8"))["results"]
    return results


def _steps_table(title: str, results: dict[int, dict[str, Any]]) -> "Table":
    """The figures that are numbers, a row a step."""
    names = [
        name
        for name, value in next(iter(results.values())).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    rows = [[f"{step:,}", *(found[name] for name in names)] for step, found in results.items()]
    return rows_table(title, ["step", *names], rows)
