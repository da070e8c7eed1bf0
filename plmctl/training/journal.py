"""The log of a run: its progress, speed and metrics.

``Progress`` is the state that a checkpoint saves, ``LogInterval`` measures speed, and ``Journal``
writes ``metrics.jsonl``, ``samples.jsonl``, ``events``, trackers and the terminal. A checkpoint
records how much of ``metrics.jsonl`` belongs to it (``LogMark``). A run that resumes from it needs
these lines: its log is that of an uninterrupted run, or it reports the gap. ``samples.jsonl`` has a
line for each validation; a run that resumes keeps those up to the last validation of its
checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import math
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor

from plmctl.errors import DataError
from plmctl.files import sync, write_atomically, writing
from plmctl.run.display import Display
from plmctl.training.trackers import Trackers

# --- Progress and speed ---


_RECENT = 64  # losses; a spike is compared with their median


@dataclass(frozen=True)
class Update:
    """The metrics of one update of the weights, over all processes.

    Attributes:
        losses: Mean loss of each loss term over its targets, in nats.
        grad_norm: Global norm of the gradient before clipping.
        tokens: Input tokens, without padding.
        padded_tokens: Input positions, padding included.
        loss: The weighted sum of the loss terms: the optimized objective.
    """

    losses: dict[str, float]
    grad_norm: float
    tokens: int
    padded_tokens: int
    stop: bool
    loss: float


@dataclass(frozen=True)
class Computed:
    """A step whose gradient is computed; its metrics are still on the device.

    Attributes:
        values: [loss terms + 1]: the summed loss of each term over all processes, in nats, and
            the global norm of the gradient before clipping.
        targets: Number of targets of each loss term over all processes, at least 1.
        weights: The weight of each loss term's mean in the loss.
        tokens: As in ``Update``.
        padded_tokens: As in ``Update``.
        stop: As in ``Update``.
    """

    values: Tensor
    targets: dict[str, int]
    weights: dict[str, float]
    tokens: int
    padded_tokens: int
    stop: bool

    def read(self) -> Update:
        """The metrics of the step; waits for the device."""
        return self.update(self.values.tolist())

    def update(self, values: list[float]) -> Update:
        """The metrics of the step, from the values of ``values``."""
        *sums, grad_norm = values
        counts = zip(self.targets.items(), sums, strict=True)
        means = {term: total / count for (term, count), total in counts}
        loss = sum(self.weights[term] * mean for term, mean in means.items())
        return Update(means, grad_norm, self.tokens, self.padded_tokens, self.stop, loss)


_RENAMED = {"cells": "padded_tokens"}  # fields of ``Progress`` in checkpoints of older versions


@dataclass(frozen=True)
class Progress:
    """The progress of a run; every checkpoint saves it.

    Attributes:
        step: Updates, including skipped ones.
        epoch: Passes over the corpora.
        tokens: Input tokens, without padding.
        padded_tokens: Input positions, padding included.
        seconds: Training time, without validation and saving.
        validated: The step of the last validation.
        best: The lowest validation loss, and its step.
        recent: The last losses of updates that were applied.
        skipped: Consecutive skipped steps.
        shift: Samples that rollbacks skipped: the data continues after them.
        judged: The best score of the metric that ``checkpoint.Watch`` compares, and its step.
        kept: The hash of the weights of that step, which ``checkpoint.Watch`` keeps; empty: none.
        waited: Validations since then.
        micro: The largest micro-batch of each phase, after a step did not fit in memory.
    """

    step: int = 0
    epoch: float = 0.0
    tokens: int = 0
    padded_tokens: int = 0
    samples: int = 0
    seconds: float = 0.0
    validated: int = 0
    best: tuple[float, int] | None = None
    recent: tuple[float, ...] = ()
    skipped: int = 0
    rollbacks: int = 0
    shift: int = 0
    judged: tuple[float, int] | None = None
    kept: str = ""
    waited: int = 0
    micro: tuple[int, ...] = ()

    def ahead(self, done: Update | Computed, samples: int, epoch_size: int) -> Progress:
        """The progress after one more step of ``samples`` samples, applied or skipped."""
        return replace(
            self,
            step=self.step + 1,
            epoch=self.epoch + samples / epoch_size,
            tokens=self.tokens + done.tokens,
            padded_tokens=self.padded_tokens + done.padded_tokens,
            samples=self.samples + samples,
        )

    def after(self, update: Update, samples: int, epoch_size: int) -> Progress:
        """The progress after one more applied update."""
        recent = (*self.recent, update.loss)[-_RECENT:]
        return replace(self.ahead(update, samples, epoch_size), recent=recent, skipped=0)

    def without(self, update: Update, samples: int, epoch_size: int) -> Progress:
        """The progress after one more skipped update."""
        return replace(self.ahead(update, samples, epoch_size), skipped=self.skipped + 1)

    def scored(self, loss: float | None, first: int) -> Progress:
        """The progress after a validation.

        Args:
            loss: None: there are no validation examples.
            first: Steps before its phase. The best of another phase is no longer the best: that
                phase's sequences have another length, and so other losses.
        """
        best = self.best if self.best is not None and self.best[1] > first else None
        if loss is None or math.isnan(loss) or (best is not None and loss >= best[0]):
            return replace(self, validated=self.step)
        return replace(self, validated=self.step, best=(loss, self.step))

    def saved(self) -> dict[str, Any]:
        """The JSON form that a checkpoint stores."""
        return asdict(self)

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> Progress:
        """The progress that a checkpoint stores."""
        saved = {_RENAMED.get(name, name): value for name, value in saved.items()}
        known = {field.name: saved[field.name] for field in fields(cls) if field.name in saved}
        plain: dict[str, Any] = {
            n: tuple(v) if isinstance(v, list) else v for n, v in known.items()
        }
        return cls(**plain)


class Waits(Protocol):
    """What counts the seconds that the loop waits for data (``data.StepLoader``)."""

    seconds: float


class LogInterval:
    """The time between two log lines, without validation and saving.

    Args:
        progress: The progress at the start of the window.
        data: Counts the seconds that the loop waits for data.
    """

    def __init__(self, progress: Progress, data: Waits) -> None:
        self._start, self._data = progress, data
        self._opened, self._waited_before, self._paused = time.perf_counter(), data.seconds, 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time spent inside, such as validation and saving."""
        began = time.perf_counter()
        yield
        self._paused += time.perf_counter() - began

    def metrics(self, progress: Progress) -> dict[str, float]:
        """The log keys for speed and memory."""
        seconds = max(time.perf_counter() - self._opened - self._paused, 1e-9)
        padded = progress.padded_tokens - self._start.padded_tokens
        tokens = progress.tokens - self._start.tokens
        return {
            "tokens_per_second": round(tokens / seconds, 1),
            "samples_per_second": round((progress.samples - self._start.samples) / seconds, 2),
            "data_wait": round((self._data.seconds - self._waited_before) / seconds, 4),
            "memory_gb": round(peak_memory() / 1e9, 3),
            "padding": round(1 - tokens / max(padded, 1), 4),
            "time": round(progress.seconds + seconds, 2),
        }


