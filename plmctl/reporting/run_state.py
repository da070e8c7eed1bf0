"""How far a run is: its state, its progress, its last and best validation.

``plmctl status`` and ``plmctl board`` use it. The log of a run is read in pieces: ``LogEnd`` reads
its end first, which has all that a row of the board needs but the best validation, and what is new
later. ``Columns`` holds the whole log, for curves. Files are opened without following links, and
only if they are regular files: a folder of runs may come from elsewhere.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import platform
import re
import stat
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from plmctl.arrays import Floats
from plmctl.files import is_model
from plmctl.reporting.run_files import Status, as_number

StateName = Literal["running", "stopped", "killed", "failed", "finished", "incomplete", "damaged"]

_RECENT = 600.0  # seconds; another machine that wrote within them is taken to be working
_MOST_BYTES = 16_000_000  # of a JSON document


@dataclass(frozen=True)
class State:
    """What a run folder is at.

    Attributes:
        name: "running"; "stopped" (the same command resumes); "killed" (it ended without a word,
            and the same command resumes); "failed"; "finished"; "incomplete" (it was finished, and
            files are missing); "damaged" (its files cannot be read).
        message: Why; empty if there is nothing to add.
        since: ISO 8601; empty if it is unknown.
    """

    name: StateName
    message: str = ""
    since: str = ""


def state_of(folder: Path) -> State:
    """The state of a run, by its lock, its ``status.json`` and the times of its files."""
    if is_locked(folder / ".lock"):
        return State("running", since=_status(folder).time)
    path = folder / "status.json"
    if not path.exists():  # a run of an older version, or one that ended before its first write
        results = ("tokenizer.json", "eval/protocol.json")
        ended = is_model(folder / "model") or any((folder / name).is_file() for name in results)
        return State("finished" if ended else "stopped")
    status = _status(folder)
    if status.name == "finished":
        missing = ", ".join(status.missing(folder))
        if missing:
            return State("incomplete", f"missing: {missing}", status.time)
        return State("finished", since=status.time)
    if status.name == "running":
        if _works_elsewhere(folder):
            return State("running", since=status.time)
        return State("killed", "", status.time)
    if status.name == "stopped":
        return State("stopped", status.message, status.time)
    if status.name == "failed":
        return State("failed", status.message, status.time)
    return State("damaged", "status.json cannot be read")


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a run folder; looking does not lock it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        # struct flock: whether anybody holds what an exclusive lock of the whole file needs.
        if sys.platform == "darwin":
            wanted = struct.pack("qqihh", 0, 0, 0, fcntl.F_WRLCK, 0)
            held = struct.unpack("qqihh", fcntl.fcntl(handle, fcntl.F_GETLK, wanted))[3]
        else:
            wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
            held = struct.unpack("hhqqi4x", fcntl.fcntl(handle, fcntl.F_GETLK, wanted))[0]
        return bool(held != fcntl.F_UNLCK)
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(handle)


def _status(folder: Path) -> Status:
    document = read_document(folder / "status.json") or {}
    text = {key: str(document.get(key, "")) for key in ("time", "message")}
    files = document.get("files")
    listed = tuple(map(str, files)) if isinstance(files, list) else ()
    return Status(str(document.get("status", "")), **text, files=listed)


def _works_elsewhere(folder: Path) -> bool:
    """Whether another machine, whose locks this one may not see, wrote a short time ago."""
    words = read_bytes(folder / ".lock") or b""
    match = re.fullmatch(rb"process \d+ on (.*)", words.strip())
    if match is None or match[1].decode(errors="replace") == platform.node():
        return False
    newest = 0.0
    for name in ("metrics.jsonl", "status.json", "events"):
        with suppress(OSError):
            newest = max(newest, (folder / name).stat().st_mtime)
    return time.time() - newest < _RECENT


# --- Files that may be damaged, half written, or links to elsewhere ---


def open_plain(path: Path) -> int | None:
    """A handle of a regular file; None: there is none, or it is a link, a pipe or a device."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        return None
    return handle


