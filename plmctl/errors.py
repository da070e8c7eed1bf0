"""The errors that a user can fix: one plain message, what to do, and the exit code.

Any other exception is a defect of plmctl and shows its traceback.
"""

import difflib
from collections.abc import Iterable


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


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message: ``; did you mean 'x'?``, or all known names if none is similar."""
    known = list(known)
    return did_you_mean(near_names(name, known)) or f"; one of: {', '.join(known)}"


def did_you_mean(names: Iterable[str]) -> str:
    """The end of a message: ``; did you mean 'a' or 'b'?``, or an empty text without names."""
    text = " or ".join(map(repr, names))
    return f"; did you mean {text}?" if text else ""


def near_names(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """The known names most similar to a misspelled one, the most similar first."""
    return difflib.get_close_matches(name, list(known), n=most)
