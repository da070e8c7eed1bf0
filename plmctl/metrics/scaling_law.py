"""Scaling laws: the loss of a model as a function of its size, its training and their compute.

``L(N, D) = E + A / N^alpha + B / D^beta`` (Hoffmann et al. 2022, arXiv:2203.15556) is fitted as in
their third approach: the Huber loss of the differences of the logarithms, the best of several
starts. N is the number of all parameters, D the number of training tokens, losses are in nats.
Where the runs are too few for five constants, ``L(C) = K / C^gamma`` is fitted to the lowest loss
at each compute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np

from plmctl.arrays import Bools, Floats

_HUBER = 1e-2  # beyond the noise of a run; Hoffmann et al. have 1e-3, for 400 runs
_EXPONENTS = 0.01, 2.0  # what a fit may give
_STARTS = tuple(product((0.3, 0.8), (0.3, 0.8), (0.3, 0.8)))  # E over the lowest loss, exponents
_TOLERANCE, _MAX_ITERATIONS = 1e-7, 200
_CONSTANTS = 5
_REPEATED = 15.4  # epochs after which repeated text is worth little (Muennighoff et al. 2023)


@dataclass(frozen=True)
class Law:
    """``L(N, D) = E + A / N^alpha + B / D^beta``.

    Attributes:
        E: The loss that no size and no amount of text goes below.
        A: Scale of the term of the parameters.
        alpha: Its exponent.
        B: Scale of the term of the tokens.
        beta: Its exponent.
    """

    E: float
    A: float
    alpha: float
    B: float
    beta: float

    def loss(self, parameters: Floats, tokens: Floats) -> Floats:
        """The loss in nats; arrays of any one shape."""
        return self.E + self.A * parameters**-self.alpha + self.B * tokens**-self.beta

    def best(self, compute: float, sizes: Floats, cost: Floats) -> int:
        """Which of some sizes has the lowest loss if all of them spend the same compute.

        Args:
            compute: FLOPs of a training.
            sizes: [S] parameters.
            cost: [S] FLOPs per token.
        """
        return int(np.argmin(self.loss(sizes, compute / cost)))


HOFFMANN = Law(E=1.69, A=406.4, alpha=0.34, B=410.7, beta=0.28)
"""The values that Hoffmann et al. (2022) print."""

BESIROGLU = Law(E=1.8172, A=482.01, alpha=0.3478, B=2085.43, beta=0.3658)
"""The refit by Besiroglu et al. (2024, arXiv:2404.10102), whose optimum is 20 tokens per
parameter."""


def effective_tokens(tokens: float, unique: float) -> float:
    """New tokens that are worth as much as ``tokens`` tokens of a text that is repeated.

    Source: Muennighoff et al., 2023, arXiv:2305.16264, equation 5.
    """
    if tokens <= unique:
        return tokens
    repetitions = tokens / unique - 1
    return unique + unique * _REPEATED * (1 - math.exp(-repetitions / _REPEATED))


@dataclass(frozen=True)
class PowerLaw:
    """``L(C) = K / C^gamma``."""

    K: float
    gamma: float

    def loss(self, compute: Floats) -> Floats:
        """The loss in nats at each compute."""
        return self.K * compute**-self.gamma


# --- Fits ---


def enough(parameters: Floats, tokens: Floats) -> bool:
    """Whether runs can decide all five constants: six runs, three sizes, both N and D vary.

    Args:
        parameters: [R] of each run.
        tokens: [R].
    """
    sizes = np.unique(parameters)
    lengths = [len(np.unique(tokens[parameters == size])) for size in sizes]
    return len(parameters) >= 6 and len(sizes) >= 3 and min(lengths) >= 2


def fit(parameters: Floats, tokens: Floats, losses: Floats, start: Law | None = None) -> Law:
    """The law of some runs.

    Args:
        parameters: [R] of each run.
        tokens: [R].
        losses: [R] in nats.
        start: Where the search starts; None: at several places.
    """
    from scipy.optimize import least_squares

    # Around the middle of the runs, where the terms of size and text are of the order of the loss.
    middle = np.exp(np.log(parameters).mean()), np.exp(np.log(tokens).mean())
    n, d = np.log(parameters / middle[0]), np.log(tokens / middle[1])
    target, lowest = np.log(losses), float(losses.min())

    def terms(x: Floats) -> tuple[Floats, Floats, Floats]:
        return np.exp(x[0]), np.exp(x[1] - x[2] * n), np.exp(x[3] - x[4] * d)

    def residuals(x: Floats) -> Floats:
        return np.asarray(np.log(sum(terms(x))) - target)

    def jacobian(x: Floats) -> Floats:
        e, a, b = terms(x)
        whole = e + a + b
        return np.stack([e / whole, a / whole, -n * a / whole, b / whole, -d * b / whole], axis=1)

    least, most = np.log(1e-4 * lowest), np.log(losses.max())
    low = np.array([least, least, _EXPONENTS[0], least, _EXPONENTS[0]])
    high = np.array([np.log(lowest), most, _EXPONENTS[1], most, _EXPONENTS[1]])
    if start is None:
        starts = [
            np.array([np.log(share * lowest), rest, alpha, rest, beta])
            for share, alpha, beta in _STARTS
            for rest in [np.log((1 - share) * lowest / 2)]
        ]
    else:
        terms_there = start.A * middle[0] ** -start.alpha, start.B * middle[1] ** -start.beta
        a, b = map(float, np.log(terms_there))
        starts = [np.array([np.log(start.E), a, start.alpha, b, start.beta])]
    solutions = [
        least_squares(
            residuals,
            np.clip(first, low + 1e-9, high - 1e-9),
            jacobian,
            bounds=(low, high),
            loss="huber",
            f_scale=_HUBER,
            x_scale="jac",
            ftol=_TOLERANCE,
            xtol=_TOLERANCE,
            max_nfev=_MAX_ITERATIONS,
        )
        for first in starts
    ]
    x = min(solutions, key=lambda result: float(result.cost)).x
    return Law(
        E=float(np.exp(x[0])),
        A=float(np.exp(x[1]) * middle[0] ** x[2]),
        alpha=float(x[2]),
        B=float(np.exp(x[3]) * middle[1] ** x[4]),
        beta=float(x[4]),
    )


def fit_power(compute: Floats, losses: Floats) -> PowerLaw:
    """The power law through points, by least squares of the logarithms; [P] each, P >= 2."""
    slope, intercept = np.polyfit(np.log(compute), np.log(losses), 1)
    return PowerLaw(K=float(np.exp(intercept)), gamma=float(-slope))


def on_frontier(compute: Floats, losses: Floats) -> Bools:
    """[R] which runs have a lower loss than every run with less compute."""
    order = np.lexsort((losses, compute))
    before = np.minimum.accumulate(np.concatenate([[np.inf], losses[order][:-1]]))
    lowest = np.empty(len(losses), dtype=bool)
    lowest[order] = losses[order] < before
    return lowest


# --- Uncertainty: the bootstrap of the residuals ---


def noise_of(fitted: Floats, losses: Floats, constants: int = _CONSTANTS) -> Floats:
    """[R] residuals of the log losses as large as the noise of single runs.

    A fit takes up some of the noise: with R runs and p constants the residuals are too small by
    ``sqrt((R - p) / R)``, which is undone here. nan: as many constants as runs, so unknown.

    Args:
        fitted: [R] losses by the law.
        losses: [R] measured.
    """
    left = len(losses) - constants
    if left <= 0:
        return np.full(len(losses), np.nan)
    return np.asarray(np.log(losses / fitted) * np.sqrt(len(losses) / left))


def redrawn(fitted: Floats, noise: Floats, draws: int, seed: int) -> tuple[Floats, Floats]:
    """Losses that other runs of the same sizes and lengths might have had.

    Args:
        fitted: [R] losses by the law.
        noise: [R] of ``noise_of``.

    Returns:
        losses: [draws, R].
        factors: [draws] noise of one more run, as a factor on its loss.
    """
    generator = np.random.Generator(np.random.Philox(seed))
    losses = fitted * np.exp(generator.choice(noise, size=(draws, len(fitted))))
    return losses, np.exp(generator.choice(noise, size=draws))
