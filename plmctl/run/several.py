"""Several runs of one command: the seeds and grids of a finetuning, suites, and ladders of sizes.

Each has a run folder, by which messages name it. A finished one is left alone, and an interrupted
one resumes, so the same command continues where it ended.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from textwrap import indent
from types import FrameType
from typing import Any, Protocol, TypeVar

from plmctl.errors import DataError, PlmError, Preempted, listed
from plmctl.run.display import say
from plmctl.run.folder import changed_since, is_finished, read_results

RESULTS = "eval/valid.json"


class RunConfig(Protocol):
    """The config of a run."""

    @property
    def run(self) -> str:
        """Its folder."""


C = TypeVar("C", bound=RunConfig)


def finished_results(run: str) -> dict[str, Any] | None:
    """The results of a finished run; None before."""
    path = Path(run) / RESULTS
    if not is_finished(Path(run)) or not path.is_file():
        return None
    results: dict[str, Any] = read_results(path)["results"]
    return results


def refuse_changed(
    configs: Sequence[C], made_from: Callable[[C], Mapping[str, str | None]], otherwise: str
) -> None:
    """Refuse finished runs that were made from another model or other rows than there are now.

    One table never has both: the old ones and those that are still to be run.

    Args:
        made_from: The hashes of what a run would be made from now.
        otherwise: What to do, if what changed cannot be restored.

    Raises:
        DataError: With the runs, and what changed.
    """
    lines, unknown = [], set[str]()
    for config in configs:
        if is_finished(Path(config.run)):
            differ, cannot = changed_since(Path(config.run), made_from(config))
            if differ:
                lines.append(f"{config.run}: the {listed(differ)} changed since it was trained")
            unknown |= set(cannot)
    if lines:
        raise DataError(
            "finished runs were made from something else than there is now:\n"
            + indent("\n".join(lines), "  "),
            f"restore it; {otherwise}: one table has runs of one model and the same rows",
        )
    if unknown:
        say(
            "finished runs of an older version of plmctl have no hash of the "
            f"{listed(sorted(unknown))}: whether they changed since is unknown"
        )


def finish_all(
    configs: Sequence[C],
    finish: Callable[[C], object],
    *,
    jobs: int | None = 1,
    device: str | None = None,
    stop: bool = False,
) -> dict[str, PlmError]:
    """Run what is not finished, in order, with a line for each.

    Args:
        finish: Starts or resumes a run; with several jobs, in another process.
        jobs: Runs at the same time; None: one per CUDA device, or one.
        device: ``compute.device`` of runs that have one device each; None: each has the machine.
        stop: Raise the first error at once: the others are of no use without this run.

    Returns:
        The runs that failed, with their errors.
    """
    left = [config for config in configs if finished_results(config.run) is None]
    if len(left) < len(configs):
        say(f"{len(configs) - len(left)} of {len(configs)} runs are finished")
    if not left:
        return {}
    devices = _device_count(device) if device else 0
    at_once = min(len(left), jobs or max(1, devices))
    attempt = partial(_attempt, finish)
    if at_once == 1 >= devices:
        tried = ((config.run, attempt(config)) for config in left)
    else:
        tried = _in_parallel(attempt, left, at_once, devices)
    failed = {}
    for number, (name, error) in enumerate(tried, 1):
        say(f"{number} of {len(left)}: {name}: {error.message if error else 'finished'}")
        if error and stop:
            raise error
        if error:
            failed[name] = error
    return failed


def some_failed(failed: Mapping[str, PlmError], count: int) -> PlmError:
    """The error of ``count`` runs of which some failed: what is wrong with each, and what to do."""
    messages = indent("\n".join(f"{name}: {error}" for name, error in failed.items()), "  ")
    return PlmError(
        f"{len(failed)} of {count} runs failed:\n{messages}",
        "the others are kept; run the same command again to retry the failed runs",
    )


def _attempt(finish: Callable[[C], object], config: C) -> PlmError | None:
    """Finish a run. Returns None, or its error; a stop by a signal stops all of them."""
    try:
        finish(config)
    except Preempted:
        raise
    except PlmError as error:
        return error
    return None


# --- In parallel: processes that have one device each ---


def _device_count(device: str) -> int:
    import torch

    return torch.cuda.device_count() if device in ("auto", "cuda") else 0


def _in_parallel(
    attempt: Callable[[C], PlmError | None], configs: Sequence[C], count: int, devices: int
) -> Iterator[tuple[str, PlmError | None]]:
    context = multiprocessing.get_context("spawn")
    queue: Any = context.Queue()
    for number in range(count):
        queue.put(number % devices if devices else None)
    pool = ProcessPoolExecutor(count, context, _take_device, (queue,))
    with _passing_signals_on() as stopped, pool:
        running = {pool.submit(attempt, config): config.run for config in configs}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        except BrokenProcessPool as error:
            if stopped:  # a run that had not started yet, and had nothing to save
                raise Preempted("stopped", "run the same command again to resume") from error
            raise PlmError(
                "a run's process was killed; was there too little memory?",
                "run the same command again to resume; fewer --jobs need less memory",
            ) from error
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _take_device(queue: Any) -> None:
    """Take a device, before CUDA is initialised."""
    import os

    device = queue.get()
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(device)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


@contextmanager
def _passing_signals_on() -> Iterator[list[int]]:
    """Pass a signal to this process on to the runs, which save a checkpoint and end.

    Yields:
        The signals so far.
    """
    seen: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        for child in multiprocessing.active_children():
            child.terminate()

    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGTERM, before)
