"""``plmctl eval``: measure a model folder, or every checkpoint of its run."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl.commands.evaluate_yardstick import counted_beside
from plmctl.config.base import MeasureConfig
from plmctl.config.document import read_document
from plmctl.corpus.source import content_hash
from plmctl.errors import ConfigError, DataError, listed
from plmctl.evaluation.model import LoadedModel
from plmctl.families.base import NO_LIMIT
from plmctl.files import read_checked, read_json
from plmctl.hashing import changed, digest_of_json, digest_of_present, model_hashes
from plmctl.measures.base import (
    AtCheckpoint,
    Measure,
    ObjectiveMeasureConfig,
    RawTextConfig,
    get_measure,
)
from plmctl.reporting.run_files import yardstick_sentence
from plmctl.reporting.tables import classification_tables, rows_table
from plmctl.run import launch
from plmctl.run.configs import EvalConfig
from plmctl.run.display import say, show_result
from plmctl.run.folder import (
    AtWork,
    open_run,
    read_results,
    versions,
    write_environment,
    write_results,
)
from plmctl.run.named_model import named_model

if TYPE_CHECKING:
    from accelerate import Accelerator
    from rich.table import Table

    from plmctl.commands.export import SavedCheckpoint


def run(config: EvalConfig, *, at_checkpoints: bool, fresh: bool, as_json: bool) -> None:
    """Run every measure; results of the same model and the same data are kept.

    Args:
        at_checkpoints: Measure every checkpoint that the model's run still has, not the model.
        fresh: Move the folder aside, if it exists.
    """
    if not at_checkpoints:
        results = evaluated(config, fresh=fresh)
        tables = [
            table
            for name, measured in results.items()
            for table in classification_tables(f"{name} of {config.model}", measured)
        ]
        show_result({"model": config.model, "results": results}, tables, as_json=as_json)
        for measured in results.values():
            if line := yardstick_sentence(measured):
                say(line)
        return
    _show_series(config, *evaluated_at_checkpoints(config, fresh=fresh), as_json=as_json)


def evaluated(config: EvalConfig, *, fresh: bool = False) -> dict[str, Any]:
    """Run every measure of the model, and return the results by measure."""
    named_model(config.model)
    with _evaluation(config, fresh=fresh) as (folder, accelerator):
        model = _loaded(config, config.model, accelerator)
        return _results(config, folder, model, config.model)


def _loaded(config: EvalConfig, folder: str, accelerator: "Accelerator") -> LoadedModel:
    return LoadedModel(folder, accelerator, config.batch_size, both_sides=config.both_sides)


@contextmanager
def _evaluation(config: EvalConfig, *, fresh: bool) -> Iterator[tuple[Path, "Accelerator"]]:
    """The run folder and the device; the run is finished if the block ends without an error."""
    from plmctl.training.engine import make_accelerator

    folder = open_run(config, config.run, fresh=fresh)
    with AtWork(folder) if launch.is_main() else nullcontext() as work:
        accelerator = make_accelerator(config.compute)
        write_environment(folder, {})
        yield folder, accelerator
        if work is not None:
            written = sorted((folder / "eval").glob("*.json"))
            work.promise([f"eval/{path.name}" for path in written])
            work.finish()


def run_of(model: str) -> Path:
    """The run folder of a model: the folder itself, or the one that its ``model/`` is in.

    Raises:
        ConfigError: There are no checkpoints.
    """
    for folder in (Path(model), Path(model).parent):
        if (folder / "checkpoints").is_dir():
            return folder
    raise ConfigError(
        f"{model}: there are no checkpoints beside it",
        "set `model` to the run folder of a pretraining",
    )


def evaluated_at_checkpoints(
    config: EvalConfig, steps: Sequence[int] = (), *, fresh: bool = False
) -> tuple[dict[str, list[AtCheckpoint]], dict[str, dict[str, Any]]]:
    """Run every measure at every checkpoint, and write what the checkpoints give together.

    Args:
        steps: Those of the checkpoints; empty: all.

    Returns:
        By measure in the order of the steps; and what they give together, of some measures.

    Raises:
        ConfigError: A measure needs the words that the checkpoints have seen, which are unknown.
    """
    from plmctl.commands.export import exported, saved_checkpoints

    pretraining = run_of(config.model)
    saved = [one for one in saved_checkpoints(pretraining) if not steps or one.step in steps]
    measures = [get_measure(one.name)(one) for one in config.measures]
    for measure in measures:
        if measure.OVER_CHECKPOINTS and any(one.words is None for one in saved):
            raise ConfigError(
                f"{pretraining}: its checkpoints do not say how many words they have seen, which "
                f"{measure.config.name} needs",
                "pretrain with checkpoint.at=babylm, which counts them or says why it cannot",
            )
    with _evaluation(config, fresh=fresh) as (folder, accelerator):
        for one in saved:
            with exported(pretraining, one.path) as exported_folder:
                model = _loaded(config, exported_folder, accelerator)
                title = f"{config.model}, step {one.step:,}"
                _results(config, folder, model, title, _suffix(one.step))
        series = read_series(config, saved)
        together = {
            name: _together(folder, name, measure, of)
            for measure, (name, of) in zip(measures, series.items(), strict=True)
            if measure.OVER_CHECKPOINTS
        }
    return series, together


def _together(
    folder: Path, name: str, measure: Measure[Any], series: Sequence[AtCheckpoint]
) -> dict[str, Any]:
    """What the checkpoints give together, computed now or read from ``eval/``."""
    given = [[one.name, one.words, one.predictions] for one in series]
    hashes = {"checkpoints": digest_of_json(given), "data": content_hash(measure.config.data)}
    kept = kept_results(folder / "eval" / f"{name}.json", hashes)
    if kept is None:
        document = {
            "kind": "eval",
            "measure": measure.config.model_dump(),
            "hashes": hashes,
            "versions": versions(),
            "results": measure.over_checkpoints(series),
        }
        kept = read_results(write_results(folder, name, document))
    results: dict[str, Any] = kept["results"]
    return results


def read_series(
    config: EvalConfig, saved: Sequence["SavedCheckpoint"]
) -> dict[str, list[AtCheckpoint]]:
    """What is written of each measure at checkpoints, by measure, in the order of the steps."""
    folder = Path(config.run) / "eval"
    series: dict[str, list[AtCheckpoint]] = {}
    for name in measure_names(config.measures):
        series[name] = []
        for one in saved:
            path = folder / "predictions" / f"{name}{_suffix(one.step)}.json"
            given = read_json(path) if path.is_file() else {}
            results = read_results(folder / f"{name}{_suffix(one.step)}.json")["results"]
            series[name].append(AtCheckpoint(one.step, one.name, one.words, results, given))
    return series


def measure_names(measures: Sequence[MeasureConfig]) -> list[str]:
    """The name of each measure in ``eval/``; the second of one name has its number."""
    names: list[str] = []
    for number, one in enumerate(measures, 1):
        names.append(one.name if one.name not in names else f"{one.name}-{number}")
    return names


def _suffix(step: int) -> str:
    return f"-step-{step:06d}"


def _show_series(
    config: EvalConfig,
    series: Mapping[str, Sequence[AtCheckpoint]],
    together: Mapping[str, Mapping[str, Any]],
    *,
    as_json: bool,
) -> None:
    """A table per measure, a row per step; and what the checkpoints give together."""
    pretraining = run_of(config.model)
    document: dict[str, Any] = {"model": str(pretraining), "steps": {}}
    tables = []
    for name, of in series.items():
        for one in of:
            document["steps"].setdefault(one.step, {})[name] = one.results
        title = f"{name} of {pretraining}"
        tables.append(_steps_table(title, {one.step: one.results for one in of}))
        if name in together:
            numbers = list(_numbers(together[name]).items())
            tables.append(rows_table(f"{title}, all checkpoints", ["", ""], numbers))
    if together:
        document["together"] = together
    show_result(document, tables, as_json=as_json)


def _results(
    config: EvalConfig, folder: Path, model: LoadedModel, title: str, suffix: str = ""
) -> dict[str, Any]:
    """The results of every measure by its name, measured now or read from ``eval/``.

    Args:
        title: The name of the model in results and messages.
        suffix: Added to the names of the files.
    """
    results: dict[str, Any] = {}
    longest, warned = longest_trained(config.model), False
    hashes_of_model = model_hashes(model.name)
    for name, measure in zip(measure_names(config.measures), config.measures, strict=True):
        path = folder / "eval" / f"{name}{suffix}.json"
        hashes = {**hashes_of_model, "data": _data_hash(measure, path)}
        if metrics := digest_of_present(measure.model_dump().get("metrics", ())):
            hashes["metric files"] = metrics
        if training_text := measure.model_dump().get("train"):
            hashes["training text"] = content_hash(training_text)
        kept = kept_results(path, hashes)
        if kept is None:
            say(f"measuring {measure.name} of {title}")
            window = window_of(measure, model)
            if not warned and longest is not None and window > longest:
                warned = True
                say(
                    f"{measure.name} reads {window:,} tokens at once, but the model was trained on "
                    f"{longest:,} at most: to read only as many, set seq_len: {longest}"
                )
            measurement = get_measure(measure.name)(measure).measure(model, config.seed)
            model.say_unknown(f"what {name} reads")
            if measurement.answered and not suffix:
                yardsticks = counted_beside(model.name, measurement.answered, measurement.results)
                measurement.results.update(yardsticks)
            for item, scores in measurement.per_item.items():
                rows = f"rows/{name}{suffix}-{item}" if item else f"rows/{name}{suffix}"
                write_results(folder, rows, scores.document())
            if measurement.predictions:
                write_results(folder, f"predictions/{name}{suffix}", measurement.predictions)
            document = {
                "kind": "eval",
                "measure": measure.model_dump(),
                "model": title,
                "seed": config.seed,
                "hashes": hashes,
                "versions": versions(),
                "results": measurement.results,
            }
            kept = read_results(write_results(folder, f"{name}{suffix}", document))
        results[name] = kept["results"]
    return results


def _data_hash(measure: MeasureConfig, path: Path) -> str | None:
    """The hash of what a measure reads; None if it is gone, which the measure itself refuses."""
    try:
        return content_hash(measure.data)
    except DataError:
        if path.is_file():
            raise
        return None


def kept_results(
    path: Path, hashes: Mapping[str, str | None], otherwise: str = "it is measured again"
) -> dict[str, Any] | None:
    """What ``write_results`` wrote earlier; None, and a line, if it must be measured again.

    Args:
        hashes: Of the model and the data as they are now.
    """
    if not path.is_file():
        return None
    document = read_checked(path)
    differ, unknown = changed((document or {}).get("hashes"), hashes)
    if document is not None and not differ and not unknown:
        return document
    if document is None:
        why = "edited, damaged, or written by an older version of plmctl"
    elif differ:
        why = f"the {listed(differ)} changed since"
    else:
        why = f"it has no hash of the {listed(unknown)}"
    say(f"{path}: {why}: {otherwise}")
    return None


def longest_trained(model: str) -> int | None:
    """The longest ``seq_len`` of the pretraining that wrote a model; None if it is unknown."""
    for folder in (Path(model), Path(model).parent):
        path = folder / "config.yaml"
        if path.is_file():
            train = read_document(path).data.get("train") or {}
            return max((phase["seq_len"] for phase in train.get("phases") or ()), default=None)
    return None


def window_of(measure: MeasureConfig, model: LoadedModel) -> int:
    """Tokens that a measure of running text reads at once.

    0 for other measures, and for networks without learned positions, which have no longest input.
    """
    if not isinstance(measure, ObjectiveMeasureConfig | RawTextConfig):
        return 0
    if model.context == NO_LIMIT:
        return 0
    if measure.seq_len is not None:
        return measure.seq_len
    causal = "lm" in model.family.HEADS
    return model.context if causal else min(128, model.context)


def _steps_table(title: str, results: Mapping[int, Mapping[str, Any]]) -> "Table":
    """The metrics that are numbers, a row per step."""
    names = list(_numbers(next(iter(results.values()))))
    rows = [[f"{step:,}", *(one[name] for name in names)] for step, one in results.items()]
    return rows_table(title, ["step", *names], rows)


def _numbers(results: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are numbers."""
    return {
        name: value
        for name, value in results.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
