"""One command in several processes: plmctl starts them, and also runs under other launchers."""

import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from plmctl.config.sections import LaunchConfig
from plmctl.cpus import usable_cpus
from plmctl.errors import ConfigError

_PROC = Path("/proc/self/stat")
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def is_worker() -> bool:
    """Whether a launcher (ours, ``accelerate launch``, ``torchrun``) started this process."""
    return "RANK" in os.environ


def is_main() -> bool:
    """Whether this is the process that writes files and messages."""
    return os.environ.get("RANK", "0") == "0"


def process_count(config: LaunchConfig, device: str) -> int:
    """Number of processes to start: as configured, or one per CUDA device.

    Raises:
        ConfigError: More processes than devices.
    """
    import torch

    devices = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    if config.processes == "auto":
        return max(1, devices)
    if devices and config.processes > devices:
        raise ConfigError(
            f"launch.processes: {config.processes} processes, but there are {devices} CUDA devices",
            f"use at most {devices}, or compute.device=cpu",
        )
    return config.processes


def options(until: int | None, *, accept_gap: bool) -> list[str]:
    """The options of a training for each of its processes."""
    limit = [] if until is None else [f"--until={until}"]
    return [*limit, *(["--accept-gap"] if accept_gap else [])]


def start(command: str, config: Path, processes: int, options: Sequence[str] = ()) -> int:
    """Run ``plmctl <command> <config>`` in several processes of this machine, and wait for them.

    Both torchrun and Accelerate's multi-GPU launcher are this function of PyTorch; Accelerate's own
    entry is not used, because on CPU it always starts a single process.

    Args:
        command: The command.
        config: Its file.
        processes: How many.
        options: Options of the command, such as ``--until=3``.

    Returns:
        The exit code of the process that failed first, or 0.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    # The launcher would set an unset value to 1, with a warning, and leave cores idle. All CPUs
    # for each process is wrong too; `__main__` may have set that for a single process.
    if os.environ.get("OMP_NUM_THREADS") in (None, str(usable_cpus())):
        os.environ["OMP_NUM_THREADS"] = str(max(1, usable_cpus() // processes))
    arguments = ["--standalone", "--nproc-per-node", str(processes)]
    if _PROC.exists():  # the launcher would replace our handlers of the other signals
        arguments.append("--signals-to-handle=SIGHUP,SIGQUIT")
    # A stopped run is not a failure, and a failed process has printed its error itself.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    sys.stderr.flush()
    try:
        with _passing_signals_on():
            main([*arguments, "-m", "plmctl", command, str(config), *options])
    except ChildFailedError as error:
        rank, first = error.get_first_failure()
        code = int(first.exitcode)
        if code < 0:  # killed by a signal: its negative number
            print(
                f"plmctl: process {rank} of {processes} was killed by {signal.Signals(-code).name}"
                "\n  run the same command again: it resumes from the last checkpoint",
                file=sys.stderr,
            )
        return code if code > 0 else 128 - code
    return 0


@contextmanager
def _passing_signals_on() -> Iterator[None]:
    """Inside the context, pass this process's signals on to the processes, and wait for them.

    PyTorch's launcher also does so, but kills a process that takes more than 30 seconds to save. It
    starts each process in a separate session, so that Ctrl-C does not reach them by itself.
    """
    if not _PROC.exists():
        yield
        return

    def pass_on(number: int, frame: FrameType | None) -> None:
        for child in _children(os.getpid()):
            os.kill(child, number)

    before = {number: signal.signal(number, pass_on) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def descendants(parent: int) -> list[int]:
    """The child processes of a process, and their children."""
    children = _children(parent)
    return children + [pid for child in children for pid in descendants(child)]


def _children(parent: int) -> list[int]:
    """The child processes of a process that are still running."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended since
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            pids.append(int(path.parent.name))
    return pids
