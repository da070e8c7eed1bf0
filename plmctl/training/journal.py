"""What a run writes down: ``metrics.jsonl``, ``events``, trackers, and the terminal."""

import importlib.util
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from plmctl.errors import PlmError
from plmctl.training.display import Display

Value = float | int | str


class Tracker(Protocol):
    """What is told of every record."""

    def begin(self, step: int) -> None:
        """The run starts or goes on after ``step``: what was told of later steps is void."""

    def log(self, record: Mapping[str, Value]) -> None:
        """One record, with its ``step``."""

    def close(self) -> None:
        """Write out what is left."""


class Journal:
    """The log of a run; a resumed run's log has no gap and no step twice.

    Args:
        run: The run folder.
        title: What the display says is going on.
        total_steps: Steps of the whole run.
        trackers: Names of trackers to tell as well.
        quiet: Write and show nothing: for all processes but the main one.

    Raises:
        PlmError: A tracker that is not installed; later, a disk that cannot be written.
    """

    def __init__(
        self, run: Path, *, title: str, total_steps: int, trackers: tuple[str, ...], quiet: bool
    ) -> None:
        self._run, self._quiet = run, quiet
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

    def begin(self, step: int) -> None:
        """A run starts or goes on after ``step``: later records, of a lost piece of it, go."""
        if not self._quiet:
            with _writing(self._run / "metrics.jsonl") as path:
                _forget_after(path, step)
            with _writing(self._run / "events") as path:
                _end_last_line(path)
            for tracker in self._trackers:
                tracker.begin(step)
        self._display.begin(step)

    def log(self, record: Mapping[str, Value]) -> None:
        """One line of metrics.jsonl, written out at once; nan and inf become null."""
        if self._quiet:
            return
        self._append("metrics.jsonl", record)
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
            with _writing(self._run / name) as path:
                path.parent.mkdir(exist_ok=True)
                beside = path.with_name(f".{path.name}.writing")
                _replace(beside, json.dumps(_plain(document)).encode(), path)

    def flush(self) -> None:
        """Bring what was logged to the disk, as a checkpoint that follows it will be."""
        path = self._run / "metrics.jsonl"
        if not self._quiet and path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())

    def _append(self, name: str, record: Mapping[str, Value]) -> None:
        line = json.dumps(_plain(record), ensure_ascii=False, allow_nan=False) + "\n"
        # Opened anew for every line: 30 microseconds, and a folder that was moved away is noticed.
        with _writing(self._run / name) as path, path.open("a", encoding="utf-8") as file:
            file.write(line)


def _plain(value: Any) -> Any:
    """A value as JSON has it, which knows no nan: a reader in another language would refuse it."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """Says in one plain line that a disk cannot be written."""
    try:
        yield path
    except OSError as error:
        raise PlmError(
            f"{path}: cannot be written: {error.strerror}",
            "see that the folder is there and the disk has room; the same command goes on",
        ) from error


def _forget_after(path: Path, step: int) -> None:
    """Drop the records after ``step``, whole or not at all; untouched when there are none."""
    if not path.is_file():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if _step_of(line) <= step]
    if kept != lines:
        beside = path.with_name(".metrics.jsonl.writing")
        _replace(beside, b"".join(kept), path)


def _replace(beside: Path, content: bytes, path: Path) -> None:
    """Write a file that takes another's place: a power cut leaves one of them whole."""
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


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
