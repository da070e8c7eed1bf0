"""Ranges and ticks of an axis: pure functions of the values on it."""

import math
from dataclasses import dataclass

import numpy as np

from plmctl.arrays import Floats

_TICKS = 5  # about as many as can be read on a plot of this size


@dataclass(frozen=True)
class Axis:
    """A range and where its ticks are.

    Attributes:
        low: The value at the beginning.
        high: The value at the end; more than ``low``.
        ticks: Between them, ascending.
        log: Logarithmic.
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def at(self, values: Floats) -> Floats:
        """Where values are on it, 0 at the beginning and 1 at the end; nan stays nan."""
        if self.log:
            values = np.log(np.where(values > 0, values, math.nan))
            low, high = math.log(self.low), math.log(self.high)
        else:
            low, high = self.low, self.high
        return (values - low) / (high - low)

    def label(self, tick: float) -> str:
        """A tick as text, in the manner of its neighbours: ``20k``, ``2e-4``, ``0.5``."""
        largest = max(abs(self.low), abs(self.high))
        if tick and largest < 0.01:
            mantissa, exponent = f"{tick:.2e}".split("e")
            return f"{float(mantissa):g}e{int(exponent)}"
        for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
            if largest >= 5 * unit or (letter != "k" and largest >= unit):
                return f"{tick / unit:g}{letter}" if tick else "0"
        return f"{tick:,.10g}"


def linear(values: Floats, *, zero: bool = False, tight: bool = False) -> Axis:
    """A linear axis.

    Args:
        values: [N], with a finite one among them.
        zero: Begin at 0; for values that are not negative.
        tight: End where the values end, not at the next tick.
    """
    low, high = _range(values)
    low = min(low, 0.0) if zero else low
    if high == low:
        low, high = (
            (0.0, 1.0) if zero and not high else (low - abs(low or 1), high + abs(high or 1))
        )
    step = nice_step((high - low) / _TICKS)
    if not tight:
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    # Twelve digits: 3 * 0.1 is to be 0.3 on a label.
    return Axis(low, high, tuple(float(f"{k * step:.12g}") for k in range(first, last + 1)))


def logarithmic(values: Floats) -> Axis:
    """A logarithmic axis for positive values; what is not positive has no place on it."""
    low, high = _range(values[values > 0])
    margin = (high / low) ** 0.04 if high > low else 1.5
    low, high = low / margin, high * margin
    for digits in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = (float(f"{digit * 10.0**decade:.12g}") for decade in decades for digit in digits)
        ticks = tuple(tick for tick in found if low <= tick <= high)
        if len(ticks) >= 3:
            return Axis(low, high, ticks, log=True)
    inside = linear(np.array([low, high]), tight=True).ticks
    return Axis(low, high, inside, log=True)


def spread(values: Floats) -> float:
    """The largest over the smallest finite value; 1 unless all of them are positive."""
    finite = values[np.isfinite(values)]
    if not finite.size or finite.min() <= 0:
        return 1.0
    return float(finite.max() / finite.min())


def nice_step(size: float) -> float:
    """The 1, 2 or 5 times a power of ten that is next from above."""
    power = 10.0 ** math.floor(math.log10(size))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= size * (1 - 1e-9))


def _range(values: Floats) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return float(finite.min()), float(finite.max())
