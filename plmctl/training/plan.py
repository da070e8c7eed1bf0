"""The plan of a run: its phases, how their steps are cut up, and what a failed step leads to."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from plmctl.arrays import Ints
from plmctl.training.schedule import Sizes, constant

if TYPE_CHECKING:
    from plmctl.models.base import Examples
    from plmctl.training.journal import Progress, Update

# --- Phases, and how their steps are cut up ---


@dataclass(frozen=True)
class Slicing:
    """How the samples of a step are cut up.

    Attributes:
        batch_size: Samples per step, at its full size.
        micro_batch_size: Samples per forward, at most.
        growth: Samples of each step while the batch grows; None: always ``batch_size``.
        lengths: [N] of each sample, to group similar lengths in a step; not with ``growth``.
        width: Padded length of rows, for few shapes (``shapes.fixed``); None: as they are.
        unpadded: Whether batches say what is not padding (``shapes.unpadded``).
    """

    batch_size: int
    micro_batch_size: int
    rank: int = 0
    world: int = 1
    growth: Sizes | None = None
    lengths: Ints | None = None
    width: int | None = None
    unpadded: bool = False

    @property
    def sizes(self) -> Sizes:
        """Samples of every step."""
        return self.growth or constant(self.batch_size)

    def mine(self, samples: Ints) -> list[Ints]:
        """This process's micro-batches of a step's samples, at least one, none empty.

        Args:
            samples: [N] or [..., N]; the last axis is cut. N >= world.
        """
        share = _split(samples, self.world)[self.rank]
        return _split(share, max(1, -(-share.shape[-1] // self.micro_batch_size)))


def _split(samples: Ints, parts: int) -> list[Ints]:
    """The samples [..., N] in equal parts; NumPy takes 20 microseconds to make one part."""
    return [samples] if parts == 1 else np.array_split(samples, parts, axis=-1)


@dataclass(frozen=True)
class Phase:
    """Steps with the same sequence length."""

    examples: Examples
    steps: int
    slicing: Slicing


@dataclass(frozen=True)
class PhasePlace:
    """The place of a phase in its run.

    Attributes:
        first: Steps before it.
        total: Steps of the run.
    """

    first: int
    total: int


# --- The settings, and the rule that accepts or rejects a step ---
#
# The verdict on a step depends on the step and on the losses before it, which a checkpoint has: a
# resumed run decides as an uninterrupted one.


Verdict = Literal["good", "stop", "skip", "rollback"]

_MIN_LOSSES = 16  # before any loss is called a spike


@dataclass(frozen=True)
class Guard:
    """What to do with a failed step.

    Attributes:
        spike: A loss over this many times the median of the last losses is a spike; None: none is.
        patience: Skipped steps in a row, or rollbacks in all, after which the run stops.
    """

    nonfinite: Literal["stop", "skip"] = "stop"
    spike: float | None = None
    on_spike: Literal["stop", "skip", "rollback"] = "rollback"
    patience: int = 10

    def verdict(self, done: Update, progress: Progress, *, scaled: bool) -> tuple[Verdict, str]:
        """What to do with a step whose gradient is computed and not yet applied, and why.

        Args:
            progress: Before it.
            scaled: fp16: the gradient scaler handles an infinite gradient: it skips the update and
                halves its scale.
        """
        reason, verdict = "", "good"
        if not math.isfinite(done.loss):
            reason, verdict = "the loss is not finite", self.nonfinite
        elif not math.isfinite(done.grad_norm) and not scaled:
            reason, verdict = "the gradient is not finite", self.nonfinite
        elif self._is_spike(done.loss, progress.recent):
            median = statistics.median(progress.recent)
            reason = f"the loss is {done.loss:.4g}, the median of the last ones {median:.4g}"
            verdict = self.on_spike
        if verdict == "skip" and progress.skipped >= self.patience:
            return "stop", f"{reason}, after {progress.skipped} skipped steps in a row"
        if verdict == "rollback" and progress.rollbacks >= self.patience:
            return "stop", f"{reason}, after {progress.rollbacks} rollbacks"
        return verdict, reason  # type: ignore[return-value]  # a member of either literal

    def _is_spike(self, loss: float, recent: tuple[float, ...]) -> bool:
        if self.spike is None or len(recent) < _MIN_LOSSES:
            return False
        return loss > self.spike * statistics.median(recent)


@dataclass(frozen=True)
class Plan:
    """The steps of a run, and what happens after which of them.

    Attributes:
        seed: Decides the order of the examples and every draw of dropout.
        learning_rate: The learning rate of an update, by its number from 0.
        clip: Largest global norm of the gradient, or None.
        log_every: In steps, as the next two; the last step is always logged, validated and saved.
        validate_every: None: at the end only.
        save_every: Between checkpoints.
        workers: Processes that prepare batches; 0: the loop makes them.
        until: Save and stop after this step; None: continue to the end.
        save_best: Also save when the validation loss is the lowest so far.
        async_save: Whether the loop continues while a checkpoint is written.
        auto_micro_batch: Whether micro-batches are halved if they do not fit in memory.
        save_at: Further steps with a checkpoint.
        words: Words seen after a number of steps; None: unknown.
    """

    phases: tuple[Phase, ...]
    seed: int
    learning_rate: Callable[[int], float]
    clip: float | None
    log_every: int
    validate_every: int | None
    save_every: int
    workers: int = 0
    until: int | None = None
    guard: Guard = field(default_factory=Guard)
    save_best: bool = False
    async_save: bool = False
    auto_micro_batch: bool = False
    save_at: frozenset[int] = frozenset()
    words: Callable[[int], int] | None = None

    @property
    def last_step(self) -> int:
        """The step after which this process stops."""
        return self.steps if self.until is None else min(self.until, self.steps)

    @property
    def steps(self) -> int:
        """Updates in the whole run."""
        return sum(phase.steps for phase in self.phases)

    def due(self, every: int | None, done: int) -> bool:
        """Whether something is due after ``done`` updates."""
        return done == self.steps or (every is not None and done % every == 0)

    def save_due(self, done: int, best: tuple[float, int] | None) -> bool:
        """Whether a checkpoint is due after ``done`` updates; ``best``: loss and step."""
        improved = self.save_best and best is not None and best[1] == done
        scheduled = done in self.save_at or self.due(self.save_every, done)
        return improved or done == self.last_step or scheduled

    def next_save(self, done: int) -> int:
        """The step of the next checkpoint that is planned, when ``done`` updates are done."""
        scheduled = (done // self.save_every + 1) * self.save_every
        others = (step for step in self.save_at if step > done)
        return min(scheduled, self.last_step, *others)

    def words_at(self, done: int) -> dict[str, int]:
        """The log key of the words seen after ``done`` updates; empty if they are unknown."""
        return {} if self.words is None else {"words": self.words(done)}

    def samples(self, step: int) -> int:
        """Samples of an update, by its number from 0."""
        _, phase, within = next(self.remaining(step))
        return phase.slicing.sizes.of(within)

    def stretch(self, phase: int) -> PhasePlace:
        """The place of a phase, by its number, in the run."""
        return PhasePlace(sum(before.steps for before in self.phases[:phase]), self.steps)

    def phase_of(self, done: int) -> int:
        """The number of the phase of the last of ``done`` updates; of 0: the first phase."""
        number, _, _ = next(self.remaining(done - 1))
        return number

    def remaining(self, done: int) -> Iterator[tuple[int, Phase, int]]:
        """Each phase that is not over: its number, the phase, and the first step left in it."""
        before = 0
        for number, phase in enumerate(self.phases):
            if done < before + phase.steps:
                yield number, phase, max(0, done - before)
            before += phase.steps
