"""What a run reports: how far it is, how fast, and its log.

``Progress`` is where a run stands, ``Window`` measures its speed, and the ``Journal`` writes
``metrics.jsonl``, ``events``, trackers and the terminal. A checkpoint records how much of
``metrics.jsonl`` belongs to it (``Mark``), and a run that continues from it needs these lines: a
resumed run has the log of an uninterrupted one, or reports that it has not.
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

# --- Where a run stands, and how fast it is ---


_RECENT = 64  # losses that a spike is measured against


@dataclass(frozen=True)
class Update:
    """What one update of the weights did, over all processes.

    Attributes:
        losses: Mean loss of each part over its targets, in nats.
        grad_norm: Global norm of the gradient before clipping.
        tokens: Input tokens that are no padding.
        cells: Input positions, padding included.
        stop: Some process was asked to stop.
        loss: The weighted sum of the parts: what was descended.
    """

    losses: dict[str, float]
    grad_norm: float
    tokens: int
    cells: int
    stop: bool
    loss: float


@dataclass(frozen=True)
class Computed:
    """A step whose gradient was computed: what the host knows, and figures still on the device.

    Attributes:
        figures: [parts + 1]: the summed loss of each part over all processes, in nats, and the
            global norm of the gradient before clipping.
        targets: Of each part of the loss over all processes, at least 1.
        weights: What the mean of each part counts for in the loss.
        tokens: As in ``Update``.
        cells: As in ``Update``.
        stop: As in ``Update``.
    """

    figures: Tensor
    targets: dict[str, int]
    weights: dict[str, float]
    tokens: int
    cells: int
    stop: bool

    def read(self) -> Update:
        """What the step did; waits for the device."""
        return self.update(self.figures.tolist())

    def update(self, figures: list[float]) -> Update:
        """What the step did, its figures known."""
        *sums, grad_norm = figures
        means = {p: total / n for (p, n), total in zip(self.targets.items(), sums, strict=True)}
        loss = sum(self.weights[part] * mean for part, mean in means.items())
        return Update(means, grad_norm, self.tokens, self.cells, self.stop, loss)


@dataclass(frozen=True)
class Progress:
    """What a run has done so far; saved with every checkpoint.

    Attributes:
        step: Updates, those that were left out included.
        epoch: Passes over the corpora.
        tokens: Input tokens that are no padding.
        cells: Input positions, padding included.
        samples: Examples.
        seconds: Training time, validation and saving not counted.
        validated: The last step that was validated.
        best: The lowest validation loss, and its step.
        recent: The last losses of updates that were made.
        skipped: Steps left out in a row.
        rollbacks: How often the run went back to a checkpoint.
        shift: Samples that rollbacks have passed over: the data goes on after them.
        judged: The best score of what the run is judged by (``checkpoint.Watch``), and its step.
        waited: Validations since.
        micro: The largest micro-batch of each phase, once a step did not fit in memory.
    """

    step: int = 0
    epoch: float = 0.0
    tokens: int = 0
    cells: int = 0
    samples: int = 0
    seconds: float = 0.0
    validated: int = 0
    best: tuple[float, int] | None = None
    recent: tuple[float, ...] = ()
    skipped: int = 0
    rollbacks: int = 0
    shift: int = 0
    judged: tuple[float, int] | None = None
    waited: int = 0
    micro: tuple[int, ...] = ()

    def ahead(self, done: Update | Computed, samples: int, epoch_size: int) -> Progress:
        """One more step of ``samples`` of an epoch's ``epoch_size``, whatever its loss is."""
        return replace(
            self,
            step=self.step + 1,
            epoch=self.epoch + samples / epoch_size,
            tokens=self.tokens + done.tokens,
            cells=self.cells + done.cells,
            samples=self.samples + samples,
        )

    def after(self, update: Update, samples: int, epoch_size: int) -> Progress:
        """The progress after one more update."""
        recent = (*self.recent, update.loss)[-_RECENT:]
        return replace(self.ahead(update, samples, epoch_size), recent=recent, skipped=0)

    def without(self, update: Update, samples: int, epoch_size: int) -> Progress:
        """The same, where the update was left out."""
        return replace(self.ahead(update, samples, epoch_size), skipped=self.skipped + 1)

    def scored(self, loss: float | None) -> Progress:
        """The progress after a validation; None: there was nothing to score."""
        if loss is None or math.isnan(loss) or (self.best is not None and loss >= self.best[0]):
            return replace(self, validated=self.step)
        return replace(self, validated=self.step, best=(loss, self.step))

    def saved(self) -> dict[str, Any]:
        """As a checkpoint keeps it."""
        return asdict(self)

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> Progress:
        """From what a checkpoint kept."""
        kept = {field.name: saved[field.name] for field in fields(cls) if field.name in saved}
        plain: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in kept.items()}
        return cls(**plain)


