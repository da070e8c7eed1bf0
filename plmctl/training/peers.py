"""The processes of a run: they meet, compare what must agree, and notice when one is lost or stuck.

The main thread of each process says what it does (``Peers.doing``), which costs an assignment. One
thread counts for how long it has done that, and asks ``judge``. With several processes, a second
one reports it to the others every few seconds, through the store by which PyTorch's processes find
each other. If nobody makes progress for longer than the time limit, each process says whom it
waited for, prints the stacks of its threads, and exits.
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
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from plmctl.errors import PlmError, Preempted
from plmctl.run.launch import descendants, is_worker
from plmctl.run.stop import ignore_launcher
from plmctl.training.judge import (
    BEFORE_LOOP,
    COMPILING,
    LOADING,
    PREPARING,
    REST,
    STARTING,
    Observation,
    Peer,
    Report,
    Stop,
    Verdict,
    Work,
    at_step,
    beat,
    failure_of,
    first_few,
    judge,
    message,
)

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

    from plmctl.config.sections import LaunchConfig


T = TypeVar("T")

Record = Callable[[str, int], None]
"""From a message and an exit code to the run folder."""


class Peers:
    """The processes of a run. As a context, it watches for one that is lost or stuck.

    Without a store there is one process. Outside of the context nothing is watched.

    Args:
        timeout: Seconds without progress, after which the run ends; less two reports of them.

    Attributes:
        store: Where they leave messages; for the main thread.
    """

    def __init__(self, timeout: float = math.inf, rank: int = 0, world: int = 1) -> None:
        self.timeout, self.rank, self.world = timeout, rank, world
        self.store: Store | None = None
        self._doing: tuple[Work, int | None] = (STARTING, None)  # by the main thread
        self._seen = Observation(timeout, STARTING)  # by the watching thread, with its verdict
        self._verdict = Verdict.FINE
        self._others: dict[int, Peer] = {}  # by the talking thread, with the rest
        self._answered = threading.Event()  # the store did, since the watching thread looked
        self._silence = 0.0  # seconds since then
        self._stop: Stop | None = None
        self._over, self._broken = threading.Event(), False  # a connection is
        self._record: Record | None = None

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
        peers._others = {other: Peer() for other in range(world) if other != rank}
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
        read, deadline = self.store.add(f"{name}/read", 1), time.monotonic() + REST
        while self.rank == 0 and read < self.world and time.monotonic() < deadline:
            time.sleep(0.05)
            read = self.store.add(f"{name}/read", 0)
        return everybody

    def wait_for(self, name: str, rank: int) -> dict[str, Any]:
        """The facts of a process, once it has them."""
        while (facts := self.facts_of(name, rank)) is None:
            time.sleep(0.05)
        return facts

    def facts_of(self, name: str, rank: int) -> dict[str, Any] | None:
        """The facts of a process; None: it does not have them yet."""
        assert self.store is not None
        key = f"{name}/{rank}"
        if not self.store.check([key]):
            return None
        facts: dict[str, Any] = json.loads(self.store.get(key))
        return facts

    # --- What the main thread does ---

    def doing(self, work: Work, step: int | None = None) -> None:
        """Say what the main thread does now; each call is progress."""
        self._doing = work, step

    def progress(self) -> None:
        """Say that the work made progress."""
        work, step = self._doing
        self._doing = work, step

    def doing_each(self, work: Work, items: Iterable[T]) -> Iterator[T]:
        """The items; each is progress."""
        for item in items:
            self._doing = work, None
            yield item

    @contextmanager
    def compilations(self) -> Iterator[None]:
        """Within the block a compilation counts as one, also in the middle of a phase.

        A new shape is compiled by the process that has it, perhaps alone, and may take minutes.
        """
        from plmctl.models.fast import told_of_compilations

        before = self._doing

        def start(_: Any) -> None:
            nonlocal before
            before = self._doing
            self.doing(COMPILING, before[1])

        def end(_: Any) -> None:
            self._doing = before

        with told_of_compilations(start, end):
            yield

    # --- Watching ---

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, daemon=True, name="watch").start()
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
        together = self._doing[0] not in BEFORE_LOOP and isinstance(value, Preempted)
        if self.store is None or value is None or together or isinstance(value, KeyboardInterrupt):
            self._over.set()
            return
        if _is_lost_connection(value):
            raise self._lost(value) from value
        text = str(value) if isinstance(value, PlmError) else repr(value)
        self._tell(text, value.exit_code if isinstance(value, PlmError) else 1)
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

    def _watch(self) -> None:
        """Count for how long the main thread does the same, and act on the verdict; a thread."""
        tick = min(1.0, self.timeout / 20)  # counted, so that a machine that slept is not late
        doing, seconds, busy_before, since_stop = self._doing, 0.0, 0.0, 0.0
        while not self._over.wait(tick):
            now = self._doing
            seconds = seconds + tick if now is doing else 0.0
            since_stop += tick if self._stop is not None else 0.0
            self._silence = 0.0 if self._answered.is_set() else self._silence + tick
            self._answered.clear()
            if now is not doing and now[0] is LOADING:
                busy_before = _cpu_seconds()
            doing = now
            seen = Observation(
                self.timeout, *now, seconds, 0.0, self._heard(), self._stop, since_stop
            )
            if now[0] is LOADING and seconds > seen.limit:
                seen = replace(seen, busy=_cpu_seconds() - busy_before)
            self._seen, self._verdict = seen, judge(seen)
            if self._verdict is Verdict.BUSY:
                seconds, busy_before = 0.0, busy_before + seen.busy
            elif self._verdict in (Verdict.NO_BATCH, Verdict.LOST, Verdict.STUCK):
                self._give_up()
            elif self._verdict is Verdict.ENDED:
                self._end_with_others()

    def _heard(self) -> dict[int, Peer]:
        """The other processes now: of those that the store is silent about, nothing is heard."""
        others = self._others.items()
        return {r: one._replace(unheard=one.unheard + self._silence) for r, one in others}

    def _talk(self, store: Store) -> None:
        """Report to the other processes, and read their reports; a thread, which may block."""
        number, pause = 0, beat(self.timeout)
        try:
            while True:
                number += 1
                work, seconds = self._doing[0], self._seen.seconds
                store.set(f"report/{self.rank}", json.dumps(self._report(number)))
                if store.check(["stop"]):
                    self._stop = Stop(*json.loads(store.get("stop")))
                # Others matter while this process waits; now and then, for the last words of one.
                waits = self._broken or work in (STARTING, PREPARING) or seconds > 2 * pause
                for rank, (before, unheard) in self._others.items():
                    key, report, looks = f"report/{rank}", before, waits or number % 5 == 0
                    if looks and store.check([key]):
                        report = Report(*json.loads(store.get(key)))
                    silent = looks and report == before
                    self._others[rank] = Peer(report, unheard + pause if silent else 0.0)
                self._answered.set()
                if self._over.wait(pause):
                    return
        except RuntimeError:  # the store is gone; the watching thread counts for how long
            return

    def _report(self, number: int = 0) -> Report:
        (work, step), late = self._doing, self._verdict is Verdict.LATE
        return Report(number, socket.gethostname(), work.name, step, self._seen.seconds, late=late)

    # --- Ending ---

    def _give_up(self) -> None:
        """End this process, and by a message the others."""
        host, machines = socket.gethostname(), self.on_several_machines
        text = message(self._verdict, self._seen, self.rank, host, machines=machines)
        self._tell(text, 1, stuck=True)
        self._write_end(text, 1)
        self._show(text)
        if self.store is not None:
            # A launcher ends the others when the first one has ended.
            time.sleep(2 * beat(self.timeout))
        _exit(1)

    def _end_with_others(self) -> None:
        assert self._stop is not None
        text = failure_of(self._stop)
        self._write_end(text, self._stop.code)
        if self._stop.stuck:
            self._show(text)
            time.sleep(beat(self.timeout))
        elif self.is_first_here:
            print(f"plmctl: {text}", file=sys.stderr, flush=True)
        _exit(self._stop.code)

    def _write_end(self, text: str, code: int) -> None:
        """Record how the run ends, in one process: the first that is not lost."""
        lost = self._seen.lost()
        if self._record is not None and all(rank in lost for rank in range(self.rank)):
            self._record(text, code)

    def _show(self, text: str) -> None:
        if self.is_first_here:
            print(f"plmctl: {text}", file=sys.stderr)
        name = f"process {self.rank} on {socket.gethostname()}" if self.store else "this process"
        print(f"\n{name}: {self._report().what}; its threads:", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(file=2)

    def _tell(self, text: str, code: int, *, stuck: bool = False) -> None:
        """Leave a message that ends the others, if the store answers."""
        if self.store is None:
            return
        store, stop = self.store, Stop(self.rank, socket.gethostname(), text, code, stuck)

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
        patience = 1.5 * beat(self.timeout)
        deadline, self._broken = time.monotonic() + 4 * beat(self.timeout), True
        while self._stop is None and time.monotonic() < deadline:
            time.sleep(0.1)
        silent = [
            f"process {rank} on {report.host}"
            for rank, (report, unheard) in self._heard().items()
            if unheard > patience
        ]
        if self._silence > patience:  # machine 0 has the store
            silent = silent[: self.rank > 0]
        self._over.set()
        if self._stop is not None:
            reported = PlmError(failure_of(self._stop))
            reported.exit_code = self._stop.code
            return reported
        others, several = ", ".join(first_few(silent)), self.on_several_machines
        who = f"{others} is lost: the connection" if others else "the connection to another process"
        return PlmError(
            f"{at_step(self._doing[1])}{who} broke: {str(error).splitlines()[0]}",
            "see the messages of the other processes"
            f"{' and machines' if several else ''}; the checkpoints are intact: run the "
            f"same command again{' on every machine' if several else ''}",
        )


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
