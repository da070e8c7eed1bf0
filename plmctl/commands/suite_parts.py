"""The parts of a suite that are scored without finetuning, and the file for its leaderboard.

``evaluate_suite`` calls it. Each part is an evaluation by a shipped config, in a folder of its own
in the suite's folder, as ``plmctl eval CONFIG`` writes it.
"""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl.commands.evaluate import (
    evaluated,
    evaluated_at_checkpoints,
    kept_results,
    read_series,
    run_of,
)
from plmctl.config.load import find_config
from plmctl.corpus.source import content_hash
from plmctl.errors import ConfigError, DataError, listed
from plmctl.evaluation.model import LoadedModel
from plmctl.families.base import get_family
from plmctl.files import CHECKSUM, read_json, write_atomically, writing
from plmctl.hashing import model_hashes
from plmctl.measures.base import AtCheckpoint
from plmctl.run.configs import EvalConfig, SuiteConfig, load
from plmctl.run.display import say
from plmctl.run.folder import is_finished, read_results, write_results
from plmctl.suites.base import Suite, SuitePart
from plmctl.suites.leaderboards import FAST, submission

if TYPE_CHECKING:
    from rich.table import Table

    from plmctl.commands.export import SavedCheckpoint
    from plmctl.config.sections import ComputeConfig


@dataclass(frozen=True)
class PartRun:
    """One part to run.

    Attributes:
        saved: The checkpoints that it is scored at; empty: the model.
    """

    part: SuitePart
    config: EvalConfig
    saved: tuple[SavedCheckpoint, ...] = ()


def parts_of(
    suite: Suite,
    family: str,
    requested: Sequence[str] | None,
    data: str | None,
    saved: Checkpoints,
) -> list[SuitePart]:
    """The parts to run, in the suite's order; a message names those that are left out, and why.

    Args:
        requested: Names of parts and tasks; None: all parts that are not run by request only.
        data: The data directory, in which hidden parts are looked for.
        saved: Those of the model's run that count, or why none does.

    Raises:
        ConfigError: A requested part does not support the family, or there are no checkpoints.
    """
    chosen, known = [], get_family(family)
    whole = f"{known.TITLE}'s likelihood is of whole sentences, not of a part after a context"
    for part in suite.parts:
        if part.asked_for if requested is None else part.name not in requested:
            continue
        if requested is None and part.hidden and not _matching(part.files, data):
            say(left_out(part.name, data, part.files[0], part.source))
            continue
        if not known.SCORES_PARTS and part.scores_parts:
            reason, message = whole, f"{part.name} does not support {family}: {whole}"
        elif part.at_checkpoints and isinstance(saved, str):
            reason = message = saved
        else:
            chosen.append(part)
            continue
        if requested is not None:
            raise ConfigError(f"--tasks: {message}", "leave it out")
        say(f"{part.name} is skipped: {reason}")
    return chosen


def left_out(name: str, data: str | None, place: str, source: str) -> str:
    """The line for a hidden task whose rows are not there."""
    return f"{name} is left out, for its rows were hidden: {data or 'DIR'}/{place} (from {source})"


def reported_scores(suite: Suite, data: str | None) -> dict[str, Any]:
    """What another program scored, in the form of a finetuned task's, as far as its file is there.

    Raises:
        DataError: A file of another form.
    """
    of = suite.reported
    if of is None:
        return {}
    path = Path(data or "DIR", of.file)
    if not path.is_file():
        say(f"{', '.join(of.names)}: not scored here; {of.source}: put it at {path}")
        return {}
    document: Any = read_json(path)
    scores: dict[str, Any] = {}
    for name in of.names:
        try:
            score = document[name][of.metric]
        except (KeyError, TypeError):
            score = None
        if not isinstance(score, int | float) or not -1 <= score <= 1:
            raise DataError(f"{path}: no {name}.{of.metric} from 0 to 1; expected one", of.source)
        scores[name] = {
            "runs": [],
            "data": content_hash((str(path),)),
            "scored": {"dev": [{"results": {of.metric: score}, "uncertainty": {}}]},
        }
    return scores


_FEWEST_CHECKPOINTS = 4  # a sigmoid has four parameters

Checkpoints = tuple["SavedCheckpoint", ...] | str
"""Checkpoints of a run, or why there are none to score."""


