"""What a GPU has to show, the most important first: a line of JSON for each result, at once.

machine      versions, the card, its products in bf16 and its copies
families     every family and objective, tiny, float32: losses and gradient norms beside a CPU's
bf16         the same in bf16, and where a step makes the host wait for the device
optimizers   those of the shipped configs over random gradients
speed        published sizes: eager, by layers, and compiled whole, which takes longest to start
options      what is off until a card has measured it: the losses of a step without it, and its time
stock        transformers' Trainer on the same rows, in its own process
bits         six steps twice from one start: the same bits?
resume       six steps with and without a stop: the same bits?

A stage that has used its share of ``--seconds`` skips what is left of it; what fails is a line, and
the next case follows. ``gpu_parts`` has what a stage runs.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import gpu_parts as parts
from benchmarks.gpu_parts import OPTIONS, TRAININGS, WAYS

# Of the seconds: what has passed when a stage has to be done.
_SHARES = {
    "machine": 0.1, "families": 0.3, "bf16": 0.4, "optimizers": 0.5, "speed": 0.7,
    "options": 0.78, "stock": 0.9, "bits": 0.97, "resume": 1.0,
}  # fmt: skip
STAGES = tuple(_SHARES)


class Report:
    """The results as they come, and whether there is time for another."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self.lines: list[dict[str, Any]] = []
        self._file = None
        if args.out is not None:
            args.out.mkdir(parents=True, exist_ok=True)
            self._file = (args.out / "gpu.jsonl").open("a", encoding="utf-8")

    def left(self, stage: str) -> float:
        """Seconds that a stage still has."""
        return float(self._args.began + _SHARES[stage] * self._args.seconds - time.time())

    def write(self, stage: str, of: str, **facts: Any) -> None:
        """Print a result, and write it."""
        facts["at"] = time.time() - self._args.began
        short = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in facts.items()}
        self.lines.append({"stage": stage, "of": of, **short})
        line = json.dumps(self.lines[-1])
        print(line, flush=True)
        if self._file is not None:
            print(line, file=self._file, flush=True)

    def attempt(self, stage: str, of: str, seconds: float, work: Callable[[], Any]) -> None:
        """The result of a case, if its stage still has so many seconds; a tiny one takes fewer."""
        seconds = 1 if self._args.size == "tiny" else seconds
        if self.left(stage) < seconds:
            self.write(stage, of, skipped=f"it takes about {seconds:.0f} s")
            return
        began = time.time()
        try:
            facts = work()
        except Exception as error:  # noqa: BLE001  # whatever a new device does, the next case follows
            frames = traceback.extract_tb(error.__traceback__)[-6:]
            facts = {
                "error": f"{type(error).__name__}: {str(error)[:300]}",
                "where": [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames],
            }
        self.write(stage, of, seconds=round(time.time() - began, 1), **facts)
        gc.collect()
        torch._dynamo.reset()
        if self._args.device == "cuda":
            torch.cuda.empty_cache()


