"""The parts of a suite that are scored without finetuning, and the file for its leaderboard.

``evaluate_suite`` calls it. Each part is an evaluation by a shipped config, in a folder of its own
in the suite's folder, as ``plmctl eval CONFIG`` writes it.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl.commands.evaluate import kept_results
from plmctl.config.load import find_config
from plmctl.corpus.source import content_hash
from plmctl.errors import ConfigError
from plmctl.evaluation.model import LoadedModel
from plmctl.families.base import get_family
from plmctl.files import CHECKSUM, read_json, write_atomically, writing
from plmctl.hashing import model_hashes
from plmctl.run.configs import EvalConfig, SuiteConfig, load
from plmctl.run.display import say
from plmctl.run.folder import is_finished, read_results, write_results
from plmctl.suites.base import Suite, SuitePart
from plmctl.suites.leaderboards import submission

if TYPE_CHECKING:
    from rich.table import Table

    from plmctl.config.sections import ComputeConfig


@dataclass(frozen=True)
class PartRun:
    """One part to run."""

    part: SuitePart
    config: EvalConfig


def parts_of(suite: Suite, family: str, requested: Sequence[str] | None) -> list[SuitePart]:
    """The parts to run, in the suite's order; a message names those that are left out, and why.

    Args:
        requested: Names of parts and tasks; None: all parts that are not run by request only.

    Raises:
        ConfigError: A requested part does not support the family.
    """
    chosen, known = [], get_family(family)
    reason = f"{known.TITLE}'s likelihood is of whole sentences, not of a part after a context"
    for part in suite.parts:
        if part.asked_for if requested is None else part.name not in requested:
            continue
        if known.SCORES_PARTS or not part.scores_parts:
            chosen.append(part)
            continue
        if requested is not None:
            raise ConfigError(
                f"--tasks: {part.name} does not support {family}: {reason}", "leave it out"
            )
        say(f"{part.name} is skipped: {reason}")
    return chosen


def planned_parts(
    config: SuiteConfig, parts: Sequence[SuitePart], settings: Mapping[str, Sequence[str]]
) -> tuple[list[PartRun], list[str]]:
    """The parts with their configs, and a line for each one whose files are missing.

    Args:
        settings: ``KEY=VALUE`` of each part; ``compute`` of all of them.

    Raises:
        ConfigError: A setting is wrong.
    """
    planned, missing = [], []
    for part in parts:
        files = part_files(part, config.data)
        if not files:
            at = f"{config.data}/{part.files[0]}" if config.data else f"DIR/{part.files[0]}"
            missing.append(f"{part.name}: {at} ({part.rows}); from {part.source}")
        changes = [
            f"model={json.dumps(config.model)}",
            f"run={json.dumps(f'{config.run}/{part.name}')}",
            *([f"measures.0.data={json.dumps(files)}"] if files else []),
            *part.changes,
            *settings[part.name],
        ]
        path = find_config(Path("configs/eval") / part.path, ("eval",))
        planned.append(PartRun(part, load("eval", path, changes)))
    return planned, missing


def part_files(part: SuitePart, data: str | None) -> list[str]:
    """The files of a part in a data directory, sorted; empty if there are none."""
    if data is None:
        return []
    matches = (sorted(glob.glob(str(Path(glob.escape(data)) / pattern))) for pattern in part.files)
    return next((files for files in matches if files), [])


def part_scores(one: PartRun) -> dict[str, Any] | None:
    """The results of a part in the form of a finetuned task's; None if it is not finished."""
    if not is_finished(Path(one.config.run)):
        return None
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


_NORMAL = 1.96


def _uncertainty(numbers: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """The standard errors of accuracies, with 1.96 of them to both sides."""
    errors = {}
    for name, value in numbers.items():
        error = numbers.get(name.replace("accuracy", "accuracy_se", 1))
        if name.startswith("accuracy") and not name.startswith("accuracy_se") and error is not None:
            margin = _NORMAL * error
            errors[name] = {"se": error, "low": value - margin, "high": value + margin}
    return errors


def group_tables(tasks: Mapping[str, Any]) -> list[Table]:
    """A table per part that has groups, such as the phenomena of BLiMP."""
    from plmctl.reporting.tables import rows_table

    tables = []
    for name, task in tasks.items():
        rows = [
            [row["group"], 100 * row["accuracy"], _per_cent(row["accuracy_se"]), row["items"]]
            for row in task.get("groups", [])
        ]
        if rows:
            tables.append(rows_table(f"{name} by group", ["", "accuracy", "se", "items"], rows))
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
    for one in parts:
        (measure,) = one.config.measures
        path = Path(one.config.run) / "eval" / "predictions" / f"{measure.name}.json"
        if is_finished(Path(one.config.run)) and path.is_file():
            answers = read_json(path)
            predictions[one.part.name] = {k: v for k, v in answers.items() if k != CHECKSUM}
    for file in files:
        predictions.setdefault(file.task, {})[file.name] = _label_numbers(file)
    document = submission(suite, scores, predictions)
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
