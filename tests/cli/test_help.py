"""Help: at once, without the heavy libraries, with an example that works."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest
from typer.main import get_command

from plmctl.cli import app
from plmctl.config.load import shipped_configs
from tests.cli.conftest import ROOT, Cli

HEAVY = ("torch", "transformers", "datasets", "numpy", "accelerate", "evaluate", "rich", "yaml")


def commands() -> Iterator[tuple[str, ...]]:
    """Every command and group, as it is written after ``plmctl``."""
    todo = [((), get_command(app))]
    while todo:
        path, command = todo.pop()
        yield path
        for name, inner in getattr(command, "commands", {}).items():
            todo.append(((*path, name), inner))


COMMANDS = sorted(commands())
SHIPPED = {name for one in shipped_configs() for name in (one.name, one.place)}


def imported(*arguments: str) -> set[str]:
    """The heavy libraries that a command line has imported by its end."""
    code = (
        "import sys\nfrom plmctl.__main__ import main\n"
        f"sys.argv = ['plmctl', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        f"print('\\n', *sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.rsplit("\n", 2)[-2].split())


def test_all_commands_are_there() -> None:
    assert {path[0] for path in COMMANDS if path} == {
        "demo",
        "train-tokenizer",
        "prepare",
        "preview",
        "pretrain",
        "finetune",
        "eval",
        "compare",
        "export",
        "push",
        "predict",
        "generate",
        "neighbours",
        "report",
        "verify-resume",
        "reproduce",
        "doctor",
        "plan",
        "init",
        "scaling",
        "config",
    }


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_imports_nothing_heavy(command: tuple[str, ...]) -> None:
    assert imported(*command, "--help") == set()


def test_the_probe_sees_what_is_imported() -> None:
    # Reading a config needs YAML, and never a framework.
    modules = imported("config", "show", "configs/demo/pretrain.yaml")
    assert "yaml" in modules
    assert not modules & {"torch", "transformers", "datasets", "accelerate", "evaluate"}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_says_what_a_command_does(cli: Cli, command: tuple[str, ...]) -> None:
    code, out, err = cli(*command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(" ".join(("Usage: plmctl", *command)))
    assert "\\b" not in out
    assert "\b" not in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize(
    "command", [path for path in COMMANDS if path not in ((), ("config",))], ids=" ".join
)
def test_the_example_is_a_command_line_that_is_right(cli: Cli, command: tuple[str, ...]) -> None:
    _, out, _ = cli(*command, "--help")
    nothing, *examples = re.split(r"\bplmctl ", out.rpartition("Example: ")[2])
    assert not nothing
    assert examples
    for example in examples:
        arguments = shlex.split(example.partition(">")[0])
        assert tuple(arguments[: len(command)]) == command
        rest = arguments[len(command) :]
        if rest and rest[0] in SHIPPED:
            settings = (argument for argument in rest[1:] if "=" in argument)
            code, _, err = cli("config", "show", rest[0], *settings)
            assert code == 0, err


def test_short_help_is_not_cut(cli: Cli) -> None:
    for command in ((), ("config",)):
        assert "..." not in cli(*command, "--help")[1].partition("Commands:")[2]
