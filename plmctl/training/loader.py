"""Which examples are in a step: a pure function of (seed, step), on any number of processes.

The batch size counts sequences over all devices and micro-batches. Sample number n of a run belongs
to epoch n // size; within an epoch the order is a keyed permutation. A process takes its part of
each step's samples and cuts it into micro-batches; neither changes which examples a step has.
"""

import re
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from plmctl.errors import PlmError
from plmctl.modeling.batch import Batch, Rows
from plmctl.shaping.keys import fold, stream
from plmctl.shaping.order import permute
from plmctl.training.grouping import grouped
from plmctl.training.mixture import Mixture
from plmctl.training.ramp import Sizes, constant
from plmctl.training.shapes import fixed, listed
from plmctl.training.step import Step, streamed

Ints = NDArray[np.int64]

# Tokens that a forward takes at once when `micro_batch_size` is auto: enough to fill the device.
_AUTO_TOKENS = {"cpu": 8_192, "cuda": 65_536, "mps": 16_384}

_SCORED_ROWS = 32
"""Streams that a text is scored in, whatever the micro-batches, so that these change no figure."""


@dataclass(frozen=True)
class Slicing:
    """How the samples of a step are cut up.

    Attributes:
        batch_size: Samples a step, when it has grown to its full size.
        micro_batch_size: Samples a forward, at most.
        rank: Of this process.
        world: Processes.
        growth: Samples of each step while the batch grows; None: always ``batch_size``.
        lengths: [N] of each sample, where those of a step are to be alike; not with ``growth``.
        width: Of rows, where batches are to have few shapes (``shapes.fixed``); None: as they come.
        lists: Whether batches list what is no padding (``shapes.listed``).
    """

    batch_size: int
    micro_batch_size: int
    rank: int = 0
    world: int = 1
    growth: Sizes | None = None
    lengths: Ints | None = None
    width: int | None = None
    lists: bool = False

    @property
    def sizes(self) -> Sizes:
        """Samples of every step."""
        return self.growth or constant(self.batch_size)

    def mine(self, samples: Ints) -> list[Ints]:
        """This process's micro-batches of a step's samples, at least one, none empty.

        Args:
            samples: [N] or [..., N]; the last axis is cut. N >= world.
        """
        share = np.array_split(samples, self.world, axis=-1)[self.rank]
        pieces = max(1, -(-share.shape[-1] // self.micro_batch_size))
        return np.array_split(share, pieces, axis=-1)

    def shaped(self, batch: Batch) -> Batch:
        """A micro-batch as the network is to have it."""
        if self.width is not None:
            batch = fixed(batch, self.width)
        return listed(batch, few=self.width is not None) if self.lists else batch


def examples_of(step: int, size: int, batch_size: int, seed: int) -> Ints:
    """The examples of a step.

    Args:
        step: Step number within the phase, from 0.
        size: Samples in an epoch.
        batch_size: Samples in a step.
        seed: Decides the order of every epoch.

    Returns:
        [2, batch_size]: epochs and sample numbers.
    """
    return _examples(step * batch_size + np.arange(batch_size), size, seed)


def _examples(numbers: Ints, size: int, seed: int) -> Ints:
    """[2, N]: epochs and sample numbers of the samples [N] of a phase, numbered from 0."""
    epochs = numbers // size
    keys = fold(seed, stream("order"), epochs)
    return np.stack([epochs, permute(numbers % size, size, keys)])


def _collate(step: Step, pieces: list[Ints]) -> Iterator[Batch]:
    """The batches of micro-batches [2, N]; those of a mixture are cut where the source changes."""
    for piece in pieces:
        for part in step.split(piece) if isinstance(step, Mixture) else [piece]:
            yield step.collate(*part)


def windows_of(step: int, size: int, batch_size: int) -> Ints:
    """The examples of a step whose rows are streams: row r reads the r-th part of the epoch.

    Args:
        step: Step number within the phase, from 0.
        size: Windows in an epoch; those that give no whole step are left out.
        batch_size: Rows, at most ``size``.

    Returns:
        [2, batch_size]: epochs and sample numbers.
    """
    each = size // batch_size
    rows = np.arange(batch_size)
    return np.stack([np.full_like(rows, step // each), rows * each + step % each])


class StepBatches(Dataset[list[Batch]]):
    """Item k: this process's micro-batches of step k.

    Args:
        step: Makes the batches.
        slicing: How a step is cut up.
        seed: Decides the order of every epoch.
        shift: Samples that are passed over, because of a rollback: the data begins after them.
    """

    def __init__(self, step: Step, slicing: Slicing, seed: int, shift: int = 0) -> None:
        self._step, self._slicing, self._seed, self._shift = step, slicing, seed, shift

    def __getitem__(self, index: int) -> list[Batch]:
        """The micro-batches of step ``index`` of the phase."""
        if streamed(self._step):
            return list(_rows(self._step, self._slicing, self.examples(index), index))
        return [self._slicing.shaped(b) for b in _collate(self._step, self.pieces(index))]

    def examples(self, index: int) -> Ints:
        """The examples of a step over all processes, [2, N]: epochs and sample numbers."""
        size, sizes = len(self._step), self._slicing.sizes
        if streamed(self._step):
            batch = self._slicing.batch_size
            return windows_of(index + self._shift // batch, size, batch)
        if self._slicing.lengths is not None:
            batch = self._slicing.batch_size
            return grouped(index + self._shift // batch, self._slicing.lengths, batch, self._seed)
        numbers = self._shift + sizes.first(index) + np.arange(sizes.of(index))
        examples = _examples(numbers, size, self._seed)
        return self._step.sorted(examples) if isinstance(self._step, Mixture) else examples

    def pieces(self, index: int) -> list[Ints]:
        """The examples of this process's micro-batches, each [2, B]."""
        return self._slicing.mine(self.examples(index))


def training_batches(
    batches: StepBatches, first: int, last: int, *, workers: int, pin: bool
) -> Generator[list[Batch], None, None]:
    """The steps [first, last) in order, made ahead by worker processes when there are any.

    Raises:
        PlmError: A worker died, or cannot be started. To be used within ``reporting_dead_workers``,
            since PyTorch may raise in whatever the caller does when one dies.
    """
    loader = DataLoader(
        batches,
        sampler=range(first, last),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=4 if workers else None,
        pin_memory=pin,
        worker_init_fn=_ignore_signals,
    )
    if not workers:
        yield from loader
        return
    try:
        made = iter(loader)
    except OSError as error:  # no process, no file, no memory left
        raise _no_worker(error) from error
    try:
        while True:
            try:
                # Of a worker that dies in the middle of a message the rest would be waited for.
                if not all(worker.is_alive() for worker in _processes(made)):
                    raise _dead_worker(_exit_codes(made))
                step = next(made, None)
            except (OSError, EOFError, RuntimeError, MemoryError) as error:
                reported = _reported(error, made)
                if reported is None:
                    raise
                raise reported from error
            if step is None:
                return
            yield step
    finally:
        _end(made)


@contextmanager
def reporting_dead_workers() -> Iterator[None]:
    """Turn the error by which PyTorch reports a dead worker, wherever it is raised, into ours.

    Raises:
        PlmError: A worker died.
    """
    try:
        yield
    except RuntimeError as error:
        texts = [str(found) for found in _chain(error)]
        if not any(map(_DIED.search, texts)):
            raise
        bus = [-signal.SIGBUS] if any("Bus error" in text for text in texts) else []
        raise _dead_worker(bus) from error


def _chain(error: BaseException) -> list[BaseException]:
    """An error, and those that it was raised from or after."""
    found: list[BaseException] = []
    step: BaseException | None = error
    while step is not None and step not in found:
        found.append(step)
        step = step.__cause__ or step.__context__
    return found


# How PyTorch's message of a dead worker begins. That of an error in a worker's own code is another:
# "Caught IndexError in DataLoader worker process 0."
_DIED = re.compile(r"DataLoader worker \(pid")
_CAUGHT = "in DataLoader worker process"
_GRACE = 5.0  # seconds in which a worker whose connection broke is known to be dead


def _reported(error: Exception, made: Any) -> PlmError | None:
    """What to report for an error while waiting for a step; None: it is no matter of workers.

    What a worker's death looks like depends on the moment: its socket is gone, or closed in the
    middle of an answer, and then it may not be known to be dead yet.
    """
    text = str(error)
    if isinstance(error, MemoryError):
        return _dead_worker([])
    if "Too many open files" in text or "ancdata" in text:  # a file that could not be received
        return _no_worker(error)
    if _CAUGHT in text:
        return None
    if not _DIED.search(text) and not wait([one.sentinel for one in _processes(made)], _GRACE):
        return None
    return _dead_worker(_exit_codes(made))


def _dead_worker(exit_codes: list[int]) -> PlmError:
    hint = "compute.workers=0 makes batches without such processes"
    what, do = "perhaps because memory ran out", ""
    if -signal.SIGBUS in exit_codes:  # as it happens in containers, which have 64 MB of it
        what = "because the shared memory (/dev/shm) is full"
        do = "enlarge it (docker run --shm-size=8g), and "
    return PlmError(
        f"a process that makes batches died, {what}",
        f"{do}run the same command again: it resumes from the last checkpoint; {hint}",
    )


def _no_worker(error: Exception) -> PlmError:
    what = error.strerror if isinstance(error, OSError) else "Too many open files"
    return PlmError(
        f"the processes that make batches cannot be started or reached: {what}",
        "raise the limit (ulimit -n for files, ulimit -u for processes) and run the same command "
        "again; compute.workers=0 makes batches without such processes",
    )


def _processes(made: Any) -> list[BaseProcess]:
    """The workers of DataLoader's iterator."""
    workers: list[BaseProcess] = made._workers
    return workers


def _exit_codes(made: Any) -> list[int]:
    return [code for one in _processes(made) if (code := one.exitcode) is not None]


def _end(made: Any) -> None:
    """End the workers: at the program's end they would be sent SIGTERM, which they ignore."""
    try:
        made._shutdown_workers()
    finally:
        for worker in _processes(made):
            if worker.is_alive():  # it waits for what another one held when it died
                worker.kill()


def _ignore_signals(worker: int) -> None:
    """In a process that makes batches: the loop decides when to stop, and Ctrl-C reaches all."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


def scoring_batches(step: Step, slicing: Slicing, limit: int | None = None) -> Iterator[Batch]:
    """This process's part of the first ``limit`` samples of epoch 0, each once.

    A process may get nothing when there are fewer samples than processes. Streams are cut into
    equal rows, so that the last few samples may be left out.
    """
    samples = np.arange(len(step) if limit is None else min(limit, len(step)))
    if streamed(step):
        rows = min(_SCORED_ROWS, len(samples))
        for window in range(len(samples) // rows):
            yield from _rows(step, slicing, windows_of(window, len(samples), rows), window)
        return
    for share in slicing.mine(np.stack([np.zeros_like(samples), samples])):
        if share.size:
            yield from _collate(step, [share])


def _rows(step: Step, slicing: Slicing, examples: Ints, window: int) -> Iterator[Batch]:
    """This process's micro-batches of a window of streams, each with the rows that it has."""
    total = examples.shape[-1]
    numbered = np.concatenate([examples, np.arange(total)[None]])
    for epochs, samples, rows in slicing.mine(numbered):
        if len(rows):
            of = Rows(int(rows[0]), int(rows[-1]) + 1, total, window)
            yield replace(step.collate(epochs, samples), rows=of)


def auto_micro_batch(asked: int | str, rows: int, seq_len: int, device: str) -> int:
    """Rows in a forward: what was asked for, or as many as keep the device busy.

    Args:
        asked: A number, or "auto".
        rows: This process's rows in a step.
        seq_len: Length of a row.
        device: "cpu", "cuda" or "mps".
    """
    if isinstance(asked, int):
        return min(asked, rows)
    return max(1, min(rows, _AUTO_TOKENS[device] // seq_len))
