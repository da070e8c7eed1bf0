"""Whether a process of a run is lost or stuck: a pure function of what is observed.

Seconds are those of a thread that counts them, so that a machine that slept is not late.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from plmctl.errors import Preempted

# --- What a process does ---


class Work(NamedTuple):
    """What a process does, and how many time limits that may take without progress."""

    name: str
    limits: float


STARTING = Work("meeting the other processes", math.inf)
PREPARING = Work("preparing the text", math.inf)
COUNTING = Work("counting, for the yardstick", math.inf)
CONNECTING = Work("connecting to the other processes", 1)
BUILDING = Work("building the network", 6)
LOADING = Work("waiting for the batch", 1)
COMPUTING = Work("computing", 1)
COMPILING = Work("computing, for the first time", 6)
VALIDATING = Work("validating", 6)
SCORING = Work("computing the metrics", math.inf)
SAVING = Work("saving", 6)
FINISHING = Work("finishing", math.inf)

BEFORE_LOOP = (STARTING, PREPARING, CONNECTING, BUILDING, COUNTING)


# --- What is observed ---


class Report(NamedTuple):
    """What a process tells the others; ``late``: it is over the limit of its work."""

    number: int = 0
    host: str = "an unknown machine"
    work: str = "starting"
    step: int | None = None
    seconds: float = 0.0
    late: bool = False

    @property
    def what(self) -> str:
        """The work and its step."""
        return self.work if self.step is None else f"{self.work}, step {self.step}"

    def __str__(self) -> str:
        return f"{self.what} for {self.seconds:.0f} s"


class Peer(NamedTuple):
    """The last report of another process, and the seconds since it came."""

    report: Report = Report()
    unheard: float = 0.0


class Stop(NamedTuple):
    """What a process leaves for the others when it ends them."""

    rank: int
    host: str
    text: str
    code: int
    stuck: bool = False


@dataclass(frozen=True)
class Observation:
    """What a process knows of itself and of the others.

    Attributes:
        timeout: Seconds without progress, after which the run ends (``launch.timeout``).
        seconds: Without progress of this process.
        busy: CPU seconds of this process, and of those that make its batches, in that time.
        peers: The other processes, by number; empty: there are none.
        since_stop: Seconds since ``stop`` came.
    """

    timeout: float
    work: Work
    step: int | None = None
    seconds: float = 0.0
    busy: float = 0.0
    peers: Mapping[int, Peer] = field(default_factory=dict)
    stop: Stop | None = None
    since_stop: float = 0.0

    @property
    def limit(self) -> float:
        """Seconds that the work may take; less two reports, so that others know in time."""
        return self.work.limits * self.timeout - 2 * beat(self.timeout)

    def lost(self) -> dict[int, Peer]:
        """The processes from which nothing was heard for too long."""
        most = max(4 * beat(self.timeout), 0.5 * self.timeout)
        return {rank: peer for rank, peer in self.peers.items() if peer.unheard > most}


def beat(timeout: float) -> float:
    """Seconds between two reports of a process."""
    return min(2.0, timeout / 10)


# --- The verdict ---


class Verdict(Enum):
    """What a process is told about the run."""

    FINE = "continues"
    BUSY = "a batch takes long, and its makers compute: the time is counted from here"
    LATE = "this process makes no progress; another one does"
    NO_BATCH = "no batch comes, and its makers do nothing"
    LOST = "a process is lost"
    STUCK = "no process makes progress"
    ENDED = "another process has ended the run"


_BUSY = 0.05  # CPUs: processes that use less than this are not making a batch

REST = 5.0  # seconds for a process to report the failure of another by itself


def judge(seen: Observation) -> Verdict:
    """Whether the run continues, and if not, why."""
    if seen.stop is not None:  # this process may be about to fail in the same way
        over = seen.stop.stuck or seen.since_stop > min(REST, seen.timeout / 2)
        return Verdict.ENDED if over else Verdict.FINE
    late, loads, lost = seen.seconds > seen.limit, seen.work is LOADING, seen.lost()
    if late and loads and seen.busy > _BUSY * seen.limit:
        return Verdict.BUSY
    if not seen.peers:
        return Verdict.NO_BATCH if late and loads else Verdict.FINE
    waits = seen.seconds > seen.timeout - 2 * beat(seen.timeout)
    if lost and waits and seen.work is not FINISHING:  # then others may have ended
        return Verdict.LOST  # more time would not help
    if not late:
        return Verdict.FINE
    if any(rank not in lost and not peer.report.late for rank, peer in seen.peers.items()):
        return Verdict.LATE
    return Verdict.LOST if lost else Verdict.STUCK


_SHOWN = 4  # processes in a message


def message(verdict: Verdict, seen: Observation, rank: int, host: str, *, machines: bool) -> str:
    """Who is waited for by the process ``rank`` on ``host``, and what to do on all machines."""
    since = f"for {seen.timeout:g} s (launch.timeout)"
    hint = (
        f"the checkpoints are intact: run the same command again"
        f"{' on every machine' if machines else ''}; if nothing was wrong, increase launch.timeout"
    )
    if seen.work is CONNECTING:
        hint = (
            "check that no firewall is between the machines, and that GLOO_SOCKET_IFNAME or "
            f"NCCL_SOCKET_IFNAME is the interface that connects them; then {hint}"
        )
    if verdict is Verdict.NO_BATCH:
        faults = [
            f"no batch {since}, and the processes that make batches do nothing",
            "compute.workers=0 works without them",
        ]
    elif verdict is Verdict.LOST:
        faults = [
            f"process {other} on {report.host} is lost: nothing heard from it for "
            f"{unheard:.0f} s" + (f"; the last was: {report}" if report.number else "")
            for other, (report, unheard) in seen.lost().items()
        ]
    else:
        own = Report(0, host, seen.work.name, seen.step, seen.seconds)
        all_reports = {other: peer.report for other, peer in seen.peers.items()} | {rank: own}
        everybody = sorted(all_reports.items())
        # The others wait for it in a sum over all processes, which is part of computing.
        stuck = [(r, one) for r, one in everybody if one.work != COMPUTING.name]
        faults = [f"process {r} on {one.host} is stuck: {one}" for r, one in stuck]
        if not stuck:
            faults = [f"no process makes progress {since}"]
            faults += [f"process {r} on {one.host}: {one}" for r, one in everybody]
    return at_step(seen.step) + "\n  ".join([*first_few(faults), hint])


def at_step(step: int | None) -> str:
    """The begin of a message about a step."""
    return "" if step is None else f"step {step}: "


def first_few(names: list[str]) -> list[str]:
    """The first few, and how many more there are."""
    more = [f"and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return names[:_SHOWN] + more


def failure_of(stop: Stop) -> str:
    """Why another process ended the run."""
    if stop.stuck:
        return stop.text
    ended = "was stopped" if stop.code == Preempted.exit_code else "failed"
    return f"process {stop.rank} on {stop.host} {ended}: {stop.text}"
