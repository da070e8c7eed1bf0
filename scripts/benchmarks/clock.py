"""What a side measures of itself."""

import argparse
import resource
import statistics
import time
from itertools import pairwise
from pathlib import Path


def peak_mb() -> float:
    """Of this process; Linux's ``ru_maxrss`` would have the parent's from before the start."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    lines = status.read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def resident_mb() -> float:
    """Of this process now; 0 where it is unknown."""
    status = Path("/proc/self/statm")
    if not status.is_file():
        return 0.0
    return int(status.read_text(encoding="utf-8").split()[1]) * resource.getpagesize() / 2**20


class Clock:
    """The ends of steps, in seconds and in CPU seconds of all threads; the first two warm up."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._ends: list[tuple[float, float, float]] = []
        self._first = 0.0
        self._before = resident_mb()

    def tick(self, tokens: float = 0) -> None:
        """A step has ended.

        Args:
            tokens: That it had, without padding.
        """
        self._first = self._first or time.time() - self._args.began
        self._ends.append((time.perf_counter(), time.process_time(), tokens))

    def results(self) -> dict[str, float]:
        """Of the median step; where steps differ in tokens, of all of them."""
        steps = list(pairwise(self._ends[1:]))
        tokens = [after[2] for _, after in steps]
        seconds = [after[0] - before[0] for before, after in steps]
        if len(set(tokens)) == 1:
            speed = tokens[0] / statistics.median(seconds)
        else:
            speed = sum(tokens) / sum(seconds)
        return {
            "tokens_per_second": speed,
            "tokens": statistics.mean(tokens),
            "cpu_seconds": statistics.mean(after[1] - before[1] for before, after in steps),
            "peak_mb": peak_mb(),
            "before_mb": self._before,
            "first_step": self._first,
        }
