"""What a run writes down: ``metrics.jsonl``, ``events``, trackers, and the terminal."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from plmctl.errors import PlmError
from plmctl.training.display import Display

Value = float | int | str


class Tracker(Protocol):
    """What is told of every record."""

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
    """

    def __init__(
        self, run: Path, *, title: str, total_steps: int, trackers: tuple[str, ...], quiet: bool
    ) -> None:
        self._run, self._quiet = run, quiet
        self._display = Display(title, total_steps, quiet=quiet)
        self._trackers = [] if quiet else [_TRACKERS[name](run) for name in trackers]

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
        path = self._run / "metrics.jsonl"
        if not self._quiet and path.is_file():
            kept = [line for line in path.read_text().splitlines() if _step_of(line) <= step]
            beside = path.with_name(".metrics.jsonl.writing")
            beside.write_text("".join(line + "\n" for line in kept))
            beside.replace(path)
        self._display.begin(step)

    def log(self, record: Mapping[str, Value]) -> None:
        """One line of metrics.jsonl."""
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

    def tick(self, step: int, loss: float) -> None:
        """A step is done."""
        self._display.tick(step, loss)

    def _append(self, name: str, record: Mapping[str, Value]) -> None:
        try:
            with (self._run / name).open("a", encoding="utf-8") as file:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
        except OSError as error:
            raise PlmError(f"{self._run / name}: {error.strerror}", "is the disk full?") from error


def _step_of(line: str) -> int:
    """The step of a record; a half-written last line counts as lost."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError):
        return 2**62


class _TensorBoard:
    def __init__(self, run: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise PlmError(
                "log.trackers: tensorboard is not installed", "pip install 'plmctl[tensorboard]'"
            ) from error
        self._writer: Any = SummaryWriter(str(run / "tensorboard"))  # type: ignore[no-untyped-call]

    def log(self, record: Mapping[str, Value]) -> None:
        for name, value in record.items():
            if name != "step" and not isinstance(value, str):
                self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        self._writer.close()


_TRACKERS = {"tensorboard": _TensorBoard}