class Waits(Protocol):
    """What counts the seconds that the loop waits for data (``data.Feed``)."""

    seconds: float


class Window:
    """The time between two log lines: training time, with what is not training left out.

    Args:
        progress: Where the window opens.
        data: What counts the seconds that the loop waits for data.
    """

    def __init__(self, progress: Progress, data: Waits) -> None:
        self._start, self._data = progress, data
        self._opened, self._waited_before, self._paused = time.perf_counter(), data.seconds, 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Validation and saving are no training time."""
        began = time.perf_counter()
        yield
        self._paused += time.perf_counter() - began

    def figures(self, progress: Progress) -> dict[str, float]:
        """The log keys that tell of speed and memory."""
        seconds = max(time.perf_counter() - self._opened - self._paused, 1e-9)
        cells = progress.cells - self._start.cells
        tokens = progress.tokens - self._start.tokens
        return {
            "tokens_per_second": round(tokens / seconds, 1),
            "samples_per_second": round((progress.samples - self._start.samples) / seconds, 2),
            "data_wait": round((self._data.seconds - self._waited_before) / seconds, 4),
            "memory_gb": round(peak_memory() / 1e9, 3),
            "padding": round(1 - tokens / max(cells, 1), 4),
            "time": round(progress.seconds + seconds, 2),
        }


def peak_memory() -> int:
    """Peak memory so far, in bytes: the device's if it has its own memory, else the process's."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def record(progress: Progress, phase: int, done: Update, rate: float) -> dict[str, float]:
    """The log keys that tell of learning (DESIGN: metrics.jsonl)."""
    parts = {f"loss/{part}": loss for part, loss in done.losses.items()}
    return {
        "step": progress.step,
        "phase": phase,
        "epoch": round(progress.epoch, 4),
        "tokens": progress.tokens,
        "loss": done.loss,
        **(parts if len(parts) > 1 else {}),
        "lr": rate,
        "grad_norm": done.grad_norm,
    }


# --- The log of a run ---


NEWLINE = b"\n"

Value = float | int | str


@dataclass(frozen=True)
class Mark:
    """How much of ``metrics.jsonl`` there was at some moment.

    Attributes:
        lines: Its lines.
        size: Its bytes.
        sha256: Of these bytes, in hexadecimal.
    """

    lines: int
    size: int
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> Mark:
        """The mark at the end of a file with this content."""
        return cls(content.count(b"\n"), len(content), hashlib.sha256(content).hexdigest())


