"""Run every command line of a README: the lines that begin with ``$`` in its console blocks.

    python scripts/check_readme.py [--quick] README.md

Commands run in order in the checkout, with .venv's programs first on the path. ``git clone`` and
what follows ``cd`` are the reader's; the checkout is there already. The test command is left out
here, because the gate has run it. With ``--quick`` the demos only try that everything works.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

_READERS = ("git clone", "cd ", "make test")


def commands(text: str) -> list[str]:
    """The command lines of all console blocks, continued lines joined."""
    lines = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        joined = block.replace("\\\n", " ")
        lines += [line[2:].strip() for line in joined.splitlines() if line.startswith("$ ")]
    return lines


def main() -> None:
    quick, path = "--quick" in sys.argv, Path(sys.argv[-1])
    environment = os.environ | {"PATH": f"{Path('.venv/bin').resolve()}:{os.environ['PATH']}"}
    if quick:
        environment["DEMO"] = "--quick"  # of the Makefile
    lines = [c for c in commands(path.read_text(encoding="utf-8")) if not c.startswith(_READERS)]
    if not lines:
        raise SystemExit(f"{path}: no command lines found")
    for line in lines:
        if quick and line.startswith("plmctl demo"):
            line += " --quick"
        print(f"$ {line}", flush=True)
        began = time.monotonic()
        done = subprocess.run(["bash", "-c", line], env=environment, check=False)
        print(f"[exit {done.returncode} after {time.monotonic() - began:.0f} s]", flush=True)
        if done.returncode:
            raise SystemExit(f"{path}: failed: {line}")
    print(f"{len(lines)} command lines of {path} ran")


if __name__ == "__main__":
    main()
