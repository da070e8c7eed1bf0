"""Exit codes, and what an error looks like."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import plmctl
from plmctl.errors import ConfigError, DataError, PlmError, Preempted
from tests.conftest import Cli

PLMCTL = [sys.executable, "-m", "plmctl"]


def test_version(cli: Cli) -> None:
    assert cli("--version") == (0, f"plmctl {plmctl.__version__}\n", "")


def test_the_module_and_the_entry_point_are_the_same_program() -> None:
    script = Path(sys.executable).with_name("plmctl")
    for program in (PLMCTL, [str(script)]):
        done = subprocess.run([*program, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout == f"plmctl {plmctl.__version__}\n"


def test_windows_is_refused_before_a_module_of_unix_is_imported() -> None:
    code = (
        "import sys; sys.platform = 'win32'; sys.modules.update(fcntl=None, resource=None);"
        "from plmctl.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("plmctl: Windows is not supported; its Linux (WSL2) is\n")
    assert "`wsl --install`" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pretrian", "x.yaml"], "Did you mean 'pretrain'?"),
        (["pretrain"], "Missing argument 'CONFIG'"),
        (["pretrain", "x.yaml", "--frsh"], "--fresh"),
        (["predict", "m", "text", "--top", "0"], "--top"),
        (["config", "show", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["config", "schema", "pretraining"], "did you mean 'pretrain'?"),
        (["resume", "runs/x", "--fast"], "run the same command again"),
        (["eval", "m", "--suite", "glue", "a=1"], "write: plmctl suite m glue a=1\n"),
        (["eval", "m", "--seeds=2", "--suite=glue"], "write: plmctl suite m glue --seeds=2\n"),
        (
            ["eval", "a", "b", "--text", "c d"],
            "write: plmctl compare-tokenizers a b --text 'c d'\n",
        ),
    ],
)
def test_wrong_usage_is_2(cli: Cli, arguments: list[str], message: str) -> None:
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_an_expected_error_is_a_message_and_what_to_do(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text("name: CI\n")
    assert cli("config", "show", "c.yaml") == (
        2,
        "",
        "plmctl: c.yaml: no config of plmctl\n  a tokenizer's has the key `algorithm`, pretraining "
        "`tokenizer`, finetuning `task`, evaluation `measures`\n",
    )


def test_the_other_processes_of_a_run_are_silent(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a machine: the first one of each prints the error."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert cli("config", "show", "nowhere.yaml") == (2, "", "")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert "nowhere.yaml" in cli("config", "show", "nowhere.yaml")[2]


@pytest.mark.parametrize("place", [0, 2, 3])
def test_debug_shows_the_traceback_wherever_it_stands(place: int) -> None:
    arguments = ["config", "show", "nowhere.yaml"]
    arguments.insert(place, "--debug")
    done = subprocess.run([*PLMCTL, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ConfigError: nowhere.yaml: no such file" in done.stderr


def test_debug_after_two_dashes_is_a_text(cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli("predict", str(tmp_path), "--", "--debug")
    assert (code, err.startswith(f"plmctl: {tmp_path} is not a model folder")) == (2, True)


@pytest.mark.parametrize(
    ("error", "code"), [(PlmError, 1), (ConfigError, 2), (DataError, 3), (Preempted, 75)]
)
def test_exit_codes(error: type[PlmError], code: int) -> None:
    assert error("what", "do").exit_code == code
    assert str(error("what", "do")) == "what\n  do"
    assert str(error("what")) == "what"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a named pipe")
def test_an_interrupt_is_130(tmp_path: Path) -> None:
    pipe = tmp_path / "c.yaml"
    os.mkfifo(pipe)  # reading it waits for a writer
    running = subprocess.Popen(
        [*PLMCTL, "config", "show", str(pipe)],
        stderr=subprocess.PIPE,
        text=True,
    )
    writer = os.open(pipe, os.O_WRONLY)  # opens once the command reads
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=300)
    os.close(writer)
    assert running.returncode == 130
    assert "Traceback" not in err
