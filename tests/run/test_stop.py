"""Stop requests."""

import os
import signal
import subprocess
import sys

import pytest

ENDS = """
import os, signal
from plmctl.errors import Preempted
from plmctl.run.stop import StopRequest, stopping_at_once

try:
    with stopping_at_once(), StopRequest():
        raise Preempted("stopped after step 3", "resume")
except Preempted as error:
    os.kill(os.getpid(), signal.SIGTERM)
    print(error.message)
"""


@pytest.mark.parametrize("worker", [True, False])
def test_one_of_several_processes_still_says_why_it_ends(*, worker: bool) -> None:
    """When another process ends first, the launcher sends it SIGTERM."""
    env = os.environ | ({"RANK": "0", "LOCAL_RANK": "0"} if worker else {})
    done = subprocess.run(
        [sys.executable, "-c", ENDS], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout == ("stopped after step 3\n" if worker else "")
    assert done.returncode == (0 if worker else -signal.SIGTERM), done.stderr