def peak_memory() -> int:
    """Peak memory so far, in bytes: the device's if it has its own memory, else the process's."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024  # psutil has no peak on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def record(
    progress: Progress, phase: int, done: Update, rate: float, *, each_term: bool
) -> dict[str, float]:
    """The log keys for loss, learning rate and gradient; ``each_term``: also for its terms."""
    terms = {f"loss/{term}": loss for term, loss in done.losses.items()}
    return {
        "step": progress.step,
        "phase": phase,
        "epoch": round(progress.epoch, 4),
        "tokens": progress.tokens,
        "loss": done.loss,
        **(terms if each_term else {}),
        "lr": rate,
        "grad_norm": done.grad_norm,
    }


# --- The log of a run ---


NEWLINE = b"\n"

_METRICS, _SAMPLES = "metrics.jsonl", "samples.jsonl"

Value = float | int | str


@dataclass(frozen=True)
class LogMark:
    """The length and hash of ``metrics.jsonl`` at some moment.

    Attributes:
        size: Number of bytes.
    """

    lines: int
    size: int
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> LogMark:
        """The mark at the end of a file with this content."""
        return cls(content.count(b"\n"), len(content), hashlib.sha256(content).hexdigest())


class Journal:
    """The log of a run; after a resume it has no gap and no step twice.

    Args:
        counted: The losses of counts, by what is counted and by term (``run.yardsticks``).
        trackers: Names of trackers that get the records as well.
        quiet: Write and show nothing; for all processes except the main one.
        accept_gap: Continue even if lines that belong to the checkpoint are missing or changed.

    Raises:
        PlmError: A tracker is not installed or cannot start, or a file cannot be written.
    """

    def __init__(
        self,
        run: Path,
        *,
        title: str,
        total_steps: int,
        trackers: tuple[str, ...],
        quiet: bool,
        accept_gap: bool = False,
        counted: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        self._run, self._quiet, self._accept_gap = run, quiet, accept_gap
        # Lines are hashed when they are written, so that the cost of a save does not grow.
        self._lines, self._size, self._hash = 0, 0, hashlib.sha256()
        self._display = Display(title, total_steps, quiet=quiet, counted=counted)
        self._trackers = Trackers(run, () if quiet else trackers)

    def __enter__(self) -> Journal:
        self._display.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._display.__exit__(kind, value, trace)
        for message in self._trackers.close():
            self.warn(message)

    def begin(self, step: int, mark: LogMark | None = None, *, validated: int = 0) -> None:
        """Start, or continue after ``step``: records of later steps are removed.

        Args:
            step: Updates made so far.
            mark: What the checkpoint recorded of ``metrics.jsonl``; None: unknown, and all records
                up to ``step`` are kept.
            validated: The step of the last validation up to ``step``: samples after it are removed.

        Raises:
            DataError: In all processes: lines that belong to the checkpoint are missing or changed.
        """
        path = self._run / _METRICS
        before = path.read_bytes() if path.is_file() else b""
        gap = mark is not None and LogMark.of(before[: mark.size]) != mark
        if mark is not None and gap and not self._accept_gap:
            raise DataError(
                f"{path}: lines that were logged up to step {step:,} are missing or changed: the "
                f"checkpoint belongs to {mark.lines:,} lines, {mark.size:,} bytes; the file has "
                f"{before.count(NEWLINE):,} lines, {len(before):,} bytes",
                "restore the file; or add --accept-gap to continue with the lines that are there; "
                "or start from scratch with --fresh, which moves this run aside",
            )
        if not self._quiet:
            content = before[: mark.size] if mark is not None and not gap else _up_to(before, step)
            with writing(path):
                if content != before:
                    write_atomically(path, content)
            self._lines, self._size = content.count(NEWLINE), len(content)
            self._hash = hashlib.sha256(content)
            with writing(self._run / _SAMPLES) as samples:
                _cut_after(samples, validated)
            with writing(self._run / "events") as events:
                _end_last_line(events)
            for message in self._trackers.begin(step, content):
                self.warn(message)
        self._display.begin(step)
        if mark is not None and gap:
            self.event("gap", step=step, lines_expected=mark.lines, lines_found=self._lines)
            self.warn(
                f"{path}: continuing with a gap: the checkpoint belongs to {mark.lines:,} lines, "
                f"and {self._lines:,} are there"
            )

    def log(self, record: Mapping[str, Value]) -> None:
        """Write one line of metrics.jsonl at once; nan and inf become null."""
        if self._quiet:
            return
        line = _append(self._run / _METRICS, record)
        self._lines += 1
        self._size += len(line)
        self._hash.update(line)
        for message in self._trackers.log(record):
            self.warn(message)
        self._display.log(record)

    def sample(self, step: int, samples: Mapping[str, object]) -> None:
        """Write one line of samples.jsonl: texts of the network after ``step`` updates."""
        if not self._quiet:
            _append(self._run / _SAMPLES, {"step": step, **samples})

    def event(self, name: str, **fields: Value) -> None:
        """Write one line of events: started, resumed, saved ..."""
        if not self._quiet:
            append_event(self._run, name, **fields)

    def tick(self, step: int, loss: float | None, saves_at: int | None = None) -> None:
        """Show that a step is done: the last known loss, the step of the next checkpoint."""
        self._display.tick(step, loss, saves_at)

    def warn(self, message: str) -> None:
        """Show a message."""
        if not self._quiet:
            self._display.say(message)

    def keep(self, name: str, document: Mapping[str, object]) -> None:
        """Write a JSON file of the run folder atomically."""
        if not self._quiet:
            with writing(self._run / name) as path:
                path.parent.mkdir(exist_ok=True)
                write_atomically(path, json.dumps(_plain(document)))

    def mark(self) -> LogMark:
        """The mark of ``metrics.jsonl`` for a checkpoint saved now."""
        return LogMark(self._lines, self._size, self._hash.hexdigest())

    def flush(self) -> None:
        """Force the log to the disk, before a checkpoint that refers to it."""
        for name in (_METRICS, _SAMPLES):
            path = self._run / name
            if not self._quiet and path.is_file():
                sync(path)


def append_event(run: Path, name: str, **fields: Value) -> None:
    """Write one line of the events of a run folder."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    _append(run / "events", {"time": now, "event": name, **fields})


