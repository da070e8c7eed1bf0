"""From step numbers to batches: which examples a step has, and how they reach the loop.

Which examples are in a step is a pure function of (seed, step), on any number of processes. The
batch size counts sequences over all devices and micro-batches. Sample number n of a run belongs to
epoch n // size; within an epoch the order is a keyed permutation. Each process takes its share of
a step's samples and cuts it into micro-batches; neither changes which examples a step has.

``Slicing`` and ``Phase`` define how steps are cut up, ``StepBatches`` makes the batches of a step,
and the loop takes them from a ``StepLoader``.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import Queue
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plmctl.arrays import Ints, exact_shares, spread
from plmctl.errors import ConfigError, PlmError
from plmctl.examples.inspection import Example, Tallies, merge, tally
from plmctl.examples.keys import fold, permute, stream
from plmctl.models.base import Examples, StoreExamples
from plmctl.models.batch import Batch, Rows
from plmctl.models.network import Network
from plmctl.training.journal import Progress
from plmctl.training.plan import Phase, PhasePlace, Plan, Slicing
from plmctl.training.shapes import fixed, unpadded

# --- How a step is cut up ---


# Tokens per forward if `micro_batch_size` is auto: enough to keep the device busy.
_AUTO_TOKENS = {"cpu": 8_192, "cuda": 65_536, "mps": 16_384}

_SCORED_ROWS = 32
"""Streams for scoring a text, so that the size of micro-batches changes no metric."""


def auto_micro_batch(configured: int | str, rows: int, seq_len: int, device: str) -> int:
    """Rows per forward: the configured number, or as many as keep the device busy.

    Args:
        rows: This process's rows in a step.
        device: "cpu", "cuda" or "mps".
    """
    if isinstance(configured, int):
        return min(configured, rows)
    return max(1, min(rows, _AUTO_TOKENS[device] // seq_len))


# --- Which examples are in a step ---


def examples_of(step: int, size: int, batch_size: int, seed: int) -> Ints:
    """The examples of a step.

    Args:
        step: Step number within the phase, from 0.
        size: Samples in an epoch.
        seed: Decides the order of every epoch.

    Returns:
        [2, batch_size]: epochs and sample numbers.
    """
    return _examples(step * batch_size, (step + 1) * batch_size, size, seed)


def _examples(first: int, last: int, size: int, seed: int) -> Ints:
    """[2, N]: epochs and sample numbers of the samples [first, last) of a phase."""
    parts = range(first // _PART, -(-last // _PART))
    order = np.concatenate([_ordered(part, size, seed) for part in parts], axis=1)
    return order[:, first - parts[0] * _PART : last - parts[0] * _PART]


_PART = 1 << 12
"""Samples whose order is made at once: 32 of them alone cost half as much as all of these."""


@lru_cache(maxsize=4)
def _ordered(part: int, size: int, seed: int) -> Ints:
    """[2, _PART]: epochs and sample numbers of a part of a phase."""
    numbers = part * _PART + np.arange(_PART)
    epochs = numbers // size
    keys = fold(seed, stream("order"), epochs)
    return np.stack([epochs, permute(numbers % size, size, keys)])


def windows_of(step: int, size: int, batch_size: int) -> Ints:
    """The examples of a step with stateful rows: row r reads the r-th part of the epoch.

    Args:
        step: Step number within the phase, from 0.
        size: Windows in an epoch; the last ones are dropped if they do not fill a step.
        batch_size: Rows, at most ``size``.

    Returns:
        [2, batch_size]: epochs and sample numbers.
    """
    steps = size // batch_size
    rows = np.arange(batch_size)
    return np.stack([np.full_like(rows, step // steps), rows * steps + step % steps])


# --- Steps of samples of similar length: less padding ---
#
# An epoch is shuffled and cut into windows of several steps. The samples of a window are sorted by
# length and distributed to its steps, whose order is shuffled. So a step's samples have similar
# lengths, which samples share a step changes from epoch to epoch, and every epoch has every sample
# once.


_WINDOW = 50
"""Steps of a window, at most: more would save little padding and cost more sorting."""

_WINDOWS = 4
"""Windows of an epoch, at least, so that the steps differ from epoch to epoch."""


class Grouped:
    """Item k: the examples of step k, of similar length.

    Shuffling and sorting a window (50 steps) takes 1.6 milliseconds if a step has 32 samples, too
    long for every step of a small network on short rows, so the latest windows are kept.

    Args:
        lengths: [N] of each sample of an epoch.
    """

    def __init__(self, lengths: Ints, batch_size: int, seed: int) -> None:
        self._lengths, self._batch_size, self._seed = lengths, batch_size, seed
        size = len(lengths)
        self._width = max(1, min(_WINDOW, size // (batch_size * _WINDOWS)))
        self._windows: dict[tuple[int, int], dict[int, Ints]] = {}

    def __getitem__(self, step: int) -> Ints:
        """The examples of a step.

        Args:
            step: Step number within the phase, from 0.

        Returns:
            [2, batch_size]: epochs and sample numbers, shorter samples first in each epoch.
        """
        size, batch = len(self._lengths), self._batch_size
        parts = []
        for epoch in range(step * batch // size, ((step + 1) * batch - 1) // size + 1):
            key = epoch, step // self._width
            if key not in self._windows:
                for old in list(self._windows)[:-1]:  # a step at the end of an epoch needs two
                    del self._windows[old]
                self._windows[key] = self._window(*key)
            samples = self._windows[key][step]
            parts.append(np.stack([np.full_like(samples, epoch), samples]))
        return np.concatenate(parts, axis=1)

    def _window(self, epoch: int, window: int) -> dict[int, Ints]:
        """The samples of one epoch of each step of a window."""
        size, batch = len(self._lengths), self._batch_size
        start, end = epoch * size, (epoch + 1) * size
        # The window's samples of this epoch, by their numbers in the run; its steps, their shares.
        low = max(start, window * self._width * batch)
        high = min(end, (window + 1) * self._width * batch)
        steps = np.arange(low // batch, -(-high // batch))
        shares = np.minimum(high, (steps + 1) * batch) - np.maximum(low, steps * batch)
        key = fold(self._seed, stream("order"), epoch)
        samples = permute(np.arange(low, high) - start, size, key)
        samples = samples[np.argsort(self._lengths[samples], kind="stable")]
        # Shuffle the steps: the first one in this order takes the shortest samples, and so on.
        key = fold(self._seed, stream("windows"), epoch, window)
        turns = permute(np.arange(len(steps)), len(steps), key)
        parts = np.split(samples, np.cumsum(shares[turns])[:-1])
        return dict(zip(steps[turns].tolist(), parts, strict=True))


# --- Mixtures of several corpora, each with a share of the samples ---
#
# GPT-3, section 2.2. A small corpus with a large weight is seen several times before a large one is
# seen once. An epoch of the mixture has as many samples as all corpora together; each corpus has
# its share of them, to within one sample. The corpus of a sample and the number within it are
# functions of the epoch and the sample number: there is no state to save.


@dataclass(frozen=True)
class Mixture(StoreExamples):
    """Examples of several corpora; the loader never mixes two of them in a batch.

    Attributes:
        counts: [S] samples of each in an epoch of the mixture.
        seed: Decides the corpus of each sample, and the order within each corpus.
    """

    names: tuple[str, ...]
    parts: tuple[StoreExamples, ...]
    counts: Ints
    seed: int
    _bounds: Ints = field(init=False, repr=False)
    _sizes: Ints = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_bounds", np.concatenate([[0], np.cumsum(self.counts)]))
        object.__setattr__(self, "_sizes", np.array([len(one) for one in self.parts]))

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """Names of the loss terms, the same for all corpora."""
        return self.parts[0].loss_terms

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of the mean of each loss term in the loss."""
        return self.parts[0].weights

    @property
    def counted_terms(self) -> tuple[str, ...]:
        """The loss terms that are the cross-entropy of their targets."""
        return self.parts[0].counted_terms

    def __len__(self) -> int:
        """Samples in an epoch of the mixture."""
        return int(self._bounds[-1])

    def at_step(self, step: int, steps: int) -> Self:
        """The same mixture, each corpus as a step has it."""
        return replace(self, parts=tuple(part.at_step(step, steps) for part in self.parts))

    def alternatives(self) -> dict[str, Self]:
        """Those of the corpora, which all have the same objectives."""
        each = [part.alternatives() for part in self.parts]
        return {name: replace(self, parts=tuple(one[name] for one in each)) for name in each[0]}

    def locate(self, epochs: Ints, samples: Ints) -> tuple[Ints, Ints, Ints]:
        """The origin of samples of the mixture.

        Args:
            epochs: [N] of the mixture.
            samples: [N], each below ``len(self)``.

        Returns:
            Numbers of the corpora, and the epochs and sample numbers within them, each [N]. All
            samples of a corpus come once before any of them comes again.
        """
        key = fold(self.seed, stream("mixture"))
        slot = permute(samples, len(self), fold(key, 0, epochs))
        source = np.searchsorted(self._bounds, slot, side="right") - 1
        number = epochs * self.counts[source] + slot - self._bounds[source]
        size = self._sizes[source]
        within = number // size
        return source, within, permute(number % size, size, fold(key, 1, source, within))

    def sorted(self, examples: Ints) -> Ints:
        """The examples [2, N] (epochs and samples) of a step in the order of their corpora."""
        source, _, _ = self.locate(*examples)
        return examples[:, np.argsort(source, kind="stable")]

    def split(self, examples: Ints) -> list[Ints]:
        """The examples [2, N] cut into pieces of one corpus each."""
        source, _, _ = self.locate(*examples)
        order = np.argsort(source, kind="stable")
        cuts = np.flatnonzero(np.diff(source[order])) + 1
        return np.split(examples[:, order], cuts, axis=1)

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The examples [B] named by ``epochs`` and ``samples``, all of one corpus.

        Raises:
            ValueError: They are of several, whose rows may have different lengths.
        """
        source, within, numbers = self.locate(epochs, samples)
        if (source != source[0]).any():
            raise ValueError("a batch of several corpora: split it first")
        return self.parts[int(source[0])].collate(within, numbers)

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The loss of each loss term, summed over the batch's targets."""
        return self.parts[0].loss(network, batch)

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The losses, with the number of correct predictions."""
        return self.parts[0].score(network, batch)

    def tally(self, epochs: Ints, samples: Ints) -> Tallies:
        """Statistics of the examples, and the share of each corpus (``share_NAME``)."""
        source, within, numbers = self.locate(epochs, samples)
        shares = {f"share_{name}": tally(source == at) for at, name in enumerate(self.names)}
        tallies = [
            self.parts[at].tally(within[source == at], numbers[source == at])
            for at in np.unique(source)
        ]
        return merge([*tallies, shares])

    def expected(self) -> dict[str, float]:
        """The shares, and the statistics that are expected to be equal in all corpora."""
        first, *others = (part.expected() for part in self.parts)
        same = {n: value for n, value in first.items() if all(o.get(n) == value for o in others)}
        shares = self.counts / len(self)
        return same | {f"share_{n}": float(s) for n, s in zip(self.names, shares, strict=True)}

    def example(self, epoch: int, sample: int) -> Example:
        """One example for reading, with the name of its corpus."""
        source, within, number = (
            int(values[0]) for values in self.locate(np.array([epoch]), np.array([sample]))
        )
        example = self.parts[source].example(within, number)
        return Example(example.rows, f"{example.note} [{self.names[source]}]".strip())


def mixture(
    names: Sequence[str], parts: Sequence[StoreExamples], weights: Sequence[float], seed: int
) -> Mixture:
    """The mixture of several corpora with their weights.

    Raises:
        ConfigError: A weight so small that an epoch has no sample of its corpus, or stateful rows,
            which continue from step to step and which a change of corpus would cut off.
    """
    if any(part.streamed for part in parts):
        raise ConfigError(
            "data.mixture is not supported for this objective: its rows are streams that continue "
            "from step to step",
            "use data.train",
        )
    counts = exact_shares(weights, sum(len(part) for part in parts))
    for name, count in zip(names, counts, strict=True):
        if not count:
            raise ConfigError(
                f"data.mixture: the weight of {name} is less than one sample per epoch",
                "increase the weight, or remove the source",
            )
    return Mixture(tuple(names), tuple(parts), counts, seed)


# --- The batches of a step ---


class StepBatches:
    """Item k: this process's micro-batches of step k.

    Args:
        shift: Samples that rollbacks skipped: the data starts after them.
        stretch: The place of these steps in the run; None: the examples do not change over it.
    """

    def __init__(
        self,
        examples: Examples,
        slicing: Slicing,
        seed: int,
        shift: int = 0,
        stretch: PhasePlace | None = None,
    ) -> None:
        self._source, self._slicing, self._seed, self._shift = examples, slicing, seed, shift
        self._stretch = stretch
        lengths = slicing.lengths
        self._grouped = None if lengths is None else Grouped(lengths, slicing.batch_size, seed)

    def __getitem__(self, index: int) -> list[Batch]:
        """The micro-batches of step ``index`` of the phase."""
        source = self.source(index)
        if source.streamed:
            return list(_rows(source, self._slicing, self.examples(index), index))
        batches, width = list(_collate(source, self.pieces(index))), self._slicing.width
        if width is not None:
            batches = [fixed(batch, width) for batch in batches]
        return [unpadded(batch) for batch in batches] if self._slicing.unpadded else batches

    def source(self, index: int) -> Examples:
        """What makes the examples of a step."""
        stretch = self._stretch
        if stretch is None:
            return self._source
        return self._source.at_step(stretch.first + index, stretch.total)

    def examples(self, index: int) -> Ints:
        """The examples of a step over all processes, [2, N]: epochs and sample numbers."""
        size, sizes = len(self._source), self._slicing.sizes
        if self._source.streamed:
            batch = self._slicing.batch_size
            return windows_of(index + self._shift // batch, size, batch)
        if self._grouped is not None:
            return self._grouped[index + self._shift // self._slicing.batch_size]
        first = self._shift + sizes.first(index)
        examples = _examples(first, first + sizes.of(index), size, self._seed)
        return self._source.sorted(examples) if isinstance(self._source, Mixture) else examples

    def pieces(self, index: int) -> list[Ints]:
        """The examples of this process's micro-batches, each [2, B]."""
        return self._slicing.mine(self.examples(index))


