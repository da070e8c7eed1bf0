"""``docs/new-objective.md`` as a user follows it: the file, the config, the commands."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import plmctl

PACKAGE = Path(plmctl.__file__).parent
PAGE = PACKAGE.parent / "docs" / "new-objective.md"


@pytest.mark.slow
def test_the_worked_example_runs(world: Path, tmp_path: Path) -> None:
    blocks = dict(re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    shutil.copytree(PACKAGE, tmp_path / "plmctl")
    (tmp_path / "plmctl/objectives/backward_lm.py").write_text(blocks["python"], encoding="utf-8")
    (world / "backward.yaml").write_text(blocks["yaml"], encoding="utf-8")
    outputs = []
    for line in blocks["sh"].splitlines():
        program, *arguments = shlex.split(line)
        done = subprocess.run(
            [sys.executable, "-m", program, *arguments],
            cwd=world,
            env=os.environ | {"PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert re.search(r"mean_targets_lm +32", outputs[0])
    lines = (world / "run-backward/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [record["loss"] for record in map(json.loads, lines) if "loss" in record]
    assert len(losses) >= 3
    assert losses[2] < losses[0]
