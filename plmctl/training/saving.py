"""Saving: at once, or behind the loop's back."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Thread
from types import TracebackType
from typing import Any

from plmctl.errors import PlmError
from plmctl.training.checkpoint import Checkpoints
from plmctl.training.journal import Journal, Mark
from plmctl.training.memory import is_out_of_memory
from plmctl.training.sharding import is_sharded
from plmctl.training.state import Snapshot, Trained, snapshot


class Saver:
    """Writes the checkpoints of a run, in the main process.

    In the background the loop stands still only while the state is copied in memory; a thread
    writes, hashes and flushes the copy, which needs no lock of Python's for all but milliseconds.
    One save is under way at a time: a second waits for it. What goes wrong with it is raised by the
    next call, and leaves the earlier checkpoints as they are. Open it as a context: leaving it
    waits for the save, except where a second Ctrl-C says that nobody wants to wait.

    Args:
        checkpoints: Of the run.
        journal: Flushed before every checkpoint, and told of it after.
        background: Whether to go on while a checkpoint is written.
        writes: Whether this is the process that does; others help it to a sharded state.
    """

    def __init__(
        self, checkpoints: Checkpoints, journal: Journal, *, background: bool, writes: bool = True
    ) -> None:
        self._checkpoints, self._journal, self._background = checkpoints, journal, background
        self._writes = writes
        self._thread: Thread | None = None
        self._failure: BaseException | None = None

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            return
        try:
            self.wait()
        except PlmError as error:
            if kind is None:
                raise
            self._journal.warn(str(error))  # what went wrong first is what is raised

    def save(self, step: int, trained: Trained, telemetry: Mapping[str, Any]) -> None:
        """Write the state after ``step`` updates.

        Called by the main process; by all of them where the network is sharded.

        Raises:
            PlmError: The disk refused this one, or the one before it.
        """
        self.wait()
        if not self._writes:
            snapshot(trained, step, telemetry, kept=False)
            return
        mark = self._journal.mark()  # of now: lines that follow a copy belong to a later state
        try:
            state = snapshot(trained, step, telemetry, copy=self._background)
        except (RuntimeError, MemoryError) as error:
            again = self._background and not is_sharded(trained.network)  # others have gone on
            if not (again and is_out_of_memory(error)):
                raise
            self._journal.warn(f"step {step}: no memory for a copy of the state; saved at once")
            self._write(snapshot(trained, step, telemetry), mark)
            return
        if not self._background:
            self._write(state, mark)
            return
        # A daemon: Ctrl-C twice must not wait at the interpreter's end.
        self._thread = Thread(target=self._try, args=(state, mark), daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Raise what went wrong with a save that is over; wait for none."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Until no save is under way.

        Raises:
            PlmError: It could not be written.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _try(self, state: Snapshot, mark: Mark) -> None:
        try:
            self._write(state, mark)
        except BaseException as failure:  # whatever it is, the loop's thread raises it
            self._failure = failure

    def _write(self, state: Snapshot, mark: Mark) -> None:
        self._journal.flush()  # a checkpoint that outlives a power cut must not outlive its log
        folder = self._checkpoints.write(state, mark)
        self._journal.event("saved", step=state.state["step"], checkpoint=folder.name)
