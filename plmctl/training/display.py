"""Progress on stderr: a live bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

Value = float | int | str
_RECENT = 60.0  # seconds of steps that the remaining time is told from


class Display:
    """The progress of a run.

    Args:
        title: What is going on.
        total: Steps of the whole run.
        quiet: Show nothing.
    """

    def __init__(self, title: str, total: int, *, quiet: bool) -> None:
        self._title, self._total, self._quiet = title, total, quiet
        self._console = Console(stderr=True)
        self._live = self._console.is_terminal and not quiet
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._marks: deque[tuple[float, int]] = deque()
        self._speed = ""

    def __enter__(self) -> "Display":
        if self._live:
            columns: list[ProgressColumn] = [
                TextColumn("[bold]{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[figures]}"),
                TextColumn("eta"),
                TimeRemainingColumn(compact=True),
            ]
            self._bar = Progress(*columns, console=self._console)
            self._task = self._bar.add_task(self._title, total=self._total, figures="")
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()

    def begin(self, step: int) -> None:
        """The run starts or goes on after ``step``."""
        self._marks.append((time.monotonic(), step))
        if self._bar:
            self._bar.reset(self._task, total=self._total, completed=step)
        elif not self._quiet:
            print(f"{self._title}: {self._total:,} steps", file=sys.stderr, flush=True)

    def tick(self, step: int, loss: float) -> None:
        """A step is done."""
        if self._bar:
            figures = f"loss {loss:.3f}{self._speed}"
            self._bar.update(self._task, completed=step, figures=figures)

    def log(self, record: Mapping[str, Value]) -> None:
        """A line of the log; shown as a line where there is no bar."""
        if "tokens_per_second" in record:
            self._speed = f"  {record['tokens_per_second']:,.0f} tok/s"
        if self._quiet:
            return
        valid = "  ".join(
            f"{name} {value:.4g}" for name, value in record.items() if name.startswith("valid/")
        )
        if valid:
            line = f"step {record['step']:,}  {valid}"
            self._console.print(line, highlight=False)
        elif not self._live:
            step = int(record["step"])
            print(
                f"step {step:,}/{self._total:,}  loss {record['loss']:.4f}  lr {record['lr']:.2e}"
                f"{self._speed}  eta {self._remaining(step)}",
                file=sys.stderr,
                flush=True,
            )

    def _remaining(self, step: int) -> str:
        now = time.monotonic()
        self._marks.append((now, step))
        while len(self._marks) > 2 and now - self._marks[0][0] > _RECENT:
            self._marks.popleft()
        then, before = self._marks[0]
        if step == before:
            return "-"
        seconds = round((self._total - step) * (now - then) / (step - before))
        hours, minutes = divmod(seconds // 60, 60)
        return (
            f"{hours}:{minutes:02d}:{seconds % 60:02d}"
            if hours
            else f"{minutes}:{seconds % 60:02d}"
        )


@contextmanager
def work_progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """The progress of other long work, in bytes: gives ``progress(done, total)``."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total: None
        return
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TimeRemainingColumn(compact=True), console=console) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
