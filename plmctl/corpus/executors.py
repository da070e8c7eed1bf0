"""Shards built by other machines: datatrove's executors for Slurm and Ray run the shard tasks.

``build.py`` plans the shards; here somebody else makes them. The plan decides every byte, so the
store is the same whoever makes it. A task of datatrove encodes every ``world_size``-th missing
shard, starting at its rank. A shard is written beside its place and renamed, by ``ShardTask``: what
is there is complete, and is skipped. All machines see the text, the tokenizer and the folder of the
store at the same paths, or the store is at a URL (``remote.py``).

Only this module imports datatrove: `pip install 'plmctl[scale]'`.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    from datatrove.executor.slurm import SlurmPipelineExecutor
    from datatrove.pipeline.base import PipelineStep
    from loguru import logger
except ImportError as error:
    from plmctl.errors import ConfigError

    raise ConfigError(
        f"prepare.executor: slurm and ray need the library datatrove ({error})",
        "pip install 'plmctl[scale]', or set prepare.executor=local",
    ) from error

from plmctl.corpus.remote import RemoteStore
from plmctl.errors import ConfigError, DataError, PlmError
from plmctl.files import read_checked, write_checked

if TYPE_CHECKING:
    from plmctl.config.sections import PrepareConfig
    from plmctl.corpus.build import ShardWork, TextEncoder

AGAIN = "run the same command again to continue"

_TASKS_PER_WORKER = 4  # so that a slow one does not hold up the others
_MOST_TASKS = 1000  # of a Slurm array, by its default
_SLURM_WORKERS = 16
_LOOK = 2.0  # seconds between looks at the shards
_ASK = 15  # looks between questions to Slurm
_ERRORS, _JOB, _LOGS = "errors", "job.json", "logs"
_KINDS: dict[str, type[PlmError]] = {kind.__name__: kind for kind in (DataError, ConfigError)}


class EncodeShards(PipelineStep):  # type: ignore[misc]  # datatrove has no types
    """Task r of n makes the missing shards r, r + n, r + 2n ...

    Args:
        folder: The folder of the store; unfinished shards and errors are written to it.
        isolate: Work in a child process, so that its death is noticed.
    """

    name = "plmctl: encode shards"
    type = "tokens"

    def __init__(
        self,
        tasks: Sequence[ShardWork],
        encoder: TextEncoder | None,
        folder: Path,
        *,
        isolate: bool,
    ) -> None:
        super().__init__()
        self.tasks, self.encoder, self.folder = list(tasks), encoder, folder
        self.isolate, self.started_in = isolate, Path.cwd()

    def run(self, data: object, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Make the shards of a task; yields nothing.

        Raises:
            PlmError: As ``ShardTask.make``; it is also written to the store's folder.
        """
        yield from ()
        mine = self.tasks[rank::world_size]
        if not self.isolate:
            self._make(mine)
            return
        # A pool never learns that one of its processes was killed, and would wait for ever.
        worker = multiprocessing.get_context("fork").Process(
            target=self._make, args=(mine,), daemon=True
        )
        worker.start()
        worker.join()
        if worker.exitcode:
            if worker.exitcode < 0:
                name = signal.Signals(-worker.exitcode).name
                killed = PlmError(
                    f"a process that prepared text on {platform.node()} was killed by {name}, "
                    "perhaps because memory ran out",
                    AGAIN,
                )
                self._report(mine[0], killed)
            raise RuntimeError(f"task {rank} of {world_size} failed: see {self.folder / _ERRORS}")

    def _make(self, mine: Sequence[ShardWork]) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        try:
            os.chdir(self.started_in)  # paths of a config are relative to it
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PlmError(
                f"{error.filename}: {error.strerror} on {platform.node()}",
                "start it from a folder that all machines have, or set data.store to a URL",
            ) from error
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=self.folder) as beside:
            for task in mine:
                if task.is_done:
                    continue
                try:
                    task.make(self.encoder, Path(beside))
                except PlmError as error:
                    self._report(task, error)
                    raise

    def _report(self, task: ShardWork, error: PlmError) -> None:
        """Leave the error where the process that started the tasks reads it."""
        with suppress(OSError):
            (self.folder / _ERRORS).mkdir(exist_ok=True)
            facts = {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
            write_checked(self.folder / _ERRORS / task.name, facts)


@dataclass(frozen=True)
class Machines:
    """Makes shards with Slurm or Ray."""

    config: PrepareConfig
    notice: Callable[[str], None]

    def check(self) -> None:
        """Refuse what cannot work, before text is read.

        Raises:
            ConfigError: Slurm's commands or Ray are missing.
        """
        if self.config.executor == "slurm":
            if shutil.which("sbatch") is None:
                raise ConfigError(
                    "prepare.executor: slurm: there is no command sbatch on this machine",
                    "run it on a login node of the cluster, or set prepare.executor=local",
                )
            if self.config.partition is None:
                raise ConfigError(
                    "prepare.partition: Slurm needs the name of a partition",
                    "`sinfo` lists them: prepare.partition=NAME",
                )
        else:
            _import_ray()

    def make(
        self,
        missing: Sequence[ShardWork],
        encoder: TextEncoder | None,
        folder: Path,
        progress: Callable[[int], None],
    ) -> None:
        """Make shards.

        Args:
            folder: The folder of the store, which all machines see.
            progress: Called with the bytes of the shards that are done.

        Raises:
            PlmError: A shard could not be made, or a worker was killed.
        """
        if not missing:
            return
        logger.disable("datatrove")
        for path in (folder / _ERRORS).glob("*"):
            path.unlink(missing_ok=True)
        make = self._slurm if self.config.executor == "slurm" else self._ray
        try:
            where = make(missing, encoder, folder, progress)
        finally:
            logger.enable("datatrove")
        left = [task for task in missing if not task.is_done]
        if left:
            raise _first_error(folder) or PlmError(
                f"{len(left)} of {len(missing)} shards are missing after {where} ended: see "
                f"{folder / _LOGS}",
                AGAIN,
            )
        for name in (_ERRORS, _LOGS):
            shutil.rmtree(folder / name, ignore_errors=True)

    def _count(self, missing: Sequence[ShardWork], workers: int) -> int:
        """How many tasks of datatrove share the shards."""
        return max(1, min(len(missing), _MOST_TASKS, workers * _TASKS_PER_WORKER))

    def slurm_executor(
        self, missing: Sequence[ShardWork], encoder: TextEncoder | None, folder: Path
    ) -> SlurmPipelineExecutor:
        """The array job; its script activates this Python."""
        workers = _SLURM_WORKERS if self.config.workers == "auto" else self.config.workers
        logs = folder / _LOGS
        return _SlurmExecutor(
            [EncodeShards(missing, encoder, folder.absolute(), isolate=False)],
            tasks=self._count(missing, workers),
            workers=workers,
            time=self.config.time,
            partition=self.config.partition or "",
            mem_per_cpu_gb=self.config.memory_gb,
            job_name="plmctl-prepare",
            qos=None,
            env_command=f'export PATH="{Path(sys.executable).parent}:$PATH"',
            logging_dir=str(logs.absolute()),
            slurm_logs_folder=str(logs.absolute() / "slurm"),
            skip_completed=False,  # the shards that are there say it themselves
            mail_type="NONE",
        )

    def _slurm(
        self,
        missing: Sequence[ShardWork],
        encoder: TextEncoder | None,
        folder: Path,
        progress: Callable[[int], None],
    ) -> str:
        before = read_checked(folder / _JOB) or {}
        job = before.get("id", "")
        if job and _in_queue(job):
            self.notice(
                f"Slurm job {job} of an earlier start is still in the queue: waiting for it"
            )
        else:
            executor = self.slurm_executor(missing, encoder, folder)
            try:
                executor.run()
            except (OSError, subprocess.CalledProcessError) as error:
                raise PlmError(
                    f"sbatch refused the job: {error}",
                    f"its script is {folder / _LOGS / 'launch_script.slurm'}; check "
                    "prepare.partition, prepare.time and prepare.memory_gb",
                ) from error
            job = str(executor.job_id)
            write_checked(folder / _JOB, {"id": job})
            self.notice(
                f"submitted Slurm job {job}: {executor.tasks} tasks for {len(missing)} shards, "
                f"logs in {folder / _LOGS}; if you stop waiting here, the job keeps running, "
                "and the same command continues"
            )
        looks = 0
        while _watch_once(missing, folder, progress):
            looks += 1
            if looks % _ASK == 0 and not _in_queue(job):
                break
            time.sleep(_LOOK)
        (folder / _JOB).unlink(missing_ok=True)
        return f"Slurm job {job}"

    def _ray(
        self,
        missing: Sequence[ShardWork],
        encoder: TextEncoder | None,
        folder: Path,
        progress: Callable[[int], None],
    ) -> str:
        ray = _import_ray()
        from datatrove.executor.ray import RayPipelineExecutor

        if not ray.is_initialized():
            try:
                ray.init(log_to_driver=False, logging_level="ERROR")
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise PlmError(
                    f"no Ray cluster answers at {os.environ.get('RAY_ADDRESS', 'auto')}: {error}",
                    "start one with `ray start --head`, or set RAY_ADDRESS to its address",
                ) from error
        there = ray.cluster_resources()
        if there.get("memory", float("inf")) < self.config.memory_gb << 30:
            raise ConfigError(
                f"prepare.memory_gb: {self.config.memory_gb} GB per worker; the Ray cluster has "
                f"{there['memory'] / 2**30:.1f} GB: no worker would ever start",
                "reduce prepare.memory_gb; 1 is enough for most text",
            )
        cores = int(there.get("CPU", 1))
        workers = cores if self.config.workers == "auto" else self.config.workers
        executor = RayPipelineExecutor(
            [EncodeShards(missing, encoder, folder.absolute(), isolate=True)],
            tasks=self._count(missing, workers),
            workers=workers,
            mem_per_cpu_gb=self.config.memory_gb,
            logging_dir=str((folder / _LOGS).absolute()),
            skip_completed=False,
        )
        with _watching(missing, folder, progress):
            executor.run()
        return "the tasks of Ray"


class _SlurmExecutor(SlurmPipelineExecutor):  # type: ignore[misc]  # datatrove has no types
    """Slurm's array job without a second job for statistics: the store has its counts."""

    def launch_merge_stats(self) -> None:
        """Do nothing."""


def _import_ray() -> Any:
    """The module.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            "prepare.executor: ray: the library ray is not installed",
            "pip install ray, or set prepare.executor=local",
        ) from error
    return ray


def _in_queue(job: str) -> bool:
    """Whether Slurm still has a job; True if Slurm does not answer."""
    try:
        answer = subprocess.run(
            ["squeue", "--noheader", "--jobs", job], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return True
    if answer.returncode:  # Slurm forgets a job some minutes after its end
        return "Invalid job id" not in answer.stderr
    return bool(answer.stdout.strip())


def _watch_once(missing: Sequence[ShardWork], folder: Path, progress: Callable[[int], None]) -> int:
    """Report the bytes of the shards that are there; returns how many are missing."""
    remote = RemoteStore.of(folder)
    if remote is not None:
        remote.fetch_facts()
    left = [task for task in missing if not task.is_there]
    progress(sum(task.size for task in missing) - sum(task.size for task in left))
    return len(left)


@contextmanager
def _watching(
    missing: Sequence[ShardWork], folder: Path, progress: Callable[[int], None]
) -> Iterator[None]:
    """Report progress from another thread inside the context."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(_LOOK):
            _watch_once(missing, folder, progress)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        _watch_once(missing, folder, progress)


def _first_error(folder: Path) -> PlmError | None:
    """The error of the first shard that has one."""
    for path in sorted((folder / _ERRORS).glob("[!.]*")):
        facts = read_checked(path)
        if facts is not None:
            return _KINDS.get(facts["kind"], PlmError)(facts["message"], facts["hint"])
    return None
