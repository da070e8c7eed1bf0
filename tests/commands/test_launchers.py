"""The same command under other launchers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.conftest import Cli

QUIET = ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "launcher"),
    [
        ("torchrun", ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]),
        ("accelerate", ["accelerate.commands.launch", "--cpu", "--num_processes", "1"]),
        # --multi_gpu starts two processes; with --cpu, --num_processes 2 would start one.
        (
            "accelerate-2",
            ["accelerate.commands.launch", "--multi_gpu", "--num_machines=1", "--num_processes=2"],
        ),
    ],
)
def test_the_command_under_other_launchers(name: str, launcher: list[str], cli: Cli) -> None:
    command = ["pretrain", "bert.yaml", *QUIET]
    done = subprocess.run(
        [sys.executable, "-m", *launcher, "-m", "plmctl", *command, f"run=by-{name}"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert cli(*command, f"run=alone-{name}")[0] == 0
    logs = [
        [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]
        for run in (f"by-{name}", f"alone-{name}")
    ]
    assert len(logs[0]) == len(logs[1])
    for ours, alone in zip(*logs, strict=True):
        for key in ours.keys() & {"loss", "valid/loss", "grad_norm"}:
            assert ours[key] == pytest.approx(alone[key], rel=2e-6)
