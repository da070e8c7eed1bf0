"""Stop requests: SIGTERM, SIGUSR1 (which schedulers send in advance), SIGHUP, and Ctrl-C."""

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from plmctl.errors import Preempted
from plmctl.run.launch import is_worker

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_OF_LAUNCHER = (signal.SIGTERM, signal.SIGUSR1)  # it sends or passes on, besides Ctrl-C


def _signals() -> tuple[signal.Signals, ...]:
    """SIGHUP comes when a terminal or an ssh connection closes; nohup makes it ignored."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return _SIGNALS if ignored else (*_SIGNALS, signal.SIGHUP)


def ignore_launcher() -> None:
    """Let this process, one of several, say and record why it ends, when others have ended.

    Its launcher sends SIGTERM to the others when a process ends with an error (30 seconds later
    SIGKILL), and would lose the message of a process that ends a moment later.
    """
    for number in _OF_LAUNCHER:
        signal.signal(number, signal.SIG_IGN)


def _restore(before: Mapping[signal.Signals, Any], error: BaseException | None) -> None:
    """Give the signals back to the handlers of before, at the end of a context."""
    ends = error is not None and is_worker()
    if ends:
        ignore_launcher()
    for number, handler in before.items():
        if not (ends and number in _OF_LAUNCHER):
            signal.signal(number, handler)


class StopAsked(Exception):  # noqa: N818  # a request, not an error
    """A process was requested to stop; all processes raise this at the same point."""


class StopRequest:
    """A flag that the signals set inside the context; the loop saves and stops after its step.

    A second Ctrl-C stops immediately.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None

    def __enter__(self) -> "StopRequest":
        self._before = {number: signal.signal(number, self._note) for number in _signals()}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _restore(self._before, value)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)

    def check(self) -> None:
        """Raise ``Preempted`` if there was a signal: for a loop whose finished work is on disk."""
        if self.received:
            raise _preempted(self.received)


@contextmanager
def stopping_at_once() -> Iterator[None]:
    """Let the signals raise ``Preempted`` immediately inside the context.

    For work whose finished pieces are on disk (preparing text), and for work that is quick to
    repeat (reading rows, building a network). A second Ctrl-C raises ``KeyboardInterrupt``.
    """
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if signal.SIGINT in received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)
        raise _preempted(number)

    before = {number: signal.signal(number, stop) for number in _signals()}
    try:
        yield
    except BaseException as error:
        _restore(before, error)
        raise
    _restore(before, None)


def _preempted(number: int) -> Preempted:
    return Preempted(
        f"stopped by {signal.Signals(number).name}; finished work is kept",
        "run the same command again to resume",
    )
