"""Help: at once, without the heavy libraries, with an example that works."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from typer.main import get_command

from plmctl.cli.app import GROUPS, app
from plmctl.config.load import shipped_configs
from tests.conftest import Cli

ROOT = Path(__file__).parents[2]

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
PROBE = """
import json, sys
from plmctl.__main__ import main
lines, heavy = json.loads(sys.argv[1])
imported = []
for line in lines:
    sys.argv = ["plmctl", *line]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, line
    imported.append([name for name in heavy if name in sys.modules])
print("\\n" + json.dumps(imported))
"""


def imported(*lines: Sequence[str]) -> list[set[str]]:
    """The heavy libraries that a process has imported by the end of each command line."""
    probe = [sys.executable, "-c", PROBE, json.dumps([lines, HEAVY])]
    done = subprocess.run(probe, capture_output=True, text=True, check=True, cwd=ROOT)
    return [set(names) for names in json.loads(done.stdout.splitlines()[-1])]


def test_the_help_shows_each_command_in_one_group(cli: Cli) -> None:
    grouped = " ".join(GROUPS.values()).split()
    assert sorted([*grouped, "resume"]) == sorted({path[0] for path in COMMANDS if path})
    out = cli("--help")[1]
    shown = re.findall(r"^([A-Z]\w+):$|^  (\S+)  +[A-Z]", out.partition("  -h, --help")[2], re.M)
    table = [word for group, names in GROUPS.items() for word in (group, *names.split())]
    assert [group or name for group, name in shown] == table


def test_help_imports_nothing_heavy() -> None:
    after = imported(*([*command, "--help"] for command in COMMANDS))
    assert dict(zip(COMMANDS, after, strict=True)) == dict.fromkeys(COMMANDS, set())


def test_the_probe_sees_what_is_imported() -> None:
    # Reading a config needs YAML, and never a framework.
    (modules,) = imported(["config", "show", "configs/demo/pretrain.yaml"])
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
    "command",
    [path for path in COMMANDS if path not in ((), ("config",), ("course",))],
    ids=" ".join,
)
def test_the_example_is_a_command_line_that_is_right(
    cli: Cli, command: tuple[str, ...], tmp_path: Path
) -> None:
    _, out, _ = cli(*command, "--help")
    nothing, *examples = re.split(r"\bplmctl ", out.rpartition("Example: ")[2])
    assert not nothing
    assert examples
    for example in examples:
        arguments = shlex.split(example.partition(">")[0])
        assert tuple(arguments[: len(command)]) == command
        rest = arguments[len(command) :]
        if command == ("submit",):  # it takes options of Slurm, too
            code, _, err = cli(*command, *rest, "--out", str(tmp_path / "job.sbatch"))
            assert code == 0, err
        elif rest and rest[0] in SHIPPED:
            settings = (argument for argument in rest[1:] if "=" in argument)
            code, _, err = cli("config", "show", rest[0], *settings)
            assert code == 0, err


def test_short_help_is_not_cut(cli: Cli) -> None:
    for command in ((), ("config",)):
        assert "..." not in cli(*command, "--help")[1].partition("Options:")[2]