class Journal:
    """The log of a run; a resumed run's log has no gap and no step twice.

    Args:
        run: The run folder.
        title: What the display says is going on.
        total_steps: Steps of the whole run.
        trackers: Names of trackers that get the records as well.
        quiet: Write and show nothing: for all processes but the main one.
        accept_gap: Continue although lines that belong to the checkpoint are missing or changed.

    Raises:
        PlmError: A tracker that is not installed; later, a disk that cannot be written.
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
    ) -> None:
        self._run, self._quiet, self._accept_gap = run, quiet, accept_gap
        # Hashed line by line as they are written, so that a save costs the same after any of them.
        self._lines, self._size, self._hash = 0, 0, hashlib.sha256()
        self._display = Display(title, total_steps, quiet=quiet)
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
        self._trackers.close()

    def begin(self, step: int, mark: Mark | None = None) -> None:
        """A run starts or continues after ``step``: later records, of a lost piece of it, go.

        Args:
            step: Updates that were made.
            mark: What the checkpoint recorded of ``metrics.jsonl``; None: nothing is known, and the
                records up to ``step`` are kept as they are.

        Raises:
            DataError: Lines that belong to the checkpoint are missing or changed; in all processes.
        """
        path = self._run / "metrics.jsonl"
        before = path.read_bytes() if path.is_file() else b""
        gap = mark is not None and Mark.of(before[: mark.size]) != mark
        if mark is not None and gap and not self._accept_gap:
            raise DataError(
                f"{path}: lines that were logged up to step {step:,} are missing or changed: the "
                f"checkpoint belongs to {mark.lines:,} lines, {mark.size:,} bytes; the file has "
                f"{before.count(NEWLINE):,} lines, {len(before):,} bytes",
                "restore the file; or add --accept-gap to continue with the lines that are there; "
                "or start from scratch with --fresh, which moves this run aside",
            )
        if not self._quiet:
            kept = before[: mark.size] if mark is not None and not gap else _up_to(before, step)
            with writing(path):
                if kept != before:
                    write_atomically(path, kept)
            self._lines, self._size = kept.count(NEWLINE), len(kept)
            self._hash = hashlib.sha256(kept)
            with writing(self._run / "events") as events:
                _end_last_line(events)
            self._trackers.begin(step, kept)
        self._display.begin(step)
        if mark is not None and gap:
            self.event("gap", step=step, lines_expected=mark.lines, lines_found=self._lines)
            self.warn(
                f"{path}: continuing with a gap: the checkpoint belongs to {mark.lines:,} lines, "
                f"and {self._lines:,} are there"
            )

    def log(self, record: Mapping[str, Value]) -> None:
        """One line of metrics.jsonl, written out at once; nan and inf become null."""
        if self._quiet:
            return
        line = self._append("metrics.jsonl", record)
        self._lines += 1
        self._size += len(line)
        self._hash.update(line)
        self._trackers.log(record)
        self._display.log(record)

    def event(self, name: str, **fields: Value) -> None:
        """One line of events: started, resumed, saved ..."""
        if not self._quiet:
            now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            self._append("events", {"time": now, "event": name, **fields})

    def tick(self, step: int, loss: float | None) -> None:
        """A step is done; the loss is the last one that was read, None before there is one."""
        self._display.tick(step, loss)

    def warn(self, message: str) -> None:
        """A line for whoever is watching."""
        if not self._quiet:
            self._display.say(message)

    def keep(self, name: str, document: Mapping[str, object]) -> None:
        """A JSON file of the run folder, whole or not at all."""
        if not self._quiet:
            with writing(self._run / name) as path:
                path.parent.mkdir(exist_ok=True)
                write_atomically(path, json.dumps(_plain(document)))

    def mark(self) -> Mark:
        """How much of ``metrics.jsonl`` there is now: what a checkpoint of now belongs to."""
        return Mark(self._lines, self._size, self._hash.hexdigest())

    def flush(self) -> None:
        """Bring what was logged to the disk, as a checkpoint that follows it will be."""
        path = self._run / "metrics.jsonl"
        if not self._quiet and path.is_file():
            sync(path)

    def _append(self, name: str, record: Mapping[str, Value]) -> bytes:
        line = json.dumps(_plain(record), ensure_ascii=False, allow_nan=False).encode() + NEWLINE
        # Opened for every line: 30 microseconds, and a folder that was moved away is noticed.
        with writing(self._run / name) as path, path.open("ab") as file:
            file.write(line)
        return line


def _plain(value: Any) -> Any:
    """A value as JSON has it, which knows no nan: a reader in another language would refuse it."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _up_to(content: bytes, step: int) -> bytes:
    """The records of a log up to ``step``."""
    return b"".join(line for line in content.splitlines(keepends=True) if _step_of(line) <= step)


def _step_of(line: bytes) -> float:
    """The step of a record; a half-written last line counts as lost."""
    try:
        return int(json.loads(line)["step"]) if line.endswith(b"\n") else math.inf
    except (ValueError, KeyError, TypeError):
        return math.inf


def _end_last_line(path: Path) -> None:
    """What a killed process left of a line must not swallow the next one."""
    if path.is_file() and (text := path.read_bytes()) and not text.endswith(b"\n"):
        with path.open("ab") as file:
            file.write(b"\n")
