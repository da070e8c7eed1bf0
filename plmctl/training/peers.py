"""The processes of a run: they meet, compare what must agree, and notice when one is lost or stuck.

The main thread of each process says what it does (``Peers.mark``), which costs an assignment. One
thread counts for how long it has done that. With several processes, a second one reports it to the
others every few seconds, through the store by which PyTorch's processes find each other. If nobody
makes progress for longer than the time limit, each process says whom it waited for, prints the
stacks of its threads, and exits.

Times are counted in ticks of a thread, so that a machine that slept is not late.
"""

from __future__ import annotations

import errno
import faulthandler
import json
import math
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from plmctl.errors import PlmError, Preempted
from plmctl.run.launch import descendants, is_worker
from plmctl.run.stop import ignore_launcher

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

    from plmctl.config.sections import LaunchConfig


# --- What a process does ---


class Work(NamedTuple):
    """What a process does, and how many time limits that may take without progress."""

    name: str
    limits: float


STARTING = Work("meeting the other processes", math.inf)
PREPARING = Work("preparing the text", math.inf)
CONNECTING = Work("connecting to the other processes", 1)
BUILDING = Work("building the network", 6)
LOADING = Work("waiting for the batch", 1)
COMPUTING = Work("computing", 1)
COMPILING = Work("computing, for the first time", 6)
VALIDATING = Work("validating", 6)
SCORING = Work("computing the metrics", math.inf)
SAVING = Work("saving", 6)
FINISHING = Work("finishing", math.inf)


_BEFORE = (STARTING, PREPARING, CONNECTING, BUILDING)  # the loop


@dataclass
class _Peer:
    """What is known of another process.

    Attributes:
        host: The name of its machine.
        report: Its last report: number, work, step, seconds, late.
        unheard: Seconds since a new report came.
    """

    host: str = "an unknown machine"
    report: tuple[int, str, int | None, float, bool] = (0, "starting", None, 0.0, False)
    unheard: float = 0.0

    def __str__(self) -> str:
        _, work, step, seconds, _ = self.report
        return f"{_described(work, step)} for {seconds:.0f} s"


def _described(work: str, step: int | None) -> str:
    return work if step is None else f"{work}, step {step}"


# --- The processes ---


T = TypeVar("T")

Record = Callable[[str, int], None]
"""From a message and an exit code to the run folder."""

_BUSY = 0.05  # CPUs: processes that use less than this are not making a batch

_REST = 5.0  # seconds for a process to report the failure of another by itself


