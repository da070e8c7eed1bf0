"""Running shard tasks in this process or in several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

from plmctl.corpus.shard import Task, TextEncoder
from plmctl.cpus import usable_cpus
from plmctl.errors import PlmError

_in_worker: list[TextEncoder] = []  # a worker process's encoder: loaded once, not once a task


def make_all(
    tasks: list[Task],
    encoder: TextEncoder,
    beside: Path,
    processes: int | None,
    progress: Callable[[int, int], None],
) -> None:
    """Make the shards that are not there.

    Args:
        tasks: All shards.
        encoder: The tokenizer; it is sent to the processes.
        beside: A folder for unfinished shards.
        processes: None: one a core.
        progress: Told of the bytes done and of all bytes.

    Raises:
        DataError: Of a task.
        PlmError: A process was killed, or could not be started.
    """
    missing = [task for task in tasks if task.facts is None]
    total = sum(task.piece.size for task in tasks)
    done = total - sum(task.piece.size for task in missing)
    progress(done, total)
    workers = min(processes or usable_cpus(), len(missing))
    if workers <= 1:
        for task in missing:
            task.make(encoder, beside)
            progress(done := done + task.piece.size, total)
        return
    # Spawned, not forked: this process may have threads, and forking those can hang.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with _starting():
        made = ProcessPoolExecutor(workers, context, _start_worker, (encoder,))
    with made as pool:
        try:
            with _starting():
                futures = {pool.submit(_make, task, beside): task for task in missing}
            for future in as_completed(futures):
                future.result()
                progress(done := done + futures[future].piece.size, total)
        except BrokenProcessPool as error:
            _kill(others)
            raise PlmError(
                "a process that prepared text was killed, perhaps because memory ran out",
                "run the same command again: what is done is kept",
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _starting() -> Iterator[None]:
    """Around what starts the pool's processes, which it does as tasks are handed to it.

    Raises:
        BrokenProcessPool: A process died before it was started in full.
        PlmError: One cannot be started: no process, file or memory is left.
    """
    try:
        yield
    except (BrokenPipeError, ConnectionResetError, EOFError) as error:
        raise BrokenProcessPool from error
    except OSError as error:
        raise PlmError(
            f"the processes that prepare text cannot be started: {error.strerror}",
            "raise the limit (ulimit -n for files, ulimit -u for processes) and run the same "
            "command again: what is done is kept",
        ) from error


def _kill(others: set[BaseProcess]) -> None:
    """End the processes of a pool that has lost one.

    The pool asks them by SIGTERM, which they ignore, and waits; and one that waits for a lock that
    the lost one held would never end.

    Args:
        others: Processes that are not the pool's.
    """
    for process in set(multiprocessing.active_children()) - others:
        process.kill()


def _start_worker(encoder: TextEncoder) -> None:
    # One thread a process: the processes are the parallelism.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # The parent ends the pool when it is asked to stop, which a terminal or a scheduler may ask of
    # all processes; on the parent's death nobody would.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _in_worker.append(encoder)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _make(task: Task, beside: Path) -> None:
    task.make(_in_worker[0], beside)