def alone(args: argparse.Namespace) -> dict[str, Any]:
    """All stages; with ``--side stock`` those cases alone."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read once, before "bits" sets it
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    report = Report(args)
    if args.side == "stock":
        for compiled in (False, True):  # the Trainer leaves a variable that compiles all later ones
            for training in TRAININGS:
                if training.family in args.families and (args.full or training.beside_stock):
                    run = partial(parts.stock, args, training, compiled=compiled)
                    title = f"{training.title}, {'compiled' if compiled else 'eager'}"
                    report.attempt("stock", title, 40 if compiled else 15, run)
        return {"lines": report.lines}
    unknown = [stage for stage in args.stages or () if stage not in STAGES]
    if unknown:
        raise SystemExit(f"{unknown[0]!r} is not one of {', '.join(STAGES)}")
    for stage in args.stages or STAGES:
        _STAGES[stage](args, report)
    return {"work": "gpu", "lines": report.lines}


def _machine(args: argparse.Namespace, report: Report) -> None:
    report.attempt("machine", args.device, 5, partial(parts.machine, args))


def _families(args: argparse.Namespace, report: Report, stage: str = "families") -> None:
    precision = args.precision if stage == "bf16" else "fp32"
    for family, objective in parts.pairs(args.families):
        run = partial(parts.beside_cpu, family, objective, args.device, precision)
        report.attempt(stage, f"{family} {objective}", 3, run)


def _optimizers(args: argparse.Namespace, report: Report) -> None:
    for title, network, optimizer, vocab in parts.OPTIMIZERS:
        if title[0] in args.families:
            run = partial(parts.update_alone, args, network, optimizer, vocab)
            report.attempt("optimizers", " ".join(title), 4, run)


def _speed(args: argparse.Namespace, report: Report) -> None:
    flops: dict[str, float] = {}
    for way in WAYS:
        for training in TRAININGS:
            if training.family in args.families:
                run = partial(parts.speed, args, training, way, flops)
                report.attempt("speed", f"{training.title}, {way}", training.seconds[way], run)


def _options(args: argparse.Namespace, report: Report) -> None:
    losses: dict[str, list[float]] = {}
    for option in OPTIONS if "bert" in args.families else ():
        for way in option.ways:
            run = partial(parts.option, args, option, way, losses)
            report.attempt("options", f"{option.title}, {way}", 6 if way == "eager" else 20, run)


def _stock(args: argparse.Namespace, report: Report) -> None:
    """Its own process, whose lines are passed on."""
    left = report.left("stock")
    if left < 15 and args.size != "tiny":
        report.write("stock", "all", skipped="no time is left")
        return
    command = [sys.executable, sys.argv[0], "gpu", *args.families, "--side", "stock"]
    command += ["--device", args.device, "--precision", args.precision]
    command += ["--seconds", str(left / _SHARES["stock"])]
    command += ["--size", args.size] if args.size else []
    command += ["--full"] if args.full else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        alarm = threading.Timer(left + 10, process.kill)
        alarm.start()
        for line in process.stdout:
            if line.startswith('{"stage"'):  # the Trainer prints others
                facts = json.loads(line)
                report.write(facts.pop("stage"), facts.pop("of"), **facts)
        alarm.cancel()
    if process.returncode:
        report.write("stock", "process", error=f"exit status {process.returncode}")


def _bits(args: argparse.Namespace, report: Report) -> None:
    family = args.families[0] if "bert" not in args.families else "bert"
    training = next((each for each in TRAININGS if each.family == family), None)
    if training is None:
        return
    for way in ("eager", "compiled"):
        for length in (128, 512)[: 1 if args.size == "tiny" else 2]:
            for deterministic in (False, True):
                run = partial(parts.bits, args, training, length, way, deterministic)
                title = f"{family} {length}, {way}{', deterministic' if deterministic else ''}"
                report.attempt("bits", title, 25 if way == "compiled" else 3, run)


def _resume(args: argparse.Namespace, report: Report) -> None:
    for training in TRAININGS[:2]:
        if training.family in args.families:
            run = partial(parts.bits, args, training, 128, "eager", True, stop=3)
            report.attempt("resume", f"{training.family}, deterministic", 4, run)


_STAGES: dict[str, Callable[[argparse.Namespace, Report], None]] = {
    "machine": _machine, "families": _families, "bf16": partial(_families, stage="bf16"),
    "optimizers": _optimizers, "speed": _speed, "options": _options, "stock": _stock,
    "bits": _bits, "resume": _resume,
}  # fmt: skip


# --- The tables at the end ---

_COLUMNS = {
    "difference": ("differs by", ".1e"), "close": ("below 1e-4", ""),
    "waits": ("waits in three steps", ""),
    "ms": ("ms", ",.1f"), "gradient_ms": ("gradient, ms", ",.1f"),
    "update_ms": ("update, ms", ",.1f"),
    "host_ms": ("host, ms", ",.2f"), "busy_ms": ("device at work, ms", ",.1f"),
    "kernels": ("kernels", ",d"), "runs_ahead": ("host runs ahead", ""),
    "tokens_per_second": ("tokens/s", ",.0f"), "mfu": ("MFU", ".1%"),
    "padding": ("padding", ".0%"), "peak_gb": ("peak, GB", ".1f"),
    "first_step_s": ("first step, s", ".0f"),
    "equal": ("the same bits", ""), "error": ("error", ""), "skipped": ("skipped", ""),
}  # fmt: skip


def tables(result: dict[str, Any]) -> list[list[tuple[str, ...]]]:
    """A table per stage, with the columns that it has."""
    result_tables = []
    for stage in STAGES[1:]:
        lines = [line for line in result["lines"] if line["stage"] == stage]
        columns = [key for key in _COLUMNS if any(key in line for line in lines)]
        if columns:
            rows = [(stage, *(_COLUMNS[key][0] for key in columns))]
            rows += [(line["of"], *(_cell(line, key) for key in columns)) for line in lines]
            result_tables.append(rows)
    return result_tables


def _cell(line: dict[str, Any], key: str) -> str:
    value = line.get(key)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {count}" for name, count in value.items()) or "0"
    return "" if value is None else format(value, _COLUMNS[key][1])