@dataclass
class Peers:
    """The processes of a run. As a context, it watches for one that is lost or stuck.

    Without a store there is one process. Outside of the context nothing is watched.

    Attributes:
        timeout: Seconds without progress, after which the run ends; less two reports of them.
        rank: The number of this process.
        world: How many there are.
        store: Where they leave messages; for the main thread.
    """

    timeout: float = math.inf
    rank: int = 0
    world: int = 1
    store: Store | None = None
    _mark: tuple[Work, int | None] = (STARTING, None)
    _over: threading.Event = field(default_factory=threading.Event)
    _peers: dict[int, _Peer] = field(default_factory=dict)
    _ticks: int = 0  # of the judge, since the last mark
    _silence: int = 0  # of the judge, since the store last answered
    _late: bool = False
    _broken: bool = False  # a connection; the talk thread then looks at everybody
    _stop: dict[str, Any] | None = None
    _record: Record | None = None

    # --- Meeting ---

    @classmethod
    def meet(cls, config: LaunchConfig) -> Self:
        """The processes that the launcher started; they can be at different points of their start.

        Raises:
            PlmError: Process 0 cannot be reached.
        """
        timeout = config.timeout.number
        world = int(os.environ.get("WORLD_SIZE", "1")) if is_worker() else 1
        if world == 1:
            return cls(timeout)
        rank = int(os.environ["RANK"])
        peers = cls(timeout, rank, world)
        if peers.on_several_machines:
            _choose_interface()
        peers.store = _connected(rank, world, timeout)
        peers._peers = {other: _Peer() for other in range(world) if other != rank}
        peers._refuse_double()
        return peers

    def _refuse_double(self) -> None:
        assert self.store is not None
        host = socket.gethostname()
        if self.store.add(f"count/{self.rank}", 1) == 1:
            self.store.set(f"host/{self.rank}", host)
            return
        self.store.wait([f"host/{self.rank}"])
        other = self.store.get(f"host/{self.rank}").decode()
        raise PlmError(
            f"two processes have the number {self.rank}: one on {other}, and one on {host}",
            "give each machine its own launch.machine (--node-rank, RANK), from 0",
        )

    @property
    def is_first_here(self) -> bool:
        """Whether this is the first process of its machine."""
        return self.world == 1 or os.environ["LOCAL_RANK"] == "0"

    @property
    def on_several_machines(self) -> bool:
        """Whether some process is on another machine; machines may have unequal numbers of them."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.world)) != self.world

    def compare(self, name: str, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The facts of all processes, by number; each waits for the others as long as they live.

        Args:
            name: Of this comparison; used once per run.
            facts: Of this process, as JSON.
        """
        if self.store is None:
            return [dict(facts)]
        self.store.set(f"{name}/{self.rank}", json.dumps(facts))
        everybody = [self.wait_for(name, other) for other in range(self.world)]
        # Process 0, or the launcher of its machine, has the store, and may be about to end.
        read, deadline = self.store.add(f"{name}/read", 1), time.monotonic() + _REST
        while self.rank == 0 and read < self.world and time.monotonic() < deadline:
            time.sleep(0.05)
            read = self.store.add(f"{name}/read", 0)
        return everybody

    def wait_for(self, name: str, rank: int) -> dict[str, Any]:
        """The facts of a process, once it has them."""
        while (facts := self.look(name, rank)) is None:
            time.sleep(0.05)
        return facts

    def look(self, name: str, rank: int) -> dict[str, Any] | None:
        """The facts of a process; None: it does not have them yet."""
        assert self.store is not None
        key = f"{name}/{rank}"
        if not self.store.check([key]):
            return None
        facts: dict[str, Any] = json.loads(self.store.get(key))
        return facts

    # --- Marks of the main thread ---

    def mark(self, work: Work, step: int | None = None) -> None:
        """Say what the main thread does now; each call is progress."""
        self._mark = work, step

    def progress(self) -> None:
        """Say that the work of the last mark made progress."""
        work, step = self._mark
        self._mark = work, step

    def marked(self, work: Work, items: Iterable[T]) -> Iterator[T]:
        """The items; each is progress."""
        for item in items:
            self._mark = work, None
            yield item

    # --- Watching ---

    def __enter__(self) -> Self:
        threading.Thread(target=self._judge, daemon=True, name="watch").start()
        if self.store is not None:
            store = self.store.clone()  # type: ignore[attr-defined]
            threading.Thread(target=self._talk, args=(store,), daemon=True, name="talk").start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Once the loop runs, all processes stop together.
        together = self._mark[0] not in _BEFORE and isinstance(value, Preempted)
        if self.store is None or value is None or together or isinstance(value, KeyboardInterrupt):
            self._over.set()
            return
        if _is_lost_connection(value):
            raise self._lost(value) from value
        text = str(value) if isinstance(value, PlmError) else repr(value)
        code = value.exit_code if isinstance(value, PlmError) else 1
        self._tell({"text": text, "code": code})
        self._over.set()

    @contextmanager
    def working(self, record: Record) -> Iterator[None]:
        """The work in a run folder: who is lost or stuck is named, and recorded there.

        PyTorch's error for a connection that broke becomes one that names the process.

        Args:
            record: Writes to the run folder how the run ended. The main process does so; if that
                is lost, the first one that is not.

        Raises:
            PlmError: A connection broke.
        """
        self._record = record
        try:
            yield
        except RuntimeError as error:
            if self.store is None or not _is_lost_connection(error):
                raise
            raise self._lost(error) from error
        finally:
            self._record = None

    @property
    def group_timeout(self) -> timedelta:
        """When PyTorch itself ends a collective operation, should nothing else have done so."""
        return timedelta(seconds=min(max(6 * self.timeout, 3600.0), 86_400.0))

    @property
    def _tick(self) -> float:
        return min(1.0, self.timeout / 20)

    @property
    def _beat(self) -> float:
        return min(2.0, self.timeout / 10)

    def _judge(self) -> None:
        """Count for how long the main thread does the same; a thread."""
        seen, busy_at, rest = self._mark, 0.0, min(_REST, self.timeout / 2)
        while not self._over.wait(self._tick):
            self._silence += 1
            mark, self._ticks = self._mark, self._ticks + 1
            if mark is not seen:
                seen, self._ticks, self._late = mark, 0, False
                busy_at = 0.0
            work = mark[0]
            if self._stop is not None:
                rest -= self._tick
                if self._stop.get("stuck") or rest < 0:
                    self._end_with_others()
                continue  # this process may be about to fail in the same way
            limit = work.limits * self.timeout - 2 * self._beat
            if not self._late and self._ticks * self._tick > limit:
                # A batch that takes long to make is not stuck: its processes compute.
                busy = _cpu_seconds() if work is LOADING else 0.0
                if busy - busy_at > _BUSY * limit:
                    self._ticks, busy_at = 0, busy
                    continue
                self._late = work is LOADING or self.store is not None
            elif work is LOADING and self._ticks == 1:
                busy_at = _cpu_seconds()
            if self.store is None:
                if self._late:
                    self._give_up()
            elif (self._late and not self._somebody_works()) or self._waits_for_lost():
                self._give_up()

    def _unheard(self, peer: _Peer) -> float:
        return peer.unheard + self._silence * self._tick

    def _is_lost(self, peer: _Peer) -> bool:
        return self._unheard(peer) > max(4 * self._beat, 0.5 * self.timeout)

    def _somebody_works(self) -> bool:
        return any(not p.report[4] and not self._is_lost(p) for p in self._peers.values())

    def _waits_for_lost(self) -> bool:
        """Whether this process made no progress, and one is lost: more time would not help."""
        waits = self._ticks * self._tick > self.timeout - 2 * self._beat
        last = self._mark[0] is FINISHING  # then others may have ended
        return waits and not last and any(map(self._is_lost, self._peers.values()))

    def _talk(self, store: Store) -> None:
        """Report to the other processes, and read their reports; a thread, which may block."""
        number = 0
        hosts: set[int] = set()
        try:
            while True:
                number += 1
                work, step = self._mark
                report = number, work.name, step, self._ticks * self._tick, self._late
                store.set(f"report/{self.rank}", json.dumps(report))
                if store.check(["stop"]):
                    self._stop = json.loads(store.get("stop"))
                # Others matter while this process waits; now and then, for the last words of one.
                waits = self._broken or work in (STARTING, PREPARING)
                if waits or self._ticks * self._tick > 2 * self._beat or number % 5 == 0:
                    for rank, peer in self._peers.items():
                        if rank not in hosts and store.check([f"host/{rank}"]):
                            peer.host = store.get(f"host/{rank}").decode()
                            hosts.add(rank)
                        self._read(store, rank, peer)
                else:
                    for peer in self._peers.values():
                        peer.unheard = 0.0
                self._silence = 0
                if self._over.wait(self._beat):
                    return
        except RuntimeError:  # the store is gone; the judge counts for how long
            return

    def _read(self, store: Store, rank: int, peer: _Peer) -> None:
        key = f"report/{rank}"
        report = tuple(json.loads(store.get(key))) if store.check([key]) else peer.report
        if report[0] != peer.report[0]:
            peer.report, peer.unheard = report, 0.0
        else:
            peer.unheard += self._beat

    # --- Ending ---

    def _give_up(self) -> None:
        """End this process, and by a message the others."""
        text = self._verdict()
        self._tell({"text": text, "code": 1, "stuck": True})
        self._write_end(text, 1)
        self._show(text)
        if self.store is not None:
            time.sleep(2 * self._beat)  # a launcher ends the others when the first one has ended
        _exit(1)

    def _end_with_others(self) -> None:
        assert self._stop is not None
        text, code = _failure_of(self._stop), int(self._stop["code"])
        self._write_end(text, code)
        if self._stop.get("stuck"):
            self._show(text)
            time.sleep(self._beat)
        elif self.is_first_here:
            print(f"plmctl: {text}", file=sys.stderr, flush=True)
        _exit(code)

    def _write_end(self, text: str, code: int) -> None:
        """Record how the run ends, in one process: the first that is not lost."""
        before = (peer for rank, peer in self._peers.items() if rank < self.rank)
        if self._record is not None and all(map(self._is_lost, before)):
            self._record(text, code)

    def _show(self, text: str) -> None:
        if self.is_first_here:
            print(f"plmctl: {text}", file=sys.stderr)
        name = f"process {self.rank} on {socket.gethostname()}" if self.store else "this process"
        work, step = self._mark
        print(f"\n{name}: {_described(work.name, step)}; its threads:", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(file=2)

    def _verdict(self) -> str:
        """Who is waited for, and what to do."""
        step, since = self._mark[1], f"for {self.timeout:g} s (launch.timeout)"
        where = " on every machine" if self.on_several_machines else ""
        hint = (
            f"the checkpoints are intact: run the same command again{where}; if nothing was wrong, "
            "increase launch.timeout"
        )
        if self._mark[0] is CONNECTING:
            hint = (
                "check that no firewall is between the machines, and that GLOO_SOCKET_IFNAME or "
                f"NCCL_SOCKET_IFNAME is the interface that connects them; then {hint}"
            )
        if self.store is None:
            faults = [
                f"no batch {since}, and the processes that make batches do nothing",
                "compute.workers=0 works without them",
            ]
        elif lost := {rank: peer for rank, peer in self._peers.items() if self._is_lost(peer)}:
            faults = [
                f"process {rank} on {peer.host} is lost: nothing heard from it for "
                f"{self._unheard(peer):.0f} s"
                + (f"; the last was: {peer}" if peer.report[0] else "")
                for rank, peer in lost.items()
            ]
        else:
            own = _Peer(socket.gethostname(), self._own_report())
            everybody = sorted({**self._peers, self.rank: own}.items())
            # The others wait for it in a sum over all processes, which is part of computing.
            stuck = [(r, peer) for r, peer in everybody if peer.report[1] != COMPUTING.name]
            faults = [f"process {rank} on {peer.host} is stuck: {peer}" for rank, peer in stuck]
            if not stuck:
                faults = [f"no process makes progress {since}"]
                faults += [f"process {rank} on {peer.host}: {peer}" for rank, peer in everybody]
        shown = faults[:_SHOWN]
        if len(faults) > _SHOWN:
            shown.append(f"and {len(faults) - _SHOWN} more")
        return ("" if step is None else f"step {step}: ") + "\n  ".join([*shown, hint])

    def _own_report(self) -> tuple[int, str, int | None, float, bool]:
        work, step = self._mark
        return 0, work.name, step, self._ticks * self._tick, self._late

    def _tell(self, stop: dict[str, Any]) -> None:
        """Leave a message that ends the others, if the store answers."""
        if self.store is None:
            return
        store, stop = self.store, {"rank": self.rank, "host": socket.gethostname(), **stop}

        def leave() -> None:
            try:
                if store.add("stopping", 1) == 1:
                    store.set("stop", json.dumps(stop))
            except RuntimeError:
                pass

        thread = threading.Thread(target=leave, daemon=True)
        thread.start()
        thread.join(2.0)

    def _lost(self, error: BaseException) -> PlmError:
        """The error for a connection to another process that broke."""
        ignore_launcher()
        deadline, self._broken = time.monotonic() + 4 * self._beat, True
        while self._stop is None and time.monotonic() < deadline:
            time.sleep(0.1)
        silent = [
            f"process {rank} on {peer.host}"
            for rank, peer in self._peers.items()
            if self._unheard(peer) > 1.5 * self._beat
        ]
        if self._silence * self._tick > 1.5 * self._beat:  # machine 0 has the store
            silent = silent[: self.rank > 0]
        self._over.set()
        if self._stop is not None:
            reported = PlmError(_failure_of(self._stop))
            reported.exit_code = int(self._stop["code"])
            return reported
        step, others = self._mark[1], ", ".join(silent[:_SHOWN])
        several = self.on_several_machines
        who = f"{others} is lost: the connection" if others else "the connection to another process"
        return PlmError(
            f"{'' if step is None else f'step {step}: '}{who} broke: {str(error).splitlines()[0]}",
            "see the messages of the other processes"
            f"{' and machines' if several else ''}; the checkpoints are intact: run the "
            f"same command again{' on every machine' if several else ''}",
        )


_SHOWN = 4  # processes in a message


def _failure_of(stop: Mapping[str, Any]) -> str:
    if stop.get("stuck"):
        return str(stop["text"])
    ended = "was stopped" if stop["code"] == Preempted.exit_code else "failed"
    return f"process {stop['rank']} on {stop['host']} {ended}: {stop['text']}"


def _is_lost_connection(error: BaseException) -> bool:
    """Whether an error of PyTorch says that another process cannot be reached."""
    import torch

    if isinstance(error, torch.distributed.DistError):
        return True
    texts = ("gloo", "NCCL", "Connection closed by peer", "Connection reset", "Broken pipe")
    return type(error) is RuntimeError and any(text in str(error) for text in texts)


def _exit(code: int) -> None:
    """End this process and those that make its batches, whatever its main thread does."""
    sys.stdout.flush()
    sys.stderr.flush()
    for child in descendants(os.getpid()):
        try:
            os.kill(child, signal.SIGKILL)
        except OSError:
            continue
    os._exit(code)


def _cpu_seconds() -> float:
    """CPU time of this process and of those that it started; 0 where it is unknown."""
    ticks = 0
    for pid in (os.getpid(), *descendants(os.getpid())):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


# --- Connecting ---


def _connected(rank: int, world: int, timeout: float) -> Store:
    """The store at MASTER_ADDR, of the launcher or of process 0.

    Raises:
        PlmError: It cannot be reached.
    """
    from torch.distributed import (  # type: ignore[attr-defined]
        DistError,
        PrefixStore,
        TCPStore,
    )

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    by_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        store = TCPStore(
            address,
            port,
            world,
            rank == 0 and not by_launcher,
            timedelta(seconds=timeout),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except DistError as error:
        raise PlmError(
            f"process {rank} on {socket.gethostname()}: process 0 cannot be reached at "
            f"{address}:{port} within {timeout:g} s (launch.timeout)",
            "check that the same command runs on every machine, that MASTER_ADDR is the address of "
            "the first one, and that no firewall is between them",
        ) from error
    return PrefixStore(f"plmctl/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _choose_interface() -> None:
    """Let gloo use the network interface that reaches the first machine, unless one is set.

    By itself it takes that of the host's name, which on many systems is the loopback.
    """
    if "GLOO_SOCKET_IFNAME" in os.environ or sys.platform != "linux":
        return
    name = _interface_to(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if name is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = name


_SIOCGIFADDR = 0x8915  # the IPv4 address of an interface (linux/sockios.h)


def _interface_to(host: str, port: int) -> str | None:
    """The network interface from which packets go to a host; None: unknown."""
    import fcntl

    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))  # sends nothing
            own = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                request = struct.pack("256s", name.encode()[:15])
                try:
                    reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                except OSError as error:
                    if error.errno == errno.EADDRNOTAVAIL:  # without an IPv4 address
                        continue
                    raise
                if socket.inet_ntoa(reply[20:24]) == own:
                    return name
    except OSError:
        pass
    return None
