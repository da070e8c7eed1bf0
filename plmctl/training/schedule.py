"""The batch size, the tokens seen and the learning rate of each step.

All are pure functions of the step number: a checkpoint saves none of them.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from plmctl.config.sections import ScheduleConfig
from plmctl.config.units import StepsOrShare

if TYPE_CHECKING:
    from plmctl.config.sections import TrainConfig


# --- Batch sizes ---
#
# GPT-3's batch grows linearly in the tokens seen so far, from 32k tokens to the full size. Sizes
# are whole sequences, so several steps in a row have the same size: a stage. The stage of a step is
# found by bisection. Tokens are nominal: sequences times the sequence length.


@dataclass(frozen=True)
class Stage:
    """Steps of one size.

    Attributes:
        step: Its first step within the phase.
        sample: Number of that step's first sample within the phase.
        size: Samples per step.
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
        over: Tokens until the full size.
        seq_len: Tokens per sample.
        seen: Tokens of the earlier phases.
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
        begins: The first step of each phase, and the number of steps of the run.
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

    @property
    def samples(self) -> tuple[int, ...]:
        """Samples of each phase."""
        pairs = zip(self.tokens, self.tokens[1:], self.seq_lens, strict=False)
        return tuple((after - before) // length for before, after, length in pairs)

    def spent(self, step: int, per_sample: Sequence[float]) -> float:
        """The cost of the samples of the steps before ``step``.

        Args:
            per_sample: The cost of a sample of each phase, in words, FLOPs or seconds.
        """
        total = 0.0
        for number, sizes in enumerate(self.sizes):
            first, end = self.begins[number], self.begins[number + 1]
            total += sizes.first(max(0, min(step, end) - first)) * per_sample[number]
        return total

    def seen(self, step: int) -> int:
        """Nominal tokens of the steps before ``step`` of the run."""
        phase = min(bisect_right(self.begins, step) - 1, len(self.sizes) - 1)
        samples = self.sizes[phase].first(step - self.begins[phase])
        return self.tokens[phase] + samples * self.seq_lens[phase]


def course(train: TrainConfig, phase_steps: Sequence[int] | None = None) -> Course:
    """The steps of a config.

    Args:
        phase_steps: Steps of each phase; None: the config's own, which a budget does not have.
    """
    sizes: list[Sizes] = []
    tokens = [0]
    if phase_steps is None:
        phase_steps = train.phase_steps
    for phase, full, steps in zip(train.phases, train.batch_sizes, phase_steps, strict=True):
        if train.batch_ramp is None:
            sizes.append(constant(full))
        else:
            start, over = train.batch_ramp.start, train.batch_ramp.tokens
            sizes.append(ramp(start, full, over, phase.seq_len, tokens[-1]))
        tokens.append(tokens[-1] + sizes[-1].first(steps) * phase.seq_len)
    seq_lens = tuple(phase.seq_len for phase in train.phases)
    begins = _offsets(phase_steps)
    return Course(tuple(sizes), seq_lens, begins, tuple(tokens))


def _offsets(sizes: Iterable[int]) -> tuple[int, ...]:
    return tuple(accumulate(sizes, initial=0))


# --- Steps that fit into a budget, and the steps at which marks are reached ---


def split_steps(steps: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Steps cut into phases by their shares, each boundary at the nearest step."""
    ends = [round(sum(shares[: number + 1]) * steps) for number in range(len(shares))]
    ends[-1] = steps
    return tuple(end - begin for begin, end in pairwise([0, *ends]))


def most_steps(costs: Callable[[int], float], budget: float) -> int:
    """The largest number of steps that costs at most the budget; 0 if one step costs more.

    Args:
        costs: What a number of steps costs; more steps cost more.
        budget: What may be spent.
    """
    high = 1
    while costs(high) <= budget:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if costs(middle) <= budget:
            low = middle
        else:
            high = middle
    return low


def nearest_step(seen: Callable[[int], float], mark: float, steps: int) -> int | None:
    """The step after which the amount seen is nearest to a mark; None: it is after the end.

    Args:
        seen: What has been seen after a number of steps; it grows.
        steps: Steps of the run. A mark at most a step after the end is the last step.
    """
    after = bisect_left(range(steps + 1), mark, key=seen)
    if after > steps:
        last_step = seen(steps) - seen(steps - 1)
        return steps if mark - seen(steps) <= last_step else None
    before = after - 1
    if before >= 1 and mark - seen(before) < seen(after) - mark:
        return before
    return max(after, 1)


# --- Learning rates by the number of the step ---


def rate(config: ScheduleConfig, step: int, steps: int) -> float:
    """The factor on the peak learning rate for the update number ``step``.

    Args:
        step: 0 for the first update. Warm-up gives the first update 1/warmup, never zero, except
            with polynomial, which gives exactly the numbers of BERT's code.

    Returns:
        A factor in [0, 1]; at least ``min_lr_ratio`` between the warm-up and ``cooldown``.
    """
    warmup, end = config.warmup.of(steps), config.decay_until.of(steps)
    if config.name == "polynomial":
        return _polynomial(config, step, warmup, end)
    if step < warmup:
        return (step + 1) / warmup
    # 1 right after the warm-up, 0 from decay_until on
    left = max(0.0, (end - step) / max(end - warmup, 1))
    floor = config.min_lr_ratio
    cooled = min(1.0, (steps - step) / max(config.cooldown.of(steps), 1))
    return cooled * (floor + (1 - floor) * _shape(config, step, steps, left))


def _polynomial(config: ScheduleConfig, step: int, warmup: int, end: int) -> float:
    """The first update has rate 0, if there is a warm-up.

    Sources: google-research/bert, optimization.py; google-research/electra, model/optimization.py.
    """
    rise = min(1.0, step / warmup) if warmup else 1.0
    if config.warmup_rule == "replace" and step < warmup:
        return rise
    left = max(0.0, 1 - step / max(end, 1))
    floor: float = config.min_lr_ratio
    return rise * (floor + (1 - floor) * float(left**config.power))


def _shape(config: ScheduleConfig, step: int, steps: int, left: float) -> float:
    if config.name == "constant":
        return 1.0
    if config.name == "linear":
        return left
    if config.name == "cosine":
        return 0.5 * (1 + math.cos(math.pi * (1 - left)))
    if config.name == "inverse_sqrt":
        if wide := config.plateau.of(steps):  # T5: 1/sqrt(max(n, k)) over its value at k
            return math.sqrt(wide / max(step, wide))
        # 1 until the warm-up's end, then 1/sqrt, as the Transformer.
        plateau = max(config.warmup.of(steps), 1)
        return math.sqrt(plateau / max(step + 1, plateau))
    decay = config.decay.of(steps)  # wsd: warm up, stay, decay over the last steps
    left = min(1.0, (steps - step) / max(decay, 1))
    return left if config.decay_shape == "linear" else 1 - math.sqrt(1 - left)


# --- Learning rates by steps or by tokens ---
#
# GPT-3 warms up over 375 million tokens and decays over 260 billion. While the batch grows, no
# number of steps is equivalent: an early step of the ramp has a hundredth of the tokens of a later
# step. If a config gives tokens, the schedule is a function of the tokens seen.


def factor(schedule: ScheduleConfig, course: Course) -> Callable[[int], float]:
    """The factor on the peak learning rate, by the number of the update from 0."""
    fields = {name: getattr(schedule, name) for name in type(schedule).model_fields}
    marks = {name: mark for name, mark in fields.items() if isinstance(mark, StepsOrShare)}
    if all(mark.tokens is None for mark in marks.values()):
        return lambda step: rate(schedule, step, course.steps)
    total = course.seen(course.steps)
    resolved = {name: StepsOrShare(_in_tokens(mark, course, total)) for name, mark in marks.items()}
    by_tokens = schedule.model_copy(update=resolved)
    warmup = resolved["warmup"].of(total)

    def of(step: int) -> float:
        seen, following = course.seen(step), course.seen(step + 1)
        # In the warm-up a step includes its own tokens, as it includes itself if steps are counted.
        return rate(by_tokens, min(following - 1 if seen < warmup else seen, total), total)

    return of


def _in_tokens(mark: StepsOrShare, course: Course, total: int) -> int:
    """A mark in tokens: a share of ``total``, or the tokens of that many steps."""
    if mark.tokens is not None:
        return mark.tokens
    if isinstance(mark.root, float):
        return round(mark.root * total)
    return course.seen(mark.of(course.steps))
