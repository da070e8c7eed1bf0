from collections.abc import Callable
from pathlib import Path

import pytest

from plmctl.__main__ import main

ROOT = Path(__file__).parents[2]
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """``cli(*arguments)`` gives the exit code, stdout and stderr of a command line."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["plmctl", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capfd.readouterr()
        return int(stop.value.code or 0), out, err

    return run