def _collate(examples: Examples, pieces: list[Ints]) -> Iterator[Batch]:
    """The batches of examples [2, N]; those of a mixture are cut where the corpus changes."""
    for piece in pieces:
        for part in examples.split(piece) if isinstance(examples, Mixture) else [piece]:
            yield examples.collate(*part)


def _rows(source: Examples, slicing: Slicing, examples: Ints, window: int) -> Iterator[Batch]:
    """This process's micro-batches of a window of streams, each with its rows' numbers."""
    total = examples.shape[-1]
    numbered = np.concatenate([examples, np.arange(total)[None]])
    for epochs, samples, rows in slicing.mine(numbered):
        if len(rows):
            of = Rows(int(rows[0]), int(rows[-1]) + 1, total, window)
            yield replace(source.collate(epochs, samples), rows=of)


def scoring_batches(
    examples: Examples, slicing: Slicing, limit: int | None = None, lengths: Ints | None = None
) -> Iterator[Batch]:
    """This process's part of ``limit`` samples of epoch 0, spread over the text, each once.

    Of a mixture of objectives each has its samples, of the same places in the text.

    If there are fewer samples than processes, some processes get none. Streams are cut into equal
    rows, so that the last few samples may be dropped; of fewer samples each row has its beginning.

    Args:
        limit: None: all samples.
        lengths: [N] of each sample: similar lengths share a batch, for less padding.
    """
    if len(kinds := examples.alternatives()) > 1:
        for one in kinds.values():
            yield from scoring_batches(one, slicing, limit, lengths)
        return
    samples = spread(len(examples), limit)
    if lengths is not None:  # every process has its part of the short and of the long ones
        ordered = samples[np.argsort(lengths[samples], kind="stable")]
        samples = np.concatenate([ordered[rank :: slicing.world] for rank in range(slicing.world)])
    if examples.streamed:
        rows = min(_SCORED_ROWS, len(samples))
        for window in range(len(samples) // rows):
            yield from _rows(examples, slicing, windows_of(window, len(examples), rows), window)
        return
    for share in slicing.mine(np.stack([np.zeros_like(samples), samples])):
        if share.size:
            yield from _collate(examples, [share])


# --- Worker processes that prepare batches ---


def training_batches(
    batches: StepBatches, first: int, last: int, *, workers: int
) -> Generator[list[Batch], None, None]:
    """The steps [first, last) in order, prepared by worker processes if there are any.

    Worker w of W prepares the steps first + w, first + w + W and so on, and has a pipe of its own.
    Nothing is shared between the workers, no lock and no queue, so one that is killed at any moment
    is seen as the end of its pipe. (PyTorch's DataLoader can wait forever for a lock of a dead
    worker.)

    Raises:
        PlmError: A worker died, or cannot be started.
    """
    if not workers:
        yield from _several_at_once(batches, first, last)
        return
    running: list[tuple[BaseProcess, Connection]] = []
    try:
        for number in range(min(workers, last - first)):
            running.append(_started(batches, range(first + number, last, workers), running))
        for step in range(last - first):
            yield _received(*running[step % workers])
    finally:
        for process, connection in running:
            connection.close()
            process.kill()  # it has nothing to lose
        for process, _ in running:
            process.join()


_BURST = 1 << 16  # tokens of the steps that are made at once
_QUICK = 0.01  # seconds: a batch that takes longer is made when it is needed


def _several_at_once(batches: StepBatches, first: int, last: int) -> Iterator[list[Batch]]:
    """The steps [first, last) in order, small and quick ones several at a time.

    After a step of training nothing that makes a batch is in the CPU's caches: a batch takes twice
    as long as right after another one.
    """
    while first < last:
        began = time.perf_counter()
        steps = [batches[first]]
        if time.perf_counter() - began < _QUICK:
            count = _BURST // max(1, sum(batch.padded_tokens for batch in steps[0]))
            with suppress(PlmError, OSError):  # raised again when the step's turn comes
                steps += map(batches.__getitem__, range(first + 1, min(first + count, last)))
        yield from steps
        first += len(steps)


_AHEAD = 4  # steps that a worker prepares in advance, the one that it is sending included

# A forked worker shares the memory of what makes the examples. Elsewhere a fork is not safe.
_CONTEXT = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


def _started(
    batches: StepBatches, steps: range, running: list[tuple[BaseProcess, Connection]]
) -> tuple[BaseProcess, Connection]:
    """A worker for these steps, and the end of its pipe that gives them."""
    try:
        reader, writer = _CONTEXT.Pipe(duplex=False)
        # A forked process has the open files of this one. A pipe ends when all have closed it.
        ends = [reader, *(connection for _, connection in running)]
        inherited = ends if _CONTEXT.get_start_method() == "fork" else []
        process = _CONTEXT.Process(  # type: ignore[attr-defined]  # of the two contexts' common base
            target=_prepare, args=(batches, steps, writer, inherited), daemon=True
        )
        try:
            process.start()
        finally:
            writer.close()
    except OSError as error:  # no processes, files or memory left
        raise PlmError(
            f"the worker processes that prepare batches cannot be started: {error.strerror}",
            "raise the limit (ulimit -n for files, ulimit -u for processes) and run the same "
            "command again; compute.workers=0 prepares batches without worker processes",
        ) from error
    return process, reader


def _prepare(
    batches: StepBatches, steps: range, writer: Connection, inherited: list[Connection]
) -> None:
    """In a worker process: make the steps' batches; a thread sends those that are made."""
    # The loop decides when to stop, but Ctrl-C and a scheduler's signals reach all processes.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for connection in inherited:
        connection.close()
    torch.set_num_threads(1)
    prepared: Queue[list[_Message] | Exception | None] = Queue(_AHEAD - 2)

    def send() -> None:
        try:
            while (message := prepared.get()) is not None:
                writer.send(message)
        except (OSError, MemoryError):  # the loop is gone, or sees the end of the pipe
            os._exit(1)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    try:
        for step in steps:
            prepared.put([_message(batch) for batch in batches[step]])
    except MemoryError:
        os._exit(1)
    except (PlmError, OSError) as error:
        prepared.put(error)
    except Exception:
        prepared.put(RuntimeError(f"in a worker process:\n{traceback.format_exc()}"))
    prepared.put(None)
    sender.join()


# A batch as it goes through a pipe: arrays, as PyTorch would send tensors in shared memory, of
# which containers have little.
_Arrays = dict[str, NDArray[Any]]
_Message = tuple[_Arrays, _Arrays, int, int, Rows | None]


def _message(batch: Batch) -> _Message:
    inputs = {name: tensor.numpy() for name, tensor in batch.inputs.items()}
    targets = {term: tensor.numpy() for term, tensor in batch.targets.items()}
    return inputs, targets, batch.tokens, batch.padded_tokens, batch.rows


def _received(process: BaseProcess, connection: Connection) -> list[Batch]:
    """The batches of the worker's next step.

    Raises:
        PlmError: It died, or raised the error.
        OSError: It could not read a file.
        RuntimeError: A defect, with the worker's traceback.
    """
    try:
        message: list[_Message] | Exception = connection.recv()
    except (EOFError, OSError, MemoryError) as error:
        process.join(_GRACE)
        raise _dead_worker(process.exitcode) from error
    if isinstance(message, Exception):
        raise message
    return [
        Batch(
            {name: torch.from_numpy(array) for name, array in inputs.items()},
            {term: torch.from_numpy(array) for term, array in targets.items()},
            tokens,
            padded_tokens,
            rows,
        )
        for inputs, targets, tokens, padded_tokens, rows in message
    ]


_GRACE = 5.0  # seconds until a worker whose pipe ended has an exit code


def _dead_worker(exit_code: int | None) -> PlmError:
    what = "perhaps because memory ran out"
    if exit_code == -signal.SIGBUS:
        what = "because a file that it reads was shortened, or cannot be read from its disk"
    return PlmError(
        f"a worker process that prepares batches died, {what}",
        "run the same command again: it resumes from the last checkpoint; compute.workers=0 "
        "prepares batches without worker processes",
    )


# --- The loader of the loop ---


_MUCH_WAITING = 0.05  # share of the time, above which the loop gives advice

_SHORT_RUN = 30.0  # seconds: the loop gives no advice before

Taken = tuple[int, Phase, list[Batch]]


class StepLoader:
    """The micro-batches of each step, in order; after a rollback or with other sizes too.

    Attributes:
        seconds: How long the loop has waited for data.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._steps = self._from(Progress(step=plan.steps))
        self._at: tuple[object, ...] | None = None
        self.seconds = 0.0
        self._measurements, self._waited, self._advised = 0, False, False

    def next_step(self, progress: Progress) -> Taken:
        """The next step: number of the phase, phase, and this process's micro-batches."""
        began, at = time.perf_counter(), (progress.step, progress.shift, progress.micro)
        if self._at != at:  # the first step, or after a rollback or a change of micro-batches
            self._steps.close()
            self._steps = self._from(progress)
        taken = next(self._steps)
        self._at = progress.step + 1, progress.shift, progress.micro
        self.seconds += time.perf_counter() - began
        return taken

    def close(self) -> None:
        """End the worker processes."""
        self._steps.close()

    def examples(self, progress: Progress) -> Ints:
        """The examples of the next step over all processes, [2, N]: epochs and samples."""
        number, phase, within = next(self._plan.remaining(progress.step))
        return self._source(number, phase, progress).examples(within)

    def warn_of_slow_data(self, wait: float, seconds: float, warn: Callable[[str], None]) -> None:
        """Warn once if the loop waits for its data and the run is not a short one.

        Twice in a row: without processes, the loop waits once per epoch for its examples. The first
        measurement is ignored: it includes the start of the processes.

        Args:
            wait: Share of the time since the last log line that the loop waited.
            seconds: Of the run so far.
        """
        before, self._waited = self._waited, seconds >= _SHORT_RUN and wait > _MUCH_WAITING
        if self._measurements > 1 and before and self._waited and not self._advised:
            workers = self._plan.workers
            warn(
                f"{100 * wait:.0f} % of the time is spent waiting for batches; "
                f"compute.workers={2 * workers or 2} prepares more of them (now: {workers})"
            )
            self._advised = True
        self._measurements += 1

    def _from(self, progress: Progress) -> Generator[Taken, None, None]:
        for number, phase, first in self._plan.remaining(progress.step):
            source = self._source(number, phase, progress)
            workers = self._plan.workers
            iterator = training_batches(source, first, phase.steps, workers=workers)
            with closing(iterator):
                for batches in iterator:
                    yield number, phase, batches

    def _source(self, number: int, phase: Phase, progress: Progress) -> StepBatches:
        slicing = phase.slicing
        if progress.micro:
            micro = min(progress.micro[number], slicing.micro_batch_size)
            slicing = replace(slicing, micro_batch_size=micro)
        seed, stretch = int(fold(self._plan.seed, number)), self._plan.stretch(number)
        return StepBatches(phase.examples, slicing, seed, progress.shift, stretch)


# --- Hashes of a step's examples: equal if the examples and their order are ---


def step_digests(plan: Plan, steps: int, *, world: int, micro: int) -> Iterator[str]:
    """A hash of each of the first steps: every input and target of every example, in order.

    Each process's share is cut as the loader cuts it; each example is a batch of one, so that the
    hash does not depend on padding.
    """
    for number, phase, first in plan.remaining(0):
        seed = int(fold(plan.seed, number))
        cut = replace(phase.slicing, micro_batch_size=micro, world=world)
        shares = [
            StepBatches(phase.examples, replace(cut, rank=rank), seed, 0, plan.stretch(number))
            for rank in range(world)
        ]
        for index in range(first, phase.steps):
            if not steps:
                return
            steps -= 1
            digest = hashlib.blake2b(digest_size=16)
            for share in shares:
                for epochs, samples in share.pieces(index):
                    for at in range(len(samples)):
                        one = slice(at, at + 1)
                        batch = share.source(index).collate(epochs[one], samples[one])
                        for name, tensor in sorted({**batch.inputs, **batch.targets}.items()):
                            digest.update(name.encode())
                            digest.update(np.ascontiguousarray(tensor.numpy()).tobytes())
            yield digest.hexdigest()
