"""``plmctl run``: all that ``plmctl init`` wrote, from the tokenizer to the report.

Each stage is the command that the user could type, with its output in ``runs/logs/``. What is
finished is left alone, so that the same command continues.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from plmctl.config.load import COMMANDS, Kind
from plmctl.config.units import Budget
from plmctl.corpus.source import resolve
from plmctl.errors import ConfigError, PlmError, Preempted
from plmctl.files import read_json, write_atomically, writing
from plmctl.formatting import format_duration, format_value, printable_json
from plmctl.run.configs import FinetuneConfig, load
from plmctl.run.display import say, show_result
from plmctl.run.folder import check_run
from plmctl.run.stages import Stage, StageConfig, StageProcess, ending
from plmctl.run.stop import StopRequest, stopping_at_once

ORDER: tuple[Kind, ...] = ("tokenizer", "pretrain", "eval", "finetune")

_ABOUT = {
    "tokenizer": "learns a vocabulary from the text",
    "pretrain": "learns from the text, without labels",
    "eval": "measures the model on held-out text",
    "finetune": "learns from the labelled rows",
}

_PRETRAINING = 0.8  # of what a budget has left: evaluation and finetuning need the rest
_STARTING = 20  # seconds of a pretraining that are not steps: its start, samples and report

_POLL = 0.1  # seconds


@dataclass
class Notes:
    """What is kept in ``run.json`` of the folder between two starts.

    Attributes:
        budget: Seconds for all stages; None: no limit.
        pretraining: The seconds of it that pretraining got at its start.
        spent: Seconds by stage, over all starts.
    """

    budget: float | None = None
    pretraining: int | None = None
    spent: dict[str, float] = field(default_factory=dict)

    def is_used_up(self) -> bool:
        """Whether no time is left."""
        return self.budget is not None and sum(self.spent.values()) >= self.budget


def run(folder: Path, *, until: str | None, budget: str | None, fresh: bool, as_json: bool) -> None:
    """Run the stages that are not finished, write the report, and print the results.

    Args:
        until: The last stage; None: all.
        budget: Time for all stages together.
        fresh: Move the run folders aside.

    Raises:
        ConfigError: The folder has no configs, one of them is wrong, or a run is of another config.
        PlmError: A stage failed; its message and exit code.
        Preempted: A signal stopped a stage; the same command continues.
    """
    _check_folder(folder)
    notes = Notes() if fresh else _read_notes(folder)
    notes.budget = _seconds(budget, notes)
    stages, left_out = _plan(folder, until, notes)
    for stage in stages:
        check_run(stage.config, stage.config.run, fresh=fresh)
    report = folder / "report.html"
    if fresh or not report.is_file() or not all(stage.is_finished() for stage in stages):
        try:
            with stopping_at_once():
                left_out |= _run_stages(folder, stages, notes, fresh=fresh)
                _write_report(stages, report)
        except PlmError as error:
            again = f"to continue: plmctl run {folder}" + (f" --budget {budget}" if budget else "")
            stopped = isinstance(error, Preempted)  # whose hint is the same, without the command
            error.hint = again if stopped or not error.hint else f"{error.hint}\n  {again}"
            raise
    _show(folder, stages, left_out, notes, report, as_json=as_json)


def _check_folder(folder: Path) -> None:
    """Refuse what ``plmctl init`` did not write."""
    if folder.is_file():
        raise ConfigError(
            f"{folder}: a file; run takes the folder of the configs",
            f"of one config: `plmctl COMMAND {folder}`",
        )
    if not folder.is_dir():
        raise ConfigError(
            f"{folder}: no such folder", f"`plmctl init CORPUS --out {folder}` writes one"
        )
    if not any((folder / f"{kind}.yaml").is_file() for kind in ORDER):
        names = ", ".join(f"{kind}.yaml" for kind in ORDER)
        raise ConfigError(
            f"{folder}: none of {names} is in this folder",
            f"if it has your text: `plmctl init {folder}` writes them, to a folder of their own",
        )


def _read_notes(folder: Path) -> Notes:
    path = folder / "run.json"
    return Notes(**read_json(path, "budget", "pretraining", "spent")) if path.is_file() else Notes()


def _seconds(budget: str | None, notes: Notes) -> float | None:
    """The budget in seconds, which pretraining fixes at its start."""
    if budget is None:
        return None
    wanted = Budget.of(budget, "--budget")
    if wanted.unit != "seconds":
        raise ConfigError(
            f"--budget {budget}: of several stages it is a time, such as 2h or 90m",
            "tokens, words or FLOPs of the pretraining: train.budget in pretrain.yaml",
        )
    seconds = float(wanted.number)
    if notes.pretraining is not None and notes.budget not in (None, seconds):
        raise ConfigError(
            f"--budget {budget}: the pretraining began with "
            f"{format_duration(notes.budget or 0)} for all stages, and keeps its part",
            "give the same one, or --fresh to start from scratch",
        )
    return seconds


def _plan(folder: Path, until: str | None, notes: Notes) -> tuple[list[Stage], dict[str, str]]:
    """The stages in their order, and why others are left out.

    Raises:
        ConfigError: No such stage, or a config is wrong.
    """
    if until is not None and until not in ORDER:
        raise ConfigError(f"--until {until}: no such stage", f"one of {', '.join(ORDER)}")
    stages, left_out = list[Stage](), dict[str, str]()
    for kind in ORDER[: None if until is None else ORDER.index(until) + 1]:
        path = folder / f"{kind}.yaml"
        if not path.is_file():
            left_out[kind] = f"there is no {path}"
            continue
        stage = _stage(kind, path, notes)
        if kind == "finetune" and (missing := _missing_rows(cast(FinetuneConfig, stage.config))):
            left_out[kind] = f"{missing}; name your labelled rows in {path}"
        else:
            stages.append(stage)
    return stages, left_out


def _stage(kind: Kind, path: Path, notes: Notes) -> Stage:
    own = kind == "pretrain" and notes.pretraining is not None
    keys = (f"train.budget={notes.pretraining}s",) if own else ()
    config = cast(StageConfig, load(kind, path, keys))
    return Stage("", kind, (COMMANDS[kind], str(path), *keys), path, config)


def _missing_rows(config: FinetuneConfig) -> str:
    """Which labelled rows are missing, as in the template of ``plmctl init``."""
    try:
        resolve(config.data.train)
    except PlmError as error:
        return error.message
    return ""


# --- Running ---


def _run_stages(folder: Path, stages: list[Stage], notes: Notes, *, fresh: bool) -> dict[str, str]:
    """Run the stages one after the other, a line each.

    Returns:
        Those that were not started, because the budget is used up.
    """
    say(f"what the stages print: {stages[0].log.parent}/; how far one is: plmctl status {folder}")
    at_work: list[StageProcess] = []
    with StopRequest() as stop, ending(at_work):
        for number, stage in enumerate(stages, 1):
            title = f"{number}/{len(stages)}  {stage.name:9}  {_ABOUT[stage.name]:36}"
            if stage.is_finished() and not fresh:
                say(f"{title}  finished before")
                continue
            if notes.is_used_up():
                why = f"the budget of {format_duration(cast(float, notes.budget))} is used up"
                say(f"{title}  not started: {why}")
                hint = f"{why}; without --budget the same command runs it"
                return {one.name: hint for one in stages[number - 1 :]}
            stage = _with_budget(stage, notes)
            stages[number - 1] = stage
            before = notes.spent.get(stage.name, 0.0)
            process = StageProcess(stage, fresh=fresh)
            at_work.append(process)
            with _shown(stage, title):
                while process.is_running():
                    stop.check()
                    if process.seconds + before > notes.spent.get(stage.name, 0.0) + 10:
                        _note(folder, notes, stage, before + process.seconds)
                    time.sleep(_POLL)
            at_work.remove(process)
            _note(folder, notes, stage, before + process.seconds)
            process.check(verbose=False)
            say(f"{title}  {format_duration(notes.spent[stage.name])}")
    return {}


def _with_budget(stage: Stage, notes: Notes) -> Stage:
    """A pretraining that begins, with its part of what is left."""
    if stage.name != "pretrain" or notes.budget is None or notes.pretraining is not None:
        return stage
    if (stage.run / "checkpoints").is_dir():  # it was started without one
        return stage
    left = notes.budget - sum(notes.spent.values())
    notes.pretraining = max(1, int(_PRETRAINING * left) - _STARTING)
    return _stage("pretrain", stage.path, notes)


def _note(folder: Path, notes: Notes, stage: Stage, seconds: float) -> None:
    notes.spent[stage.name] = seconds
    with writing(folder):
        write_atomically(folder / "run.json", printable_json(asdict(notes)) + "\n")


@contextmanager
def _shown(stage: Stage, title: str) -> Iterator[None]:
    """A live line of how far a stage is, on a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    class Line:
        """Drawn again with each refresh; the files are read every few seconds."""

        def __init__(self) -> None:
            self.spinner, self.next = Spinner("dots", Text(title)), 0.0

        def __rich__(self) -> Spinner:
            if time.monotonic() > self.next:
                self.next = time.monotonic() + 5
                self.spinner.update(text=Text(f"{title}  {_how_far(stage)}"))
            return self.spinner

    with Live(Line(), console=Console(stderr=True), transient=True, refresh_per_second=4):
        yield


