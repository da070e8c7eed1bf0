"""Learning-rate schedules as pure functions of the step: nothing to save, nothing to resume."""

import math

from plmctl.config.optim import ScheduleConfig


def rate(config: ScheduleConfig, step: int, steps: int) -> float:
    """The factor on the peak learning rate for the update number ``step``.

    Args:
        config: Name, warm-up and floor.
        step: 0 for the first update. Warm-up gives the first update 1/warmup, never zero, except
            with polynomial, which is BERT's code to the number.
        steps: Number of updates in the whole run.

    Returns:
        A factor in [0, 1]; at least ``min_lr_ratio`` after the warm-up.
    """
    warmup, end = config.warmup.of(steps), config.decay_until.of(steps)
    if config.name == "polynomial":
        return _polynomial(config, step, warmup, end)
    if step < warmup:
        return (step + 1) / warmup
    # 1 right after the warm-up, then towards 0, which it has from decay_until on
    left = max(0.0, (end - step) / max(end - warmup, 1))
    floor = config.min_lr_ratio
    return floor + (1 - floor) * _shape(config, step, steps, left)


def _polynomial(config: ScheduleConfig, step: int, warmup: int, end: int) -> float:
    """google-research/bert, optimization.py: the first update has rate 0, if there is a warm-up."""
    if step < warmup:
        return step / warmup
    left = max(0.0, 1 - step / max(end, 1))
    floor: float = config.min_lr_ratio
    return floor + (1 - floor) * float(left**config.power)


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
    decay = config.decay.of(steps)  # wsd: warm up, stay, decay linearly over the last steps
    return min(1.0, (steps - step) / max(decay, 1))
