"""A command in a process of its own, forked from one that has imported everything: cheap to kill.

Importing torch and transformers takes seconds, a fork milliseconds. The process is a real one, and
SIGKILL ends it as any other.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from plmctl.errors import PlmError
from plmctl.runs.launch import descendants


@dataclass
class Child:
    """A process that was started.

    Attributes:
        pid: Its number.
        code: Its exit code, negative for a signal; None while it runs.
    """

    pid: int
    code: int | None = None

    def ended(self) -> bool:
        """Whether it is over; does not wait."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def wait(self) -> int:
        """Its exit code."""
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def kill(self) -> None:
        """SIGKILL, for it and for all that it has started."""
        for pid in (self.pid, *descendants(self.pid)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:  # it was just over
                continue
        self.wait()


def start(body: Callable[[], None], log: Path) -> Child:
    """Run ``body`` as a command; what it says goes to ``log``."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return Child(pid)
    code = 1
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        code = _exit_code(body)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)  # never back into the parent's program


def _exit_code(body: Callable[[], None]) -> int:
    try:
        body()
    except PlmError as error:
        print(f"plmctl: {error}", file=sys.stderr)
        return error.exit_code
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