def checkpoints_of(model: str) -> Checkpoints:
    """The checkpoints of the model's run that the leaderboard takes, or all if it has none of them.

    A line says which of the leaderboard's are missing.
    """
    from plmctl.commands.export import saved_checkpoints
    from plmctl.run.sample_costs import BABYLM_WORDS

    hint = "pretrain with checkpoint.at=babylm"
    try:
        saved = saved_checkpoints(run_of(model))
    except ConfigError:
        return f"it needs the checkpoints of a run, and {model} is not in one that has them; {hint}"
    if any(one.words is None for one in saved):
        return f"the checkpoints of {model} do not say how many words they have seen; {hint}"
    seen = max(one.words or 0 for one in saved)
    small, million = 100_000_000, 1_000_000
    wanted = [
        f"chck_{words // million}M"
        for words in BABYLM_WORDS
        if words <= small or seen > small + million
    ]
    official = [one for one in saved if one.name in wanted]
    chosen = official or saved
    if len(chosen) < _FEWEST_CHECKPOINTS:
        return f"the run of {model} has {len(chosen)} checkpoints, which is too few; {hint}"
    if missing := [name for name in wanted if name not in {one.name for one in official}]:
        say(
            f"the run of {model} lacks {len(missing)} of the {len(wanted)} checkpoints that the "
            f"leaderboard takes: {listed(missing)}"
            + ("" if official else "; those that it has are scored instead")
        )
    return tuple(chosen)


def planned_parts(
    config: SuiteConfig,
    parts: Sequence[SuitePart],
    settings: Mapping[str, Sequence[str]],
    saved: Checkpoints,
) -> tuple[list[PartRun], list[str]]:
    """The parts with their configs, and a line for each one whose files are missing.

    Args:
        settings: ``KEY=VALUE`` of each part; ``compute`` of all of them.
        saved: See ``parts_of``.

    Raises:
        ConfigError: A setting is wrong.
    """
    planned, missing = [], []
    for part in parts:
        path = find_config(Path("configs/eval") / part.path, ("eval",))
        changes = []
        for key, patterns in _patterns(part, path).items():
            if files := _matching(patterns, config.data):
                changes.append(f"{key}={json.dumps(files)}")
                if part.older and (older := _first_match(part.older, files)):
                    missing.append(f"{part.name}: {older} is of an earlier set; {part.instead}")
            else:
                place = f"{config.data or 'DIR'}/{patterns[0]}"
                missing.append(f"{part.name}: {place} ({part.rows}); from {part.source}")
        changes += [
            f"model={json.dumps(config.model)}",
            f"run={json.dumps(f'{config.run}/{part.name}')}",
            *part.changes,
            *settings[part.name],
        ]
        at = saved if part.at_checkpoints and not isinstance(saved, str) else ()
        planned.append(PartRun(part, load("eval", path, changes), at))
    return planned, missing


def _patterns(part: SuitePart, path: Path) -> dict[str, Sequence[str]]:
    """The places of each measure's files in a data directory, by the key of its data."""
    if part.files:
        return {"measures.0.data": part.files}
    measures = load("eval", path).measures
    return {
        f"measures.{number}.data": [one.removeprefix("evaluation_data/") for one in measure.data]
        for number, measure in enumerate(measures)
    }


def missing_files(part: SuitePart, data: str | None) -> str:
    """The line about a part that has no files; empty: it has some."""
    if _matching(part.files, data):
        return ""
    return f"{part.name}: {data or 'DIR'}/{part.files[0]} ({part.rows}); from {part.source}"


def _matching(patterns: Sequence[str], data: str | None) -> list[str]:
    """The files in a data directory that the first pattern with any matches, sorted."""
    if data is None:
        return []
    matches = (sorted(glob.glob(str(Path(glob.escape(data)) / pattern))) for pattern in patterns)
    return next((files for files in matches if files), [])


def _first_match(pattern: str, files: Sequence[str]) -> str:
    """The first file that has a pattern, and what of it matches; empty: none has."""
    for file in files:
        if match := re.search(pattern, Path(file).read_text(encoding="utf-8", errors="replace")):
            return f"{file}, which has {match[0]},"
    return ""


def finish_part(one: PartRun) -> None:
    """Score a part, of the model or at every checkpoint; what is scored is kept."""
    if one.saved:
        evaluated_at_checkpoints(one.config, [saved.step for saved in one.saved])
    else:
        evaluated(one.config)


