"""The micro-batches of any step, made ahead where steps follow each other."""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

from plmctl.modeling.batch import Batch
from plmctl.shaping.keys import fold
from plmctl.training.loader import Ints, StepBatches, reporting_dead_workers, training_batches
from plmctl.training.plan import Phase, Plan
from plmctl.training.telemetry import Progress

_MUCH_WAITING = 0.05  # share of the time: above it a word about it is worth while
Taken = tuple[int, Phase, list[Batch]]


class Feed:
    """What the loop reads from.

    Args:
        plan: The steps.
        pin: Copy batches into pinned memory: for CUDA.

    Attributes:
        seconds: How long the loop has waited for data.
    """

    def __init__(self, plan: Plan, *, pin: bool) -> None:
        self._plan, self._pin = plan, pin
        self._steps = self._from(Progress(step=plan.steps))
        self._at: tuple[object, ...] | None = None
        self.seconds = 0.0
        self._figures, self._advised = 0, False

    def take(self, progress: Progress) -> Taken:
        """The number of the phase, the phase, and this process's micro-batches of the next step."""
        began, at = time.perf_counter(), (progress.step, progress.shift, progress.micro)
        if self._at != at:  # the first step, or after a rollback or a change of micro-batches
            self._steps.close()
            self._steps = self._from(progress)
        taken = next(self._steps)
        self._at = progress.step + 1, progress.shift, progress.micro
        self.seconds += time.perf_counter() - began
        return taken

    @contextmanager
    def watched(self) -> Iterator[None]:
        """End the processes that make batches with the block, and report it if one of them died.

        Raises:
            PlmError: One died.
        """
        with reporting_dead_workers():
            try:
                yield
            finally:
                self._steps.close()

    def examples(self, progress: Progress) -> Ints:
        """The examples of the next step over all processes, [2, N]: epochs and samples."""
        number, phase, within = next(self._plan.remaining(progress.step))
        return self._source(number, phase, progress).examples(within)

    def advise(self, wait: float, warn: Callable[[str], None]) -> None:
        """Say once what to do where the loop waits for its data.

        The first figure counts for nothing: it has the start of the processes in it.

        Args:
            wait: Share of the time since the last log line that the loop has waited.
            warn: Says it.
        """
        if self._figures and wait > _MUCH_WAITING and not self._advised:
            workers = self._plan.workers
            warn(
                f"{100 * wait:.0f} % of the time goes into waiting for batches; "
                f"compute.workers={2 * workers or 2} makes more of them ahead (now: {workers})"
            )
            self._advised = True
        self._figures += 1

    def _from(self, progress: Progress) -> Generator[Taken, None, None]:
        for number, phase, first in self._plan.remaining(progress.step):
            source = self._source(number, phase, progress)
            workers = self._plan.workers
            made = training_batches(source, first, phase.steps, workers=workers, pin=self._pin)
            with closing(made):
                for batches in made:
                    yield number, phase, batches

    def _source(self, number: int, phase: Phase, progress: Progress) -> StepBatches:
        slicing = phase.slicing
        if progress.micro:
            micro = min(progress.micro[number], slicing.micro_batch_size)
            slicing = replace(slicing, micro_batch_size=micro)
        return StepBatches(phase.step, slicing, int(fold(self._plan.seed, number)), progress.shift)
