"""What the schedule of the learning rate goes by: steps, or tokens.

GPT-3 warms up over 375 million tokens and falls over 260 billion. While the batch grows that is not
the same as any number of steps: a step of the ramp's beginning has a hundredth of the tokens of a
step after it. Where a config names tokens, the schedule is a function of the tokens seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from plmctl.config.units import StepsOrShare
from plmctl.training.schedule import rate

if TYPE_CHECKING:
    from plmctl.config.optim import ScheduleConfig
    from plmctl.training.ramp import Course


def factor(schedule: ScheduleConfig, course: Course) -> Callable[[int], float]:
    """The factor on the peak learning rate, by the number of the update from 0.

    Args:
        schedule: Warm-up, decay, floor.
        course: The steps of the run.
    """
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
        # A step of the warm-up counts its own tokens, as it counts itself where steps are counted.
        return rate(by_tokens, min(following - 1 if seen < warmup else seen, total), total)

    return of


def _in_tokens(mark: StepsOrShare, course: Course, total: int) -> int:
    """A mark in tokens: a share is of ``total``, steps have the tokens that they have."""
    if mark.tokens is not None:
        return mark.tokens
    if isinstance(mark.root, float):
        return round(mark.root * total)
    return course.seen(mark.of(course.steps))
