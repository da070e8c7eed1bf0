"""One command, several processes: plmctl starts them itself, and runs under other launchers too."""

import os
import sys
from pathlib import Path

from plmctl.config.run import LaunchConfig
from plmctl.errors import ConfigError


def is_worker() -> bool:
    """Whether a launcher (ours, ``accelerate launch``, ``torchrun``) started this process."""
    return "RANK" in os.environ


def is_main() -> bool:
    """Whether this process is the one that writes and speaks."""
    return os.environ.get("RANK", "0") == "0"


def process_count(config: LaunchConfig, device: str) -> int:
    """How many processes to start: what was asked for, or one a CUDA device.

    Raises:
        ConfigError: More processes than devices.
    """
    import torch

    devices = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    if config.processes == "auto":
        return max(1, devices)
    if devices and config.processes > devices:
        raise ConfigError(
            f"launch.processes: {config.processes} processes, but {devices} CUDA devices are here",
            f"use at most {devices}, or compute.device=cpu",
        )
    return config.processes


def start(command: str, config: Path, processes: int) -> int:
    """Run ``plmctl <command> <config>`` in several processes of this machine; wait for their end.

    Both torchrun and Accelerate's multi-GPU launcher are this function of PyTorch; Accelerate's own
    entry is not used because it starts a single process on CPU, whatever it is asked for.

    Returns:
        The exit code of the process that failed first, or 0.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    # An unset value is announced by a warning and becomes 1, which would leave cores idle.
    threads = max(1, (os.cpu_count() or 1) // processes)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    arguments = ["--standalone", "--nproc-per-node", str(processes), "-m", "plmctl"]
    sys.stderr.flush()
    try:
        main([*arguments, command, str(config)])
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        code = int(first.exitcode)
        return code if code > 0 else 128 - code  # a signal's number comes negative
    return 0
