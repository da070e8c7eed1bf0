"""What a run writes down: ``metrics.jsonl``, ``events``, trackers, and the terminal.

A checkpoint records how much of ``metrics.jsonl`` belongs to it (``Mark``), and a run that
continues from it needs these lines: a resumed run has the log of an uninterrupted one, or says that
it has not.
"""

import hashlib
import importlib.util
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from plmctl.errors import DataError, PlmError
from plmctl.files import sync, write_atomically, writing
from plmctl.training.display import Display

NEWLINE = b"\n"
Value = float | int | str


class Tracker(Protocol):
    """What is told of every record."""

    def begin(self, step: int) -> None:
        """The run starts or goes on after ``step``: what was told of later steps is void."""

    def log(self, record: Mapping[str, Value]) -> None:
        """One record, with its ``step``."""

    def close(self) -> None:
        """Write out what is left."""


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
    def of(cls, content: bytes) -> "Mark":
        """The mark at the end of a file with this content."""
        return cls(content.count(b"\n"), len(content), hashlib.sha256(content).hexdigest())


class Journal:
    """The log of a run; a resumed run's log has no gap and no step twice.

    Args:
        run: The run folder.
        title: What the display says is going on.
        total_steps: Steps of the whole run.
        trackers: Names of trackers to tell as well.
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
        self._trackers: list[Tracker] = [] if quiet else [_TRACKERS[name](run) for name in trackers]

    def __enter__(self) -> "Journal":
        self._display.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._display.__exit__(kind, value, trace)
        for tracker in self._trackers:
            tracker.close()

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
            for tracker in self._trackers:
                tracker.begin(step)
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
        for tracker in self._trackers:
            tracker.log(record)
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


class _TensorBoard:
    def __init__(self, run: Path) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise PlmError(
                "log.trackers: tensorboard is not installed", "pip install 'plmctl[tensorboard]'"
            )
        self._folder = run / "tensorboard"
        self._writer: Any = None

    def begin(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge = step + 1 if step else None  # TensorBoard hides what an earlier file has from there
        self._writer = SummaryWriter(str(self._folder), purge_step=purge)

    def log(self, record: Mapping[str, Value]) -> None:
        for name, value in record.items():
            if name != "step" and not isinstance(value, str):
                self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


_TRACKERS = {"tensorboard": _TensorBoard}