def _how_far(stage: Stage) -> str:
    """``1,200 of 8,000 steps, loss 4.312, about 0:41:10 left``; empty before there is a step."""
    from plmctl.reporting.board import status_of

    with suppress(PlmError, OSError):
        status = status_of(stage.run)
        if status["step"] and status["total"]:
            loss = "" if status["loss"] is None else f", loss {status['loss']:.3f}"
            left = "" if status["eta"] is None else f", {format_duration(status['eta'])} left"
            return f"{status['step']:,.0f} of {status['total']:,} steps{loss}{left}"
    return ""


def _write_report(stages: list[Stage], path: Path) -> None:
    from plmctl.reporting.report import write_report

    runs = [one.run for one in stages if one.name in ("pretrain", "finetune") and one.is_finished()]
    if runs:
        with writing(path):
            write_report(runs, path)


# --- The results ---


_METRICS = 3  # of each stage


def _show(
    folder: Path,
    stages: list[Stage],
    left_out: dict[str, str],
    notes: Notes,
    report: Path,
    *,
    as_json: bool,
) -> None:
    """A row per stage; then where the page is, and what else can be done."""
    from plmctl.reporting.run_files import (
        loss_sentence,
        metrics_of,
        read_runs,
        result_metrics,
        yardstick_sentence,
    )
    from plmctl.reporting.tables import text_table

    document: dict[str, Any] = {"folder": str(folder), "stages": {}, "report": None}
    rows = list[tuple[str, str]]()
    sentences = list[str]()
    for stage in stages:
        if stage.name in left_out:
            continue
        (run_,) = read_runs([stage.run])
        metrics = {metric.name: metric.value for metric in metrics_of(run_)}
        seconds = notes.spent.get(stage.name)
        document["stages"][stage.name] = {
            "run": str(stage.run), "seconds": seconds, "metrics": metrics
        }  # fmt: skip
        first = list(metrics.items())[:_METRICS]
        if stage.name == "pretrain":
            sentences += filter(None, [loss_sentence(run_.results, run_.environment)])
        if stage.name == "eval":  # the first of each measure
            measured = {name: result_metrics(one)[:1] for name, one in run_.evaluations.items()}
            first = [(f"{name}: {m.name}", m.value) for name, ms in measured.items() for m in ms]
        shown = [f"{name} {format_value(value)}" for name, value in first]
        shown += [] if seconds is None else [f"in {format_duration(seconds)}"]
        rows.append((stage.name, ", ".join(shown)))
        sentences += filter(None, [yardstick_sentence(run_.results)])
    document["left_out"] = left_out
    if report.is_file():
        document["report"] = str(report)
    table = text_table(str(folder), ("stage", "result"), rows)
    show_result(document, [table], as_json=as_json)
    if as_json:
        return
    for line in sentences:
        print(line)
    for name, why in left_out.items():
        print(f"left out: {name}: {why}")
    if report.is_file():
        print(f"curves and details: {report}")
    runs = [one.run for one in reversed(stages) if one.name in ("finetune", "pretrain")]
    if models := [str(folder) for folder in runs if (folder / "model").is_dir()]:
        print(f"in a browser: plmctl try {' '.join(models)}")
