"""A command imports what it needs, and reads its config once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.conftest import pretrain_config, run_main, write

# None of it is needed before the first step.
NOT_NEEDED = (
    "peft",
    "datasets",
    "evaluate",
    "pandas",
    "pyarrow",
    "sklearn",
    "matplotlib",
    "tensorboard",
)

COMMANDS = """
import json, os, sys
lines, names, config = json.loads(sys.argv[1])
reads = []
def note(event, args):
    if event == "open" and str(args[0]) == config:
        reads.append(config)
sys.addaudithook(note)
from plmctl.__main__ import main
after = []
for line in lines:
    sys.argv = ["plmctl", *line]
    try:
        main()
    except SystemExit as stop:
        assert stop.code in (None, 0, 75), line
    after.append([[name for name in names if name in sys.modules], len(reads)])
print("\\n" + json.dumps(after))
"""


def in_a_process(program: str, *arguments: str, **variables: str) -> str:
    """The last line that a new Python process prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def prepared(world: Path) -> Path:
    """A model to ask, and the text of another run prepared."""
    write("startup.yaml", {**pretrain_config("bert"), "run": "run-startup"})
    assert run_main("pretrain", "startup.yaml", "run=run-startup-model") == 0
    return world


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "reads"),
    [
        (["pretrain", "startup.yaml", "--until", "1"], 1),
        (["predict", "run-startup-model/model", "Anna [MASK] Bela"], 0),
    ],
    ids=["pretrain", "predict"],
)
def test_what_is_imported_until_the_first_step(line: list[str], reads: int, prepared: Path) -> None:
    given = json.dumps([[line], NOT_NEEDED, "startup.yaml"])
    [[imported, opened]] = json.loads(in_a_process(COMMANDS, given))
    assert imported == []
    assert opened == reads
