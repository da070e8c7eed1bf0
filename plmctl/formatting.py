"""Numbers and durations in readable form."""

import math


def format_value(value: object) -> str:
    """A number with separated thousands and three or more digits; text unchanged; None: a dash."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return "-"
    if abs(value) >= 1000 or (value == int(value) and abs(value) >= 100):
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}"
    # Three decimals; but a learning rate or a weight decay is not zero.
    return f"{value:.3f}" if value == 0 or abs(value) >= 0.01 else f"{value:.2e}"


def format_duration(seconds: float) -> str:
    """``3:41``, ``2:03:41``, ``3d 04h``; a dash if it is unknown."""
    if not math.isfinite(seconds):
        return "-"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02d}h"
    return f"{hour}:{minute:02d}:{second:02d}" if hour else f"{minute}:{second:02d}"
