"""The CPUs that this process may use, which need not be all of the machine's, and its threads."""

import math
import os
import sys
from pathlib import Path

_OWN = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


def set_up_threads() -> None:
    """Tell OpenMP, which PyTorch computes with, what suits a shared machine, unless it was told.

    To be called before PyTorch is imported. Threads that wait by spinning, GNU's for milliseconds,
    slow a step two to three times where another program has a part of the cores; threads that sleep
    at once cost a tenth of a step on a quiet machine, and a fifth of a tiny network's speed. So
    they spin for about 30 microseconds, where the runtime knows how, and then sleep.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    if quota() is not None:  # PyTorch would begin a thread for each CPU of the machine
        os.environ.setdefault("OMP_NUM_THREADS", str(usable_cpus()))


def usable_cpus() -> int:
    """CPUs that this process may run on, at least 1, and no more than a container's quota pays for.

    PyTorch and Python go by the first alone: in a container with a quota of two CPUs on a machine
    of 64 they begin 64 threads, which then wait for each other.
    """
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    granted = quota()
    return allowed if granted is None else max(1, min(allowed, math.ceil(granted)))


def quota(own: Path = _OWN, root: Path = _ROOT) -> float | None:
    """CPUs' worth of time that Linux's control groups grant; None: as much as there is.

    Args:
        own: The list of this process's groups.
        root: Where the groups are mounted.
    """
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2; a container sees its own group as the root
            folder, read = root, _unified
        elif "cpu" in controllers.split(","):
            folder, read = root / "cpu", _legacy
        else:
            continue
        place = folder / path.lstrip("/")
        for group in (place, *place.parents):
            if group.is_relative_to(folder) and (limit := read(group)) is not None:
                limits.append(limit)
    return min(limits, default=None)


def _unified(group: Path) -> float | None:
    return _share(_words(group / "cpu.max"))


def _legacy(group: Path) -> float | None:
    return _share(_words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us"))


def _share(words: list[str]) -> float | None:
    """Of "max 100000", "200000 100000", or with version 1 "-1 100000"."""
    if len(words) != 2 or words[0] in ("max", "-1"):
        return None
    return int(words[0]) / int(words[1])


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split()
    except OSError:
        return []
