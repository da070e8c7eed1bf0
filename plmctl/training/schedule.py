"""Learning-rate schedules as pure functions of the step: nothing to save, nothing to resume."""

import math

from plmctl.config.optim import ScheduleConfig


def rate(config: ScheduleConfig, step: int, steps: int) -> float:
    """The factor on the peak learning rate for the update number ``step``.

    Args:
        config: Name, warm-up and floor.
        step: 0 for the first update. Warm-up gives the first update 1/warmup, never zero.
        steps: Number of updates in the whole run.

    Returns:
        A factor in [0, 1]; at least ``min_lr_ratio`` after the warm-up.
    """
    warmup = config.warmup.of(steps)
    if step < warmup:
        return (step + 1) / warmup
    left = (steps - step) / max(steps - warmup, 1)  # 1 right after the warm-up, then towards 0
    floor = config.min_lr_ratio
    return floor + (1 - floor) * _shape(config, step, steps, left)


def _shape(config: ScheduleConfig, step: int, steps: int, left: float) -> float:
    if config.name == "constant":
        return 1.0
    if config.name == "linear":
        return left
    if config.name == "cosine":
        return 0.5 * (1 + math.cos(math.pi * (1 - left)))
    if config.name == "inverse_sqrt":
        # 1 until the warm-up's end, then 1/sqrt: the plateau and decay of T5 and the Transformer.
        plateau = max(config.warmup.of(steps), 1)
        return math.sqrt(plateau / max(step + 1, plateau))
    decay = config.decay.of(steps)  # wsd: warm up, stay, decay linearly over the last steps
    return min(1.0, (steps - step) / max(decay, 1))
