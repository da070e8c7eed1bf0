"""How much of the CPUs other programs used meanwhile, by which a disturbed round is known."""

import os
import resource
from pathlib import Path

_STAT = Path("/proc/stat")
_IDLE = (3, 4)  # of the numbers of a line: idle, and waiting for a disk
_GUEST = 8  # counted in the first two already


class Load:
    """The CPU time of the machine, and of this process and its children, from here on."""

    def __init__(self) -> None:
        self._before = _counts()

    def of_others(self) -> float | None:
        """Share of all CPU time that others used, a hypervisor among them; None: unknown."""
        now = _counts()
        if now is None or self._before is None:
            return None
        total, busy, own = (after - before for after, before in zip(now, self._before, strict=True))
        return max(0.0, busy - own) / total if total > 0 else 0.0


def _counts() -> tuple[float, float, float] | None:
    """Seconds so far: of all CPUs, of those at work, and of our own processes that have ended."""
    if not _STAT.is_file():
        return None
    ticks = [int(word) for word in _STAT.read_text("utf-8").split("\n", 1)[0].split()[1:]][:_GUEST]
    second = os.sysconf("SC_CLK_TCK")
    idle = sum(ticks[at] for at in _IDLE)
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    own = sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, who))
    return sum(ticks) / second, (sum(ticks) - idle) / second, own