def _append(file: Path, record: Mapping[str, object]) -> bytes:
    line = json.dumps(_plain(record), ensure_ascii=False, allow_nan=False).encode() + NEWLINE
    # Opened for each line (30 microseconds), so that a folder that was moved is noticed.
    with writing(file) as path, path.open("ab") as opened:
        opened.write(line)
    return line


def _plain(value: Any) -> Any:
    """A value with null for nan and inf, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _up_to(content: bytes, step: int) -> bytes:
    """The records of a log up to ``step``."""
    return b"".join(line for line in content.splitlines(keepends=True) if _step_of(line) <= step)


def _cut_after(path: Path, step: int) -> None:
    """Remove the records of a log after ``step``; a file without others is removed."""
    before = path.read_bytes() if path.is_file() else b""
    content = _up_to(before, step)
    if content and content != before:
        write_atomically(path, content)
    elif not content:
        path.unlink(missing_ok=True)


def _step_of(line: bytes) -> float:
    """The step of a record; inf for a line that is not whole."""
    try:
        return int(json.loads(line)["step"]) if line.endswith(b"\n") else math.inf
    except (ValueError, KeyError, TypeError):
        return math.inf


def _end_last_line(path: Path) -> None:
    """End a line that a killed process left unfinished, so that the next one is separate."""
    if path.is_file() and (text := path.read_bytes()) and not text.endswith(b"\n"):
        with path.open("ab") as file:
            file.write(b"\n")
