"""Messages and progress on stderr, results on stdout.

Progress is a live bar on a terminal and plain lines elsewhere. Only the main process of a run
writes.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Literal, cast

from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table

from plmctl.addresses import shown
from plmctl.formatting import format_duration, printable, printable_json
from plmctl.run import launch

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


# --- Messages and results ---


COMPILE_NOTE = (
    "the first steps compile the network, which takes a minute or more; "
    "set compute.compile=false to skip it"
)
"""The message before a compiled network trains."""

ONE_PROCESS_NOTE = (
    "launch.strategy: fsdp has one process, which keeps all weights: there is nothing to shard"
)
"""The message if weights would be sharded among several processes, and there is one."""

_UNLIMITED = 100_000  # characters of a line


_COLLECTED: ContextVar[list[str] | None] = ContextVar("collected", default=None)


@contextmanager
def collected() -> Iterator[list[str]]:
    """The messages of this thread meanwhile, for a page in place of stderr."""
    messages: list[str] = []
    token = _COLLECTED.set(messages)
    try:
        yield messages
    finally:
        _COLLECTED.reset(token)


def say(message: str) -> None:
    """A message on stderr, from the main process only; or where ``collected`` puts it."""
    if (messages := _COLLECTED.get()) is not None:
        messages.append(shown(message))
    elif launch.is_main():
        print(printable(shown(message)), file=sys.stderr, flush=True)


def show_result(
    document: Mapping[str, object], tables: list[Table], *, as_json: bool, whole: bool = False
) -> None:
    """A command's result: one JSON document, or tables for reading.

    Args:
        whole: Do not wrap lines in a pipe or a file.
    """
    if not launch.is_main():
        return
    if as_json:
        print(printable_json(document))
        return
    console = Console()
    names = [sum(map(_least_width, table.columns)) for table in tables]
    if any(column.no_wrap for table in tables for column in table.columns):  # see rows_table
        console = Console(width=max(console.width, *names))
    if whole and not console.is_terminal:
        unlimited = console.options.update(max_width=_UNLIMITED)
        widths = [Measurement.get(console, unlimited, table).maximum for table in tables]
        console = Console(width=max(console.width, *widths))
    for table in tables:
        console.print(table, "")  # and a blank line


def _least_width(column: Column) -> int:
    """Characters of a column: all of its names, or a few of what can be folded."""
    texts = [column.header, *column.cells] if column.no_wrap else []
    return max((len(str(text)) for text in texts), default=8) + 2


# --- The progress of a training ---


Value = float | int | str

_REFRESH = 0.1  # seconds between redraws; between them a tick only reads the clock

_WIDE = 110  # columns of a terminal that has room for memory and validation beside the bar

_WIDEST = 130  # ... and for the next checkpoint

_MUCH_WAITING = 0.05  # of the time; less is not worth a word

_PLAIN = 5.0  # seconds between plain lines: a log file needs no more, metrics.jsonl has them all


class Display:
    """The progress of a run.

    Args:
        counted: The losses of counts, by what is counted and by term.
    """

    def __init__(
        self,
        title: str,
        total: int,
        *,
        quiet: bool,
        counted: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        self._counted = counted or {}
        self._title, self._total, self._quiet = title, total, quiet
        self._console = _console()
        self._bar = _bar(self._console, titled=False) if _is_live() and not quiet else None
        self._task = cast("TaskID", 0)
        self._pace, self._speed, self._began = Pace(total), "", time.monotonic()
        self._waiting = self._memory = self._valid = ""
        self._next_refresh = self._next_line = 0.0

    def __enter__(self) -> Display:
        if self._bar:
            self._task = self._bar.add_task("", total=self._total, status="starting")
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
        """The run starts, or continues after ``step``."""
        self._began = time.monotonic()
        self._pace = Pace(self._total)
        self._pace.mark(self._began, step)
        if not self._quiet:
            after = f", continuing after step {step:,}" if step else ""
            self._print(f"{self._title}: {self._total:,} steps{after}")
            if self._counted:
                self._print(f"loss to beat: {counted_in_words(self._counted)}")
        if self._bar:
            self._bar.update(self._task, completed=step)
            self._bar.start()

    def tick(self, step: int, loss: float | None, saves_at: int | None = None) -> None:
        """A step is done; the loss is the last one that is known.

        ``saves_at`` is the step of the next checkpoint.
        """
        if self._quiet:
            return
        now = time.monotonic()
        if now < self._next_refresh and step < self._total:
            return
        self._next_refresh = now + _REFRESH
        self._pace.mark(now, step)
        if self._bar:
            known = "" if loss is None else f"  loss {loss:.3f}"
            wide = self._console.width >= _WIDE
            valid, end = (self._valid, self._waiting + self._memory) if wide else ("", "")
            if self._console.width >= _WIDEST and saves_at is not None and step < self._total:
                end += f"  saves at {saves_at:,}"
            more = f"{valid}{self._speed}{end}"
            status = f"{step:,}/{self._total:,}{known}{more}  {self._clock(step)}"
            self._bar.update(self._task, completed=step, status=status)

    def log(self, record: Mapping[str, Value]) -> None:
        """A record: a line if there is no bar, else its speed, memory and validation in the bar.

        A validation is a line in any case. Waiting for data is shown if it is much.
        """
        if self._quiet:
            return
        if "tokens_per_second" in record:
            wait = float(record.get("data_wait", 0))
            self._waiting = f"  {wait:.0%} waiting for data" if wait >= _MUCH_WAITING else ""
            self._speed = f"  {record['tokens_per_second']:,.0f} tok/s"
        if "memory_gb" in record:
            self._memory = f"  {record['memory_gb']:.1f} GB"
        if "valid/loss" in record:
            self._valid = f" (valid {float(record['valid/loss']):.3f})"
        valid = _validation(record)
        if valid:
            note = self._compared(float(record.get("valid/loss", math.nan)))
            self._print(f"step {record['step']:,}  validation  {valid}{note}")
        elif not self._bar and "loss" in record:
            self._plain(record)

    def say(self, line: str) -> None:
        """A line, above the bar if there is one."""
        if not self._quiet:
            self._print(line)

    def _compared(self, loss: float) -> str:
        """The best of what a validation loss has passed, or the first that it has to pass."""
        levels = {name: one["loss"] for name, one in self._counted.items() if "loss" in one}
        passed = [name for name, level in levels.items() if loss < level]
        if not levels:
            return ""
        name = min(passed, key=lambda name: levels[name]) if passed else next(iter(levels))
        below = "below " if passed and name != FREQUENCIES else ""
        return f"  ({below}{levels[name]:.3f} = {name})"

    def _plain(self, record: Mapping[str, Value]) -> None:
        step, now = int(record["step"]), time.monotonic()
        if now < self._next_line and step < self._total:
            return
        self._next_line = now + _PLAIN
        self._print(
            f"step {step:,}/{self._total:,}  loss {float(record['loss']):.4f}{_terms(record)}"
            f"  lr {float(record['lr']):.2e}{self._speed}{self._waiting}  {self._clock(step)}"
        )

    def _clock(self, step: int) -> str:
        if step >= self._total:
            return f"in {format_duration(time.monotonic() - self._began)}"
        return f"eta {format_duration(self._pace.remaining())}"

    def _print(self, line: str) -> None:
        _print(self._console, line)


class Pace:
    """The recent speed of work, and the time that the rest takes.

    rich has such an estimate, but none for work whose units take longer than its window.

    Args:
        window: Seconds that count as recent.
    """

    def __init__(self, total: int, window: float = 60.0) -> None:
        self._total, self._window = total, window
        self._marks: deque[tuple[float, int]] = deque()

    def mark(self, now: float, done: int) -> None:
        """Record that ``done`` units are complete at the time ``now``, in seconds of any clock."""
        self._marks.append((now, done))
        # The last mark before the window is kept, so that slow work has a speed too.
        while len(self._marks) > 2 and now - self._marks[1][0] >= self._window:
            self._marks.popleft()

    def remaining(self) -> float:
        """Seconds that the rest takes at the recent speed; nan before there is a speed."""
        if len(self._marks) < 2:
            return math.nan
        (then, before), (now, done) = self._marks[0], self._marks[-1]
        return (self._total - done) * (now - then) / (done - before) if done > before else math.nan


FREQUENCIES = "token frequencies alone"
"""What is counted for ``run.frequencies``."""


def counted_in_words(counted: Mapping[str, Mapping[str, float]]) -> str:
    """``7.313 = token frequencies alone (mlm 6.620, nsp 0.693)``, and so on."""
    return ", ".join(_level_in_words(name, losses) for name, losses in counted.items())


def _level_in_words(name: str, losses: Mapping[str, float]) -> str:
    terms = {term: loss for term, loss in losses.items() if term != "loss"}
    each = ", ".join(f"{term} {loss:.3f}" for term, loss in terms.items())
    if "loss" not in losses:
        return f"{each} = {name}"
    more = f" ({each})" if len(terms) > 1 else ""
    return f"{losses['loss']:.3f} = {name}{more}"


def _terms(record: Mapping[str, Value]) -> str:
    """`` (mlm 5.811, nsp 0.599)`` of a run with several loss terms."""
    terms = [f"{k[5:]} {float(v):.3f}" for k, v in record.items() if k.startswith("loss/")]
    return f" ({', '.join(terms)})" if terms else ""


def _validation(record: Mapping[str, Value]) -> str:
    """``loss 5.312  accuracy/mlm 0.214``; loss terms only if there are several."""
    metrics = {
        name.removeprefix("valid/"): value
        for name, value in record.items()
        if name.startswith("valid/")
    }
    terms = [name for name in metrics if name.startswith("loss/")]
    hidden = terms if len(terms) == 1 else []
    return "  ".join(f"{name} {v:.3f}" for name, v in metrics.items() if name not in hidden)


# --- The progress of other long work ---


@contextmanager
def work_progress(
    title: str, unit: Literal["bytes", "items"] = "bytes"
) -> Iterator[Callable[[int, int], None]]:
    """The progress of other long work.

    Yields:
        ``progress(done, total)``; it may be called often.
    """
    console = _console()
    if _is_live():
        with _bar(console, titled=True) as bar:
            yield _LiveWork(title, unit, bar)
    else:
        yield _PlainWork(title, unit, console)


class _LiveWork:
    def __init__(self, title: str, unit: str, bar: Progress) -> None:
        self._unit, self._bar, self._pace = unit, bar, Pace(0)
        self._task = bar.add_task(title, total=None, status="starting")
        self._total, self._next, self._began = -1, 0.0, time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if total != self._total:
            self._total, self._pace = total, Pace(total)
        elif now < self._next and done < total:
            return
        self._next = now + _REFRESH
        self._pace.mark(now, done)
        left = f"eta {format_duration(self._pace.remaining())}"
        clock = left if done < total else f"in {format_duration(now - self._began)}"
        status = f"{_amount(done, total, self._unit)}  {clock}"
        self._bar.update(self._task, completed=done, total=total, status=status)


class _PlainWork:
    def __init__(self, title: str, unit: str, console: Console) -> None:
        self._title, self._unit, self._console = title, unit, console
        self._next = time.monotonic() + _PLAIN  # short work needs no line

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _PLAIN
            line = f"{self._title}  {_amount(done, total, self._unit)}  {done / max(total, 1):.0%}"
            _print(self._console, line)


def _amount(done: int, total: int, unit: str) -> str:
    if unit == "bytes":
        return f"{done / 1e6:,.1f}/{total / 1e6:,.1f} MB"
    return f"{done:,}/{total:,}"


# --- The terminal ---


def _console() -> Console:
    return Console(stderr=True)


def _print(console: Console, line: str) -> None:
    """A line, above the bar if there is one; only on a terminal it is wrapped."""
    console.print(printable(line), highlight=False, markup=False, soft_wrap=not _is_live())


def _is_live() -> bool:
    # Not rich's is_terminal: with FORCE_COLOR it is true for a log file.
    return sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def _bar(console: Console, *, titled: bool) -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn

    title = [TextColumn("{task.description}", style="bold")] if titled else []
    return Progress(
        *title,
        BarColumn(bar_width=None),
        TextColumn("{task.fields[status]}", markup=False),
        console=console,
        expand=True,
        refresh_per_second=round(1 / _REFRESH),
    )