def read_bytes(path: Path, most: int = _MOST_BYTES) -> bytes | None:
    """The content of a regular file of at most so many bytes; None: there is none."""
    handle = open_plain(path)
    if handle is None:
        return None
    with os.fdopen(handle, "rb") as file:
        try:
            content = file.read(most + 1)
        except OSError:
            return None
    return content if len(content) <= most else None


def read_document(path: Path) -> dict[str, Any] | None:
    """A JSON object; None: there is no such file, or it cannot be read."""
    content = read_bytes(path)
    if content is None:
        return None
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


# --- The log of a run, read in pieces ---


_END = 16 * 1024  # bytes that are read of a new log: some fifty lines
_PIECE = 1024 * 1024
_LONGEST = 1_000_000  # bytes of a line; a longer one is read in pieces, none of which is a record
_LOSS = b'"valid/'


@dataclass(frozen=True)
class LoggedValidation:
    """A validation.

    Attributes:
        loss: In nats; nan if it has none.
    """

    step: int
    loss: float


class _Growing:
    """A log file that grows: its new whole lines, at each call.

    A file that was replaced or cut, as a resumed run does with its log, is read from its start.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self._inode: tuple[int, int] | None = None

    def changed(self) -> bool | None:
        """Whether it has more bytes; None: it is another file than before, or there is none."""
        try:
            now = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return None if self._inode else False
        if self._inode is None and stat.S_ISREG(now.st_mode):
            return None
        if (now.st_dev, now.st_ino) != self._inode or now.st_size < self._offset:
            return None
        return now.st_size > self._offset

    def restart(self, skip_to_last: int | None = None) -> int:
        """Read from the start, or only the last bytes; where that is."""
        self._inode, self._offset = None, 0
        handle = open_plain(self._path)
        if handle is None:
            return 0
        with os.fdopen(handle, "rb") as file:
            now = os.fstat(handle)
            self._inode = (now.st_dev, now.st_ino)
            if skip_to_last is not None and now.st_size > skip_to_last:
                file.seek(now.st_size - skip_to_last)
                self._offset = now.st_size - skip_to_last + len(file.readline(_LONGEST))
        return self._offset

    def new_lines(self) -> Iterator[bytes]:
        """The whole lines since the last call."""
        handle = open_plain(self._path)
        if handle is None:
            return
        with os.fdopen(handle, "rb") as file:
            file.seek(self._offset)
            while line := file.readline(_LONGEST):
                if not line.endswith(b"\n") and len(line) < _LONGEST:
                    break  # half written: the next call has it
                self._offset += len(line)
                yield line

    def piece(self, begin: int, end: int) -> bytes:
        """Some bytes of the file."""
        handle = open_plain(self._path)
        if handle is None:
            return b""
        with os.fdopen(handle, "rb") as file:
            file.seek(begin)
            return file.read(end - begin)


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if isinstance(record, dict) and math.isfinite(as_number(record.get("step"))):
        return record
    return None


class LogEnd:
    """The last records of a log, and its best validation.

    ``refresh`` reads the end of a new log, and later what is new. The validations before that are
    read by ``search``, a piece per call, so that nobody waits for them.

    Args:
        path: metrics.jsonl.

    Attributes:
        last: The last training record.
        valid: The last validation record.
        best: The validation with the lowest loss of the last phase, of those that were read.
        unreadable: Lines that could not be read, of those that were read.
    """

    def __init__(self, path: Path) -> None:
        self._file = _Growing(path)
        self._clear()

    def _clear(self) -> None:
        self.last: Mapping[str, Any] = {}
        self.valid: Mapping[str, Any] = {}
        self.best: LoggedValidation | None = None
        self._rank = (0.0, 0.0, 0)  # of the best
        self.unreadable = 0
        self._searched, self._until = 0, 0
        self._times: deque[tuple[float, float]] = deque(maxlen=40)  # step, training seconds

    @property
    def is_curve(self) -> bool:
        """Whether it has two training records or more."""
        return len(self._times) > 1

    @property
    def searched(self) -> bool:
        """Whether all validations were read."""
        return self._searched >= self._until

    def refresh(self) -> bool:
        """Read what is new; whether there was anything."""
        changed = self._file.changed()
        if changed is None:
            self._clear()
            self._until = self._file.restart(_END)
        elif not changed:
            return False
        for line in self._file.new_lines():
            record = _record(line)
            if record is None:
                self.unreadable += bool(line.strip())
            else:
                self._add(record)
        return True

    def search(self) -> bool:
        """Read a piece of the lines before the end; whether a validation was in it."""
        if self.searched:
            return False
        begin, end = self._searched, min(self._searched + _PIECE, self._until)
        piece = self._file.piece(begin, end)
        whole = piece.rfind(b"\n") + 1
        if not whole:  # no line ends here: damaged
            self._searched = end if piece else self._until
            return False
        self._searched = begin + whole
        at, before = piece.find(_LOSS, 0, whole), (self.best, self.valid)
        while at >= 0:
            start, stop = piece.rfind(b"\n", 0, at) + 1, piece.find(b"\n", at)
            if record := _record(piece[start:stop]):
                self._compare(record)
                if not self.valid or self.valid["step"] < record["step"]:
                    self.valid = record
            at = piece.find(_LOSS, stop, whole)
        return (self.best, self.valid) != before

    def seconds_per_step(self) -> float:
        """The recent training time of a step; nan: unknown."""
        if len(self._times) < 2:
            return math.nan
        (before, began), (step, now) = self._times[0], self._times[-1]
        return (now - began) / (step - before) if step > before else math.nan

    def _add(self, record: Mapping[str, Any]) -> None:
        if "loss" in record:
            self.last = record
            self._times.append((as_number(record["step"]), as_number(record.get("time"))))
        elif any(key.startswith("valid/") for key in record):
            self.valid = record
            self._compare(record)

    def _compare(self, record: Mapping[str, Any]) -> None:
        loss, step = as_number(record.get("valid/loss")), int(as_number(record["step"]))
        if not math.isfinite(loss):
            return
        # Sequences of another phase have another length, and so other losses. Of equal losses the
        # first one counts, in whatever order they are read.
        rank = (-as_number(record.get("phase", 0)), loss, step)
        if self.best is None or rank < self._rank:
            self.best, self._rank = LoggedValidation(step, loss), rank


class Columns:
    """A whole log as columns of numbers: of training records, and of validation records.

    Args:
        path: metrics.jsonl.
    """

    def __init__(self, path: Path) -> None:
        self._file = _Growing(path)
        self._clear()

    def _clear(self) -> None:
        self._values: dict[str, dict[str, list[float]]] = {"train": {}, "valid": {}}
        self._counts = {"train": 0, "valid": 0}

    def refresh(self) -> bool:
        """Read what is new; whether there was anything."""
        changed = self._file.changed()
        if changed is None:
            self._clear()
            self._file.restart()
        elif not changed:
            return False
        for line in self._file.new_lines():
            if record := _record(line):
                self._add(record)
        return True

    def of(self, kind: Literal["train", "valid"]) -> dict[str, Floats]:
        """[N] values of each key, nan where one is missing; "step" is one of them."""
        count = self._counts[kind]
        return {
            key: np.array([*values, *[math.nan] * (count - len(values))])
            for key, values in self._values[kind].items()
        }

    def _add(self, record: Mapping[str, Any]) -> None:
        kind = "train" if "loss" in record else "valid"
        columns, count = self._values[kind], self._counts[kind]
        for key, value in record.items():
            column = columns.setdefault(key, [])
            column.extend([math.nan] * (count - len(column)))
            column.append(as_number(value))
        self._counts[kind] += 1
