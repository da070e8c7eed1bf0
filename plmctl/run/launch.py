"""One command in several processes, of one machine or of several.

plmctl starts the processes of each machine with PyTorch's launcher, and also runs under other
launchers. Which machine this is, and where the machines meet, comes from the config, or from the
variables of Slurm or Kubernetes.
"""

import ctypes
import logging
import os
import platform
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from plmctl.config.sections import DEFAULT_PORT, LaunchConfig, split_address
from plmctl.cpus import usable_cpus
from plmctl.errors import ConfigError, PlmError, machine_error

_PROC = Path("/proc/self/stat")
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def is_worker() -> bool:
    """Whether a launcher (ours, ``accelerate launch``, ``torchrun``) started this process.

    Kubernetes' PyTorchJob sets RANK too, to the number of the machine, and no LOCAL_RANK.
    """
    return "RANK" in os.environ and "LOCAL_RANK" in os.environ


def is_main() -> bool:
    """Whether this is the process that writes files and messages."""
    return not is_worker() or os.environ["RANK"] == "0"


def owns_run(config: LaunchConfig) -> bool:
    """Whether this process writes the run folder: the first one, or the launcher that starts it.

    Raises:
        ConfigError: As ``place_of``.
    """
    return is_main() and (is_worker() or place_of(config).machine == 0)


# --- Which machine this is ---


@dataclass(frozen=True)
class MachinePlace:
    """Which machine of how many this is, and where they meet.

    Attributes:
        machine: Its number, from 0.
        host: Name or IP address of machine 0; empty if there is only one.
        port: Where machine 0 listens.
    """

    machine: int = 0
    machines: int = 1
    host: str = ""
    port: int = DEFAULT_PORT


@dataclass(frozen=True)
class _Given:
    """What the variables of a scheduler say; None: they do not say it."""

    scheduler: str
    machines: int | None = None
    machine: int | None = None
    host: str | None = None
    port: int | None = None


def place_of(config: LaunchConfig, variables: Mapping[str, str] | None = None) -> MachinePlace:
    """The place of this machine, from the config and the scheduler's variables.

    Args:
        config: Its keys are ``auto`` where the scheduler decides.
        variables: The environment; None: of this process.

    Raises:
        ConfigError: A number or the address is missing, is wrong, or is not that of the scheduler.
    """
    variables = os.environ if variables is None else variables
    if config.machines == 1:
        return MachinePlace()
    given = _of_slurm(config, variables) or _of_kubernetes(variables)
    machines = given.machines if config.machines == "auto" else config.machines
    if machines is None or machines == 1:
        return MachinePlace()
    if given.machines not in (None, machines):
        raise ConfigError(
            f"launch.machines: {machines}, but {given.scheduler} starts this command on "
            f"{given.machines}",
            "leave launch.machines out, or request as many",
        )
    machine = given.machine if config.machine == "auto" else config.machine
    if machine is None:
        raise ConfigError(
            f"launch.machine: which of the {machines} machines is this?",
            "set launch.machine=0 on the first machine, launch.machine=1 on the next, and so on "
            "(Slurm and Kubernetes say it by their variables)",
        )
    if given.machine not in (None, machine):
        raise ConfigError(
            f"launch.machine: {machine}, but for {given.scheduler} this machine is number "
            f"{given.machine}",
            "leave launch.machine out",
        )
    if machine >= machines:
        raise ConfigError(
            f"launch.machine: {machine}, but {machines} machines have the numbers 0 to "
            f"{machines - 1}"
        )
    if config.address != "auto":
        return MachinePlace(machine, machines, *split_address(config.address))
    if given.host is None:
        raise ConfigError(
            "launch.address: where do the machines meet?",
            "set launch.address=HOST:PORT on every machine: the name or the IP address of machine "
            f"0, and a free port there, such as {DEFAULT_PORT}",
        )
    return MachinePlace(machine, machines, given.host, given.port or DEFAULT_PORT)


