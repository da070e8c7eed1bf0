"""Processes that were started together find each other, whatever the config says of the device."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ASK = """
from plmctl.config.run import ComputeConfig
from plmctl.training.engine import make_accelerator
made = make_accelerator(ComputeConfig())
open(f"{made.process_index}.txt", "w").write(str(made.num_processes))
"""


@pytest.mark.skipif(torch.accelerator.is_available(), reason="the processes would take the devices")
def test_two_processes_on_a_cpu_that_nobody_named(tmp_path: Path) -> None:
    (tmp_path / "ask.py").write_text(ASK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--nproc-per-node", "2", "ask.py"],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"{rank}.txt").read_text() for rank in (0, 1)] == ["2", "2"]
