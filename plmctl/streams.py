"""The standard streams: closed, full, broken, or in an ASCII locale.

Progress and messages go to stderr, results to stdout. A message that nobody can read must not stop
a training; a result that is lost must be reported.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

_DESCRIPTORS = 3


def set_up_streams() -> None:
    """Make the standard streams safe to use; called once, before anything is read or written.

    A closed stream becomes /dev/null: the next file that is opened would get its number, and then
    what a library prints would be written into that file. In an ASCII locale, text is escaped where
    Python would end with a UnicodeEncodeError. Errors of writing to stderr are ignored.
    """
    for number in range(_DESCRIPTORS):
        try:
            os.fstat(number)
        except OSError:  # the lowest free number is the one that is closed
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - as long as the process
    before: TextIO = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stdout = before
    if before is sys.__stdout__:
        escaped = before.encoding.lower() != "utf-8"
        errors = "backslashreplace" if escaped else before.errors or "strict"
        sys.stdout = _open(_Result(1, "w", closefd=False), before, errors, before.isatty())
    before = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    sys.stderr = before
    if before is sys.__stderr__:
        sys.stderr = _open(_Messages(2, "w", closefd=False), before, "backslashreplace", True)


def _open(raw: io.FileIO, before: TextIO, errors: str, by_line: bool) -> TextIO:
    through = isinstance(before, io.TextIOWrapper) and before.write_through  # python -u
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        before.encoding,
        errors,
        line_buffering=by_line,
        write_through=through,
    )


class _Messages(io.FileIO):
    """A file in which what cannot be written is lost."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


class _Result(io.FileIO):
    """A file that cannot be written only once: afterwards it is /dev/null.

    Python flushes stdout once more at the end, and would print the error again.
    """

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            error.filename = "stdout"
            raise


@contextmanager
def result_on_stdout() -> Iterator[None]:
    """A block that prints a result, all of which is written when it ends, as with ``sys.exit(0)``.

    Raises:
        OSError: It cannot be written; its file name is ``stdout``.
    """
    try:
        yield
    except SystemExit as stop:
        if not stop.code:
            sys.stdout.flush()
        raise
    sys.stdout.flush()
