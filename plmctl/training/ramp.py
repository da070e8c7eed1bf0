"""How many sequences each step has, and how many tokens were seen: exact, without any history.

GPT-3's batch grows linearly in the tokens seen so far, from 32k tokens to the full size. Sizes are
whole sequences, so that they are stages of steps of one size; a table of the stages answers for any
step by bisection. Tokens are nominal: sequences times the sequence length.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plmctl.config.pretrain import TrainConfig


@dataclass(frozen=True)
class Stage:
    """Steps of one size.

    Attributes:
        step: Its first step within the phase.
        sample: Number of that step's first sample within the phase.
        size: Samples a step.
    """

    step: int
    sample: int
    size: int


@dataclass(frozen=True)
class Sizes:
    """The sizes of the steps of a phase; the last stage has no end."""

    stages: tuple[Stage, ...]

    def first(self, step: int) -> int:
        """Number of the first sample of a step: how many samples the steps before it have."""
        stage = self._stage(step)
        return stage.sample + (step - stage.step) * stage.size

    def of(self, step: int) -> int:
        """Samples of a step."""
        return self._stage(step).size

    def _stage(self, step: int) -> Stage:
        return self.stages[bisect_right(self.stages, step, key=lambda stage: stage.step) - 1]


def constant(size: int) -> Sizes:
    """Every step has ``size`` samples."""
    return Sizes((Stage(0, 0, size),))


def ramp(start: int, full: int, over: int, seq_len: int, seen: int = 0) -> Sizes:
    """Steps that grow linearly in the tokens seen.

    A step before which n tokens were seen has ``start + (full - start) * n // over`` samples, and
    ``full`` from ``over`` tokens on.

    Args:
        start: Samples of the first step, 1 <= start <= full.
        full: Samples of a step after the ramp.
        over: Tokens that the ramp takes.
        seq_len: Tokens a sample.
        seen: Tokens of the phases before.
    """
    stages, step, sample = [], 0, 0
    while True:
        tokens = min(seen + sample * seq_len, over)
        size = start + (full - start) * tokens // over
        stages.append(Stage(step, sample, size))
        if size == full:
            return Sizes(tuple(stages))
        # The first sample number from which a step is larger, rounded up to a whole step.
        next_tokens = -(-(size - start + 1) * over // (full - start))
        next_sample = -(-(next_tokens - seen) // seq_len)
        steps = -(-(next_sample - sample) // size)
        step, sample = step + steps, sample + steps * size


@dataclass(frozen=True)
class Course:
    """A whole run: the steps of all its phases.

    Attributes:
        sizes: Of each phase.
        seq_lens: Of each phase.
        begins: Step of the run with which each phase begins, and the end.
        tokens: Nominal tokens seen at each of ``begins``.
    """

    sizes: tuple[Sizes, ...]
    seq_lens: tuple[int, ...]
    begins: tuple[int, ...]
    tokens: tuple[int, ...]

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return self.begins[-1]

    def seen(self, step: int) -> int:
        """Nominal tokens of the steps before ``step`` of the run."""
        phase = min(bisect_right(self.begins, step) - 1, len(self.sizes) - 1)
        samples = self.sizes[phase].first(step - self.begins[phase])
        return self.tokens[phase] + samples * self.seq_lens[phase]


def course(train: TrainConfig) -> Course:
    """The steps of a config."""
    sizes: list[Sizes] = []
    tokens = [0]
    for phase in train.phases:
        if train.batch_ramp is None:
            sizes.append(constant(train.batch_size))
        else:
            start, over = train.batch_ramp.start, train.batch_ramp.tokens
            sizes.append(ramp(start, train.batch_size, over, phase.seq_len, tokens[-1]))
        tokens.append(tokens[-1] + sizes[-1].first(phase.steps) * phase.seq_len)
    seq_lens = tuple(phase.seq_len for phase in train.phases)
    begins = _offsets(phase.steps for phase in train.phases)
    return Course(tuple(sizes), seq_lens, begins, tuple(tokens))


def _offsets(sizes: Iterable[int]) -> tuple[int, ...]:
    return tuple(accumulate(sizes, initial=0))
