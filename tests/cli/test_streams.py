"""The standard streams: closed, full, without a reader, or of a locale that has no letters."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLMCTL = f"{sys.executable} -m plmctl"


def shell(line: str, **env: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a line of shell, in which PLM is plmctl."""
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line.replace('PLM', PLMCTL)}"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | env,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("command", ["--version", "config schema pretrain", "config list"])
def test_a_result_that_cannot_be_written_is_an_error(command: str) -> None:
    code, _, err = shell(f"PLM {command} > /dev/full")
    assert code == 1
    assert "plmctl: stdout: No space left on device\n  free some space there" in err
    assert "Traceback" not in err
    assert "Exception ignored" not in err


def test_a_reader_that_has_seen_enough_is_no_error_to_report() -> None:
    code, out, err = shell("PLM config schema pretrain | head -c 1")
    assert (code, out, err) == (1, "{", "")


def test_messages_are_lost_where_stderr_is_full() -> None:
    code, out, _ = shell("PLM config show demo/eval 2> /dev/full")
    assert code == 0
    assert out.startswith("run:")


def test_closed_streams_are_not_the_next_file_that_is_opened(tmp_path: Path) -> None:
    """Something that prints to file 1 would otherwise write into it."""
    code = (
        "import os, sys; from plmctl.streams import set_up_streams; set_up_streams();"
        "file = open('data', 'wb'); os.write(1, b'printed'); os.write(2, b'printed');"
        "sys.stdin.read(), sys.stdout.isatty(), sys.stderr.isatty(); print('x'); file.close()"
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    line = f'{sys.executable} -c "{code}" <&- >&- 2>&-'
    assert subprocess.run(["bash", "-c", line], cwd=tmp_path, env=env, check=False).returncode == 0
    assert (tmp_path / "data").read_bytes() == b""


ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


def test_an_argument_that_cannot_be_decoded_is_refused() -> None:
    code, _, err = shell("PLM predict model \u65e5", **ASCII)
    assert code == 2
    assert "not text in the encoding of this locale, ascii" in err
    assert "export LC_ALL=C.UTF-8" in err