def part_scores(one: PartRun) -> dict[str, Any] | None:
    """The results of a part in the form of a finetuned task's; None if it is not finished."""
    if not is_finished(Path(one.config.run)):
        return None
    if len(one.config.measures) > 1:
        names = [name for measure in one.config.measures for name in measure.data]
        rows = {"data": content_hash(names), "checkpoints": _fast_rows(one)}
        return {"runs": [one.config.run], "scored": {}, **rows}
    (measure,) = one.config.measures
    path = Path(one.config.run) / "eval" / f"{measure.name}.json"
    results = read_results(path)["results"]
    numbers = {
        name: value
        for name, value in results.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return {
        "runs": [one.config.run],
        "setting": {},
        "settings_tried": 1,
        "data": content_hash(measure.data),
        "groups": results.get("groups", []),
        "items": results.get("pairs", results.get("items")),
        "scored": {"dev": [{"results": numbers, "uncertainty": _uncertainty(numbers)}]},
    }


def _fast_rows(one: PartRun) -> list[dict[str, Any]]:
    """The scores of each checkpoint, in per cent, by the leaderboard's names."""
    series = read_series(one.config, one.saved)
    rows = []
    for of in zip(*series.values(), strict=True):
        scores = {
            name: 100 * at.results.get("reading", at.results.get("accuracy/macro", 0.0))
            for name, at in zip(FAST, of, strict=True)
        }
        rows.append({"checkpoint": of[0].name, "words": of[0].words, **scores})
    return rows


_NORMAL = 1.96


def _uncertainty(numbers: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """The standard errors of what has some, with 1.96 of them to both sides."""
    errors = {}
    for name, value in numbers.items():
        first, slash, rest = name.partition("/")  # accuracy_se/macro is that of accuracy/macro
        error = numbers.get(f"{first}_se{slash}{rest}")
        if error is not None:
            margin = _NORMAL * error
            errors[name] = {"se": error, "low": value - margin, "high": value + margin}
    return errors


def group_tables(tasks: Mapping[str, Any]) -> list[Table]:
    """A table per part that has groups, such as the phenomena of BLiMP, or several checkpoints."""
    from plmctl.reporting.tables import rows_table

    tables = []
    for name, task in tasks.items():
        rows = [
            [row["group"], 100 * row["accuracy"], _per_cent(row["accuracy_se"]), row["items"]]
            for row in task.get("groups", [])
        ]
        if rows:
            tables.append(rows_table(f"{name} by group", ["", "accuracy", "se", "items"], rows))
        if at_checkpoints := task.get("checkpoints"):
            values = [list(row.values()) for row in at_checkpoints]
            tables.append(rows_table(f"{name}, per cent", list(at_checkpoints[0]), values))
    return tables


def _per_cent(value: float | None) -> float | str:
    return "" if value is None else 100 * value


# --- The file for the leaderboard ---


@dataclass(frozen=True)
class LabelledFile:
    """Rows that a finetuned model answers for the leaderboard."""

    task: str
    name: str
    run: str
    source: tuple[str, ...]
    compute: ComputeConfig


def write_submission(
    suite: Suite,
    folder: Path,
    scores: Mapping[str, float],
    parts: Sequence[PartRun],
    files: Iterable[LabelledFile],
) -> Path | None:
    """Write ``submission.json``, in the form of the suite's leaderboard.

    Args:
        scores: By column, in per cent.

    Returns:
        The path; None if the suite has no leaderboard, or nothing is finished.
    """
    if suite.leaderboard is None:
        return None
    predictions: dict[str, dict[str, Sequence[Any]]] = {}
    series: dict[str, list[Sequence[AtCheckpoint]]] = {}
    for one in parts:
        if one.saved:
            if is_finished(Path(one.config.run)):
                series[one.part.name] = list(read_series(one.config, one.saved).values())
            continue
        (measure,) = one.config.measures
        path = Path(one.config.run) / "eval" / "predictions" / f"{measure.name}.json"
        if is_finished(Path(one.config.run)) and path.is_file():
            answers = read_json(path)
            predictions[one.part.name] = {k: v for k, v in answers.items() if k != CHECKSUM}
    for file in files:
        predictions.setdefault(file.task, {})[file.name] = _label_numbers(file)
    document = submission(suite, scores, predictions, series)
    if not document:
        return None
    with writing(folder / "submission.json") as path:
        write_atomically(path, json.dumps(document, ensure_ascii=False) + "\n")
    return path


def _label_numbers(file: LabelledFile) -> list[int]:
    """The numbers of the labels that a finetuned model gives, computed once; -1: no label."""
    from plmctl.measures.task import Config, FinetunedTask
    from plmctl.tasks.base import read_finetuned
    from plmctl.training.engine import make_accelerator

    name, folder = f"predictions/{file.name}", str(Path(file.run) / "model")
    path = Path(file.run) / "eval" / f"{name}.json"
    hashes = {**model_hashes(folder), "data": content_hash(file.source)}
    document = kept_results(path, hashes)
    if document is None:
        say(f"predictions of {file.run} on {', '.join(file.source)}")
        model = LoadedModel(folder, make_accelerator(file.compute))
        answers = FinetunedTask(Config(data=file.source)).predict(model).answers
        labels = read_finetuned(folder).labels
        numbers = [_number(str(answer["prediction"]), labels) for answer in answers]
        document = {"kind": "predictions", "hashes": hashes, "results": numbers}
        write_results(Path(file.run), name, document)
    given: list[int] = document["results"]
    return given


def _number(label: str, labels: Sequence[str]) -> int:
    if label.removeprefix("-").isdigit():
        return int(label)
    return labels.index(label) if label in labels else -1
