"""The errors that a user can mend: one plain message, what to do, and the exit code.

Anything else that is raised is a defect of plmctl and shows its traceback.
"""


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
    """Wrong usage or a wrong config."""

    exit_code = 2


class DataError(PlmError):
    """Data that cannot be used: the message names the file and, where there is one, the line."""

    exit_code = 3


class Preempted(PlmError):
    """The run was asked to stop and has saved a checkpoint: the same command continues it."""

    exit_code = 75
