"""The errors that a user can fix: one plain message, what to do, and the exit code.

Any other exception is a defect of plmctl and shows its traceback.
"""

import difflib
import errno
import os
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

_SHOWN, _COMPARED = 50, 10_000  # names: a file may have a million columns


class PlmError(Exception):
    """An expected failure.

    Args:
        message: What is wrong and where, in one line (``file:line: key: ...`` when there is one).
        hint: What to do about it.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class ConfigError(PlmError):
    """A wrong command line or config."""

    exit_code = 2


class DataError(PlmError):
    """Data that cannot be used: the message names the file and, if possible, the line."""

    exit_code = 3


class Preempted(PlmError):
    """The run received a request to stop and saved a checkpoint: the same command continues it."""

    exit_code = 75


# --- Limits of the machine: disk, permissions, open files, processes, memory ---


_SPACE = "free some space there, or write to another disk, and run the same command again"
_FILES = "raise the limit of open files (`ulimit -n`{}), and run the same command again"
_MEMORY = (
    "free some memory, raise the limit (`ulimit -v`{}, or that of the container or the job), or "
    "use a smaller batch, model or file, and run the same command again"
)
_RIGHTS = "check who may read and write there (`ls -ld`), or name another place"
_AGAIN = "check the disk or the connection to it, and run the same command again"

_HINTS = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: f"your quota is used up: {_SPACE}",
    errno.EFBIG: "no file may be larger there: raise the limit (`ulimit -f`{}), or write to another"
    " file system, and run the same command again",
    errno.EROFS: "nothing can be written there: name a folder on another disk",
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES.format(", or the machine's, fs.file-max"),
    errno.ENOMEM: _MEMORY,
    errno.EAGAIN: "raise the limit of processes and threads (`ulimit -u`{}) or of memory "
    "(`ulimit -v`), or use fewer of them, and run the same command again",
    errno.EIO: _AGAIN,
    errno.ESTALE: _AGAIN,
    errno.ENOTCONN: _AGAIN,
}
_LIMITS = {
    errno.EFBIG: "RLIMIT_FSIZE",
    errno.EMFILE: "RLIMIT_NOFILE",
    errno.ENOMEM: "RLIMIT_AS",
    errno.EAGAIN: "RLIMIT_NPROC",
}
_WORDS = {
    **{os.strerror(number).lower(): number for number in _HINTS},
    "bad_alloc": errno.ENOMEM,
    "can't allocate memory": errno.ENOMEM,
    "not enough memory": errno.ENOMEM,
    "failed to map segment": errno.ENOMEM,  # of a library
    "error return without exception set": errno.ENOMEM,  # Python 3.11: none for a call's frame
    "can't start new thread": errno.EAGAIN,
    "ancdata": errno.EMFILE,  # a file that another process sent could not be received
}
"""The errors of libraries that have no number, by a part of their text."""


def machine_error(error: BaseException) -> PlmError | None:
    """The error for a full or read-only disk, a missing permission, or too few files or memory.

    Args:
        error: Any error of Python, of a library, or of another process.

    Returns:
        What is wrong, where, and what to do; None for an error of another kind.
    """
    limit = machine_limit(error)
    if limit is None:
        return None
    what, hint = limit
    place = error.filename if isinstance(error, OSError) else None
    if isinstance(place, bytes):
        place = os.fsdecode(place)
    further = str(error).strip().splitlines()  # of another process: a whole traceback
    if place:
        what = f"{place}: {what}"
    elif further and (not isinstance(error, OSError) or error.errno is None):
        what = f"{what}: {further[-1]}"
    return PlmError(what, hint)


def name_error(error: BaseException) -> ConfigError | None:
    """The error for a path that no file can have; None for an error of another kind."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENAMETOOLONG, errno.ELOOP):
        return None
    shown = os.fsdecode(error.filename or "")
    shown = shown if len(shown) <= 100 else f"{shown[:60]}...{shown[-20:]}"
    return ConfigError(f"{shown}: {error.strerror}", "name another file or folder")


def read_error(error: BaseException, otherwise: PlmError) -> PlmError:
    """The error for a file that cannot be read: ``otherwise``, unless the machine is the reason.

    A missing permission is a reason of the file.
    """
    rights = isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM)
    return otherwise if rights else machine_error(error) or otherwise


def machine_limit(error: BaseException) -> tuple[str, str] | None:
    """What the machine refuses, and what to do about it; None for an error of another kind."""
    number = _number(error)
    if number is None:
        return None
    what = "memory ran out" if number == errno.ENOMEM else os.strerror(number)
    return what, _HINTS[number].format(_limit(number))


def _number(error: BaseException) -> int | None:
    """The number of an error of the operating system, or that a library's text stands for."""
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno if error.errno in _HINTS else None
    if isinstance(error, PlmError) or not isinstance(error, Exception):
        return None
    text = str(error).lower()
    return next((number for words, number in _WORDS.items() if words in text), None)


def _limit(number: int) -> str:
    """The limit of this process, for a hint."""
    import resource  # not on Windows, where this module is imported too

    name = _LIMITS.get(number)
    value = resource.getrlimit(getattr(resource, name))[0] if name else resource.RLIM_INFINITY
    if value == resource.RLIM_INFINITY:
        return ""
    return f" is {value // 1024 if number in (errno.EFBIG, errno.ENOMEM) else value} here"


# --- Misspelled names ---


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message: ``; did you mean 'x'?``, or the known names if none is similar."""
    known = _in_order(known)
    return did_you_mean(near_names(name, known)) or f"; one of: {listed(known)}"


def listed(names: Iterable[str]) -> str:
    """Names for a message, not all of very many."""
    names = _in_order(names)
    more = f", and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def did_you_mean(names: Iterable[str]) -> str:
    """The end of a message: ``; did you mean 'a' or 'b'?``, or an empty text without names."""
    text = " or ".join(map(repr, names))
    return f"; did you mean {text}?" if text else ""


def near_names(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """The known names most similar to a misspelled one, the most similar first."""
    return difflib.get_close_matches(name, _in_order(known)[:_COMPARED], n=most)


def _in_order(names: Iterable[str]) -> list[str]:
    """The names; a set is sorted, since its order differs from process to process."""
    return sorted(names) if isinstance(names, AbstractSet) else list(names)
