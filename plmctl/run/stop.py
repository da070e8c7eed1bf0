"""Stop requests: SIGTERM, SIGUSR1 (which schedulers send in advance), SIGHUP, and Ctrl-C."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

from plmctl.errors import Preempted

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def _signals() -> tuple[signal.Signals, ...]:
    """SIGHUP comes when a terminal or an ssh connection closes; nohup makes it ignored."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return _SIGNALS if ignored else (*_SIGNALS, signal.SIGHUP)


class StopAsked(Exception):  # noqa: N818  # a request, not an error
    """A process was requested to stop; all processes raise this at the same point."""


class StopRequest:
    """Inside the context, the signals set a flag; the loop saves and stops after its step.

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
        for number, handler in self._before.items():
            signal.signal(number, handler)

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
    """Inside the context, the signals raise ``Preempted`` immediately.

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
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _preempted(number: int) -> Preempted:
    return Preempted(
        f"stopped by {signal.Signals(number).name}; finished work is kept",
        "run the same command again to resume",
    )