def _of_slurm(config: LaunchConfig, variables: Mapping[str, str]) -> _Given | None:
    """What Slurm says; None: this command is not part of a Slurm job."""
    machine = _number(variables, "SLURM_NODEID")
    machines = _number(variables, "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    if machine is None or machines is None:  # a shell that `salloc` opened has no SLURM_NODEID
        return None
    by_srun = "SLURM_STEP_ID" in variables or "SLURM_STEPID" in variables
    if machines > 1 and config.machines == "auto" and not by_srun:
        raise ConfigError(
            f"Slurm gave this job {machines} machines, but this command runs on one of them",
            "start it with srun (`srun plmctl ...`), or set launch.machines=1 to use one machine",
        )
    tasks = _number(variables, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    if by_srun and tasks is not None and tasks > machines:
        raise ConfigError(
            f"Slurm starts this command {tasks} times on {machines} "
            f"{'machine' if machines == 1 else 'machines'}",
            "use --ntasks-per-node=1: plmctl itself starts a process for each GPU "
            "(launch.processes)",
        )
    names = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST", "")
    # Jobs that share a machine need separate ports.
    job = _number(variables, "SLURM_JOB_ID", "SLURM_JOBID")
    port = None if job is None else 20_000 + job % 10_000
    return _Given("Slurm", machines, machine, first_host(names) or None, port)


def first_host(names: str) -> str:
    """The first name of a list as Slurm writes it: ``gpu[07-09,12],big1`` gives ``gpu07``."""
    depth = 0
    for at, character in enumerate(names):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            names = names[:at]
            break
    return re.sub(r"\[([^\]]*)\]", lambda match: re.split("[-,]", match[1])[0], names).strip()


def _of_kubernetes(variables: Mapping[str, str]) -> _Given:
    """What the variables of Kubernetes' training jobs say: PyTorchJob, TrainJob, JobSet."""
    host = variables.get("PET_MASTER_ADDR") or variables.get("MASTER_ADDR")
    machines = _number(variables, "PET_NNODES")
    if machines is None and host:
        # A PyTorchJob counts one process per pod: the processes of a pod are ours to start.
        machines = _number(variables, "NNODES", *(["WORLD_SIZE"] if "RANK" in variables else []))
    machine = _number(variables, "PET_NODE_RANK", "NODE_RANK", "RANK", "JOB_COMPLETION_INDEX")
    # A service of the name `master` makes Kubernetes set MASTER_PORT to an address.
    port = variables.get("PET_MASTER_PORT") or variables.get("MASTER_PORT", "")
    number = int(port) if port.isdecimal() else None
    return _Given("Kubernetes", machines, machine, host or None, number)


def _number(variables: Mapping[str, str], *names: str) -> int | None:
    """The value of the first of these variables that is set; None: none is."""
    for name in names:
        if (text := variables.get(name, "").strip()) != "":
            if not text.isdecimal():
                raise ConfigError(f"the variable {name} is {text!r}, and not a whole number")
            return int(text)
    return None


# --- Starting the processes of this machine ---


def process_count(config: LaunchConfig, device: str) -> int:
    """Number of processes of this machine: as configured, or one per CUDA device.

    Raises:
        ConfigError: More processes than devices, or more than one with Apple's GPU.
    """
    import torch

    devices = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    started = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if is_worker() else None
    wanted = started or config.processes, int(os.environ.get("WORLD_SIZE", "1")), config.machines
    apple = device in ("auto", "mps") and not devices and torch.backends.mps.is_available()
    if apple and any(count not in ("auto", 1) for count in wanted):
        raise ConfigError(
            "launch.processes: several processes cannot train on Apple's GPU: nothing in PyTorch "
            "sends its tensors from one to another",
            "use launch.processes=1 and one machine, or compute.device=cpu",
        )
    if started is not None:
        if devices and started > devices:
            raise ConfigError(
                f"{started} processes were started on this machine, which has {devices} CUDA "
                "devices",
                f"start at most {devices} (--nproc-per-node), or use compute.device=cpu",
            )
        return started
    if config.processes == "auto":
        return max(1, devices)
    if devices and config.processes > devices:
        raise ConfigError(
            f"launch.processes: {config.processes} processes, but there are {devices} CUDA devices",
            f"use at most {devices}, or compute.device=cpu",
        )
    return config.processes


def world_size(config: LaunchConfig, device: str) -> int:
    """Number of processes of a run: of the launcher, or on machines like this one, by the config.

    Raises:
        ConfigError: More processes than devices.
    """
    if is_worker() and "WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    machines = 1 if config.machines == "auto" else config.machines
    return process_count(config, device) * machines


@dataclass(frozen=True)
class StartOptions:
    """How a training is started.

    Attributes:
        fresh: Move an existing run folder aside.
        until: Save and stop after this step.
        accept_gap: Resume although lines of metrics.jsonl were lost.
    """

    fresh: bool = False
    until: int | None = None
    accept_gap: bool = False

    @property
    def flags(self) -> list[str]:
        """The same on the command line of a process."""
        limit = [] if self.until is None else [f"--until={self.until}"]
        given = {"--accept-gap": self.accept_gap, "--fresh": self.fresh}
        return [*limit, *(name for name, is_given in given.items() if is_given)]


@dataclass(frozen=True)
class End:
    """How processes ended.

    Attributes:
        code: The exit code of the process that failed first, or 0.
        killed: If a signal killed it: a message.
    """

    code: int
    killed: str = ""


def start(
    command: str,
    config: Path,
    processes: int,
    options: Sequence[str] = (),
    *,
    place: MachinePlace | None = None,
    timeout: float = 300.0,
) -> End:
    """Run ``plmctl <command> <config>`` in several processes of this machine, and wait for them.

    Both torchrun and Accelerate's multi-GPU launcher are this function of PyTorch; Accelerate's own
    entry is not used, because on CPU it always starts a single process.

    Args:
        options: Options of the command, such as ``--until=3``.
        place: Where this machine is among several; None: it is alone.
        timeout: Seconds to wait for the other machines.

    Returns:
        How the process ended that failed first.

    Raises:
        PlmError: The machines did not meet.
    """
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.run import main

    place = place or MachinePlace()
    # The launcher would set an unset value to 1, with a warning, and leave cores idle. All CPUs
    # for each process is wrong too; `__main__` may have set that for a single process.
    if os.environ.get("OMP_NUM_THREADS") in (None, str(usable_cpus())):
        os.environ["OMP_NUM_THREADS"] = str(max(1, usable_cpus() // processes))
    arguments = ["--nproc-per-node", str(processes), *_meeting(place, timeout)]
    if _PROC.exists():  # the launcher would replace our handlers of the other signals
        arguments.append("--signals-to-handle=SIGHUP,SIGQUIT")
    # A stopped run is not a failure, and a failed process has printed its error itself.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    if place.machines > 1:
        print(
            f"machine {place.machine} of {place.machines}: meeting at {place.host}:{place.port}"
            + ("" if place.machine == 0 else "; machine 0 prints the progress")
            + ("" if _is_known(place.host) else " (this machine does not know that name yet)"),
            file=sys.stderr,
        )
    sys.stderr.flush()
    os.environ[_LAUNCHER] = str(os.getpid())
    try:
        if place.machine > 0:
            _wait_for_first(place, timeout)
        with _passing_signals_on():
            main([*arguments, "-m", "plmctl", command, str(config), *options])
    except (DistError, RendezvousError) as error:
        raise _not_met(place, timeout, error) from error
    except ChildFailedError as error:
        rank, first = error.get_first_failure()
        code = int(first.exitcode)
        if code > 0:
            return End(code)
        killed = (  # by a signal: its negative number
            f"process {rank} of {processes * place.machines} was killed by "
            f"{signal.Signals(-code).name}{_REASONS.get(-code, '')}"
            "\n  run the same command again: it resumes from the last checkpoint"
        )
        print(f"plmctl: {killed}", file=sys.stderr)
        return End(128 - code, killed)
    finally:
        os.environ.pop(_LAUNCHER, None)
    return End(0)


_LAUNCHER = "PLMCTL_LAUNCHER"  # the number of the process that starts the others
_SET_SIGNAL_OF_PARENTS_DEATH = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>


def end_with_launcher() -> None:
    """Get SIGTERM if plmctl's launcher is killed: save, and leave the folder free. Linux only."""
    if sys.platform == "linux" and os.environ.get(_LAUNCHER) == str(os.getppid()):
        ctypes.CDLL(None).prctl(_SET_SIGNAL_OF_PARENTS_DEATH, signal.SIGTERM)


_REASONS: dict[int, str] = {signal.SIGKILL: ", perhaps because memory ran out"}


def _meeting(place: MachinePlace, timeout: float) -> list[str]:
    """How PyTorch's launcher finds the other machines.

    By its static rendezvous: its default for several machines, c10d, decides by the name of a
    machine whether it is the one that listens, and fails for an IP address.
    """
    if place.machines == 1:
        return ["--standalone"]
    return [
        f"--nnodes={place.machines}",
        f"--node-rank={place.machine}",
        f"--master-addr={place.host}",
        f"--master-port={place.port}",
        f"--rdzv-conf=timeout={max(1, round(timeout))}",
    ]


def _wait_for_first(place: MachinePlace, timeout: float) -> None:
    """Wait until machine 0 listens; PyTorch's launcher, if it cannot connect, prints its stack.

    Raises:
        PlmError: It does not within the time.
    """
    deadline = time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise _not_met(place, timeout, TimeoutError())
        try:
            socket.create_connection((place.host, place.port), timeout=left).close()
            return
        except OSError:  # no such name yet, or nobody listens yet
            time.sleep(min(1.0, max(0.0, left)))


def _not_met(place: MachinePlace, timeout: float, error: BaseException) -> PlmError:
    """The error of machines that did not meet in time; ``error``: what PyTorch says."""
    cause = error.__cause__ or error
    if (limit := machine_error(cause)) is not None:
        return limit
    if place.machines == 1:
        reason = (str(cause).strip() or repr(cause)).splitlines()[0]
        return PlmError(
            f"the processes of this machine cannot be started: {reason[:200]}",
            "see whether a limit of files, processes or ports is small (`ulimit -a`), or use "
            "launch.processes=1",
        )
    address = f"{place.host}:{place.port}"
    if place.machines > 1 and not _is_known(place.host):
        return ConfigError(
            f"launch.address: this machine ({platform.node()}) does not know the name {place.host}",
            "use the IP address of machine 0",
        )
    if "EADDRINUSE" in str(error):
        return ConfigError(
            f"launch.address: another program uses port {place.port} of this machine",
            "set another port, on every machine; or another launch.machine, if machine 0 is not "
            "this one",
        )
    if place.machine == 0:
        message = f"not all of the {place.machines} machines came to {address} within"
        hint = "start the same command on every machine, with its own launch.machine"
        if not _is_own(place.host):
            message = f"launch.address: {place.host} is no address of this machine; {message}"
            hint = f"use the address of machine 0 on every machine; {hint}"
    else:
        message = f"machine {place.machine}: machine 0 cannot be reached at {address} within"
        hint = (
            "check that the command runs there with launch.machine=0 (a finished run ends at "
            "once), that launch.address is the address of machine 0, and that no firewall is "
            "between them"
        )
    return PlmError(f"{message} {timeout:g} s (launch.timeout)", hint)


def _is_own(host: str) -> bool:
    """Whether this machine has an address."""
    try:
        for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind) as probe:
                probe.bind(address)
    except OSError:
        return False
    return True


def _is_known(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True


@contextmanager
def _passing_signals_on() -> Iterator[None]:
    """Pass this process's signals on to the processes inside the context, and wait for them.

    PyTorch's launcher also does so, but kills a process that takes more than 30 seconds to save. It
    starts each process in a separate session, so that Ctrl-C does not reach them by itself.
    """
    if not _PROC.exists():
        yield
        return

    def pass_on(number: int, frame: FrameType | None) -> None:
        children = children_of(os.getpid())
        if not children:  # it waits for the other machines
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        for child in children:
            os.kill(child, number)

    before = {number: signal.signal(number, pass_on) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def descendants(parent: int) -> list[int]:
    """The child processes of a process, and their children."""
    children = children_of(parent)
    return children + [pid for child in children for pid in descendants(child)]


def children_of(parent: int) -> list[int]:
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
