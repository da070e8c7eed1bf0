"""The CPUs and the memory that this process may use, which can be less than the machine has.

joblib's ``cpu_count`` reads only the top control group, while batch systems set limits in nested
ones, and importing joblib adds 0.3 s to the start of every command.
"""

import math
import os
import sys
from pathlib import Path

_OWN = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


def set_up_threads() -> None:
    """Set OpenMP's and MKL's variables, unless the user has set them, for a shared machine.

    Call this before PyTorch is imported. If another program uses some of the cores, threads that
    spin while they wait (GNU's do for milliseconds) make a step two to three times as slow. Threads
    that sleep immediately cost a tenth of a step on an idle machine, and a fifth of the speed of a
    tiny network. So they spin for about 30 microseconds, if the runtime can, and then sleep.

    MKL promises the same bits from run to run only in this mode (its guide, "Conditional Numerical
    Reproducibility"). Products of matrices were as fast in it, and their bits the same.
    """
    os.environ.setdefault("MKL_CBWR", "AUTO")
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    if quota() is not None:  # PyTorch would start one thread per CPU of the machine
        os.environ.setdefault("OMP_NUM_THREADS", str(usable_cpus()))


def usable_cpus() -> int:
    """CPUs that this process may run on, at least 1, and no more than a container's quota.

    PyTorch and Python ignore the quota: in a container with a quota of two CPUs on a machine with
    64 they start 64 threads, which then wait for each other.
    """
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    granted = quota()
    return allowed if granted is None else max(1, min(allowed, math.ceil(granted)))


def quota(own: Path = _OWN, root: Path = _ROOT) -> float | None:
    """CPU time per time, in CPUs, that Linux's control groups allow; None: no limit."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    limits = []
    files: tuple[str, ...]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2; a container sees its own group as the root
            folder, files = root, ("cpu.max",)
        elif "cpu" in controllers.split(","):
            folder, files = root / "cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        else:
            continue
        place = folder / path.lstrip("/")
        for group in (place, *place.parents):
            # "max 100000", "200000 100000", or with version 1 "-1 100000"
            words = [word for name in files for word in _words(group / name)]
            unlimited = len(words) != 2 or words[0] in ("max", "-1")
            if group.is_relative_to(folder) and not unlimited:
                limits.append(int(words[0]) / int(words[1]))
    return min(limits, default=None)


def usable_memory() -> int:
    """Bytes of memory that this process may use: the machine's, or a container's limit."""
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limit = _words(_ROOT / "memory.max")
    if limit and limit[0].isdigit():
        sizes.append(int(limit[0]))
    return min(sizes)


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split()
    except OSError:
        return []
