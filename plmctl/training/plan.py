"""What is to be done: the steps of a run, when what is due, and how far this start of it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from plmctl.training.guard import Guard
from plmctl.training.loader import Slicing
from plmctl.training.step import Step


@dataclass(frozen=True)
class Phase:
    """Steps that share a sequence length."""

    step: Step
    steps: int
    slicing: Slicing


@dataclass(frozen=True)
class Plan:
    """What is to be done.

    Attributes:
        phases: In order.
        seed: Decides the order of the examples and every draw of dropout.
        learning_rate: The rate of an update, by its number from 0.
        clip: Largest global norm of the gradient, or None.
        log_every: In steps, as the next two; the last step always does all three.
        validate_every: None: at the end only.
        save_every: Between checkpoints.
        workers: Processes that make batches ahead; with 0 the loop makes them itself.
        until: Save and stop after this step; None: go on to the end.
        guard: What is done about a step that went wrong.
        save_best: Save as well where the validation loss is the lowest so far.
        background: Whether the loop goes on while a checkpoint is written.
        elastic: Whether micro-batches are made smaller where they do not fit in memory.
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
    background: bool = False
    elastic: bool = False

    @property
    def last(self) -> int:
        """The step after which this start of the run ends."""
        return self.steps if self.until is None else min(self.until, self.steps)

    @property
    def steps(self) -> int:
        """Updates in the whole run."""
        return sum(phase.steps for phase in self.phases)

    def due(self, every: int | None, done: int) -> bool:
        """Whether something is due after ``done`` updates."""
        return done == self.steps or (every is not None and done % every == 0)

    def save_due(self, done: int, best: tuple[float, int] | None) -> bool:
        """Whether a checkpoint is due after ``done`` updates, the best validation loss known."""
        improved = self.save_best and best is not None and best[1] == done
        return improved or done == self.last or self.due(self.save_every, done)

    def samples(self, step: int) -> int:
        """Samples of an update, by its number from 0."""
        _, phase, within = next(self.remaining(step))
        return phase.slicing.sizes.of(within)

    def remaining(self, done: int) -> Iterator[tuple[int, Phase, int]]:
        """Each phase that is not over: its number, itself, and the step within it to begin with."""
        before = 0
        for number, phase in enumerate(self.phases):
            if done < before + phase.steps:
                yield number, phase, max(0, done - before)
            before += phase.steps
