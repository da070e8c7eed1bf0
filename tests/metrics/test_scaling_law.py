"""Scaling laws: known constants come out of synthetic losses, and published numbers of the laws."""

import math

import numpy as np
import pytest

from plmctl.metrics.scaling_law import (
    BESIROGLU,
    HOFFMANN,
    Law,
    effective_tokens,
    enough,
    fit,
    fit_power,
    noise_of,
    on_frontier,
    redrawn,
)


def ladder(sizes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Parameters and tokens of a ladder: 20 tokens per parameter, and less."""
    parameters = np.repeat(2e5 * 2.0 ** np.arange(sizes), 3)
    return parameters, 20 * parameters * np.tile([0.125, 0.35, 1], sizes)


@pytest.mark.parametrize("law", [HOFFMANN, BESIROGLU], ids=["hoffmann", "besiroglu"])
def test_the_constants_come_out_of_exact_losses(law: Law) -> None:
    parameters, tokens = ladder()
    fitted_law = fit(parameters, tokens, law.loss(parameters, tokens))
    for name, value in vars(law).items():
        assert vars(fitted_law)[name] == pytest.approx(value, rel=0.02), name


def test_a_noisy_ladder_predicts_ten_times_its_compute() -> None:
    parameters, tokens = ladder()
    generator = np.random.default_rng(3)
    losses = BESIROGLU.loss(parameters, tokens)
    measured = losses * np.exp(0.003 * generator.standard_normal(len(losses)))
    fitted_law = fit(parameters, tokens, measured)
    n, d = np.array([parameters.max() * 3]), np.array([tokens.max() * 3.3])
    assert fitted_law.loss(n, d) == pytest.approx(BESIROGLU.loss(n, d), rel=0.02)


def test_one_failed_run_does_not_decide() -> None:
    parameters, tokens = ladder()
    losses = BESIROGLU.loss(parameters, tokens)
    losses[5] *= 1.3
    fitted_law = fit(parameters, tokens, losses)
    assert fitted_law.alpha == pytest.approx(BESIROGLU.alpha, rel=0.15)
    assert fitted_law.beta == pytest.approx(BESIROGLU.beta, rel=0.15)


@pytest.mark.parametrize(
    ("law", "compute", "tokens_per_parameter"),
    [(BESIROGLU, 1e20, 22.9), (BESIROGLU, 5.76e23, 18.4), (HOFFMANN, 1e18, 25.7)],
)
def test_the_best_size_is_the_published_one(
    law: Law, compute: float, tokens_per_parameter: float
) -> None:
    sizes = np.geomspace(1e6, 1e12, 20_000)
    best = sizes[law.best(compute, sizes, 6 * sizes)]
    assert compute / (6 * best) / best == pytest.approx(tokens_per_parameter, rel=0.005)


def test_losses_are_the_published_ones() -> None:
    assert HOFFMANN.loss(np.array(70e9), np.array(1.4e12)) == pytest.approx(1.937, abs=5e-4)
    # Besiroglu's constants, 1 B parameters and 20 B tokens: 1.8172 + 0.3575 + 0.3542.
    assert BESIROGLU.loss(np.array(1e9), np.array(2e10)) == pytest.approx(2.529, abs=2e-3)
    assert HOFFMANN.loss(np.array(280e9), np.array(300e9)) == pytest.approx(1.993, abs=5e-4)


def test_repeated_text_is_worth_less() -> None:
    assert effective_tokens(90, 100) == 90
    # Four epochs are nearly four times new text, a hundred are worth 16 epochs.
    assert effective_tokens(400, 100) == pytest.approx(372, abs=2)
    assert effective_tokens(1e6, 100) == pytest.approx(100 + 1540)


def test_which_runs_are_enough() -> None:
    assert enough(*ladder(3))
    assert not enough(*ladder(2))  # two sizes have no curvature
    parameters, tokens = ladder(6)
    assert not enough(parameters[::3], tokens[::3])  # one length of each: N and D move together


def test_a_power_law_and_its_runs() -> None:
    compute = np.array([1e12, 2e12, 2e12, 4e12, 8e12])
    losses = np.array([5.0, 4.5, 4.4, 4.6, 4.0])
    assert on_frontier(compute, losses).tolist() == [True, False, True, False, True]
    law = fit_power(compute, 40 * compute**-0.07)
    assert (law.K, law.gamma) == pytest.approx((40, 0.07))


def test_residuals_of_a_fit_are_scaled_to_the_noise() -> None:
    fitted, losses = np.full(9, 4.0), 4.0 * np.exp(np.array([0.01, -0.01, 0] * 3))
    noise = noise_of(fitted, losses)
    assert noise == pytest.approx(np.array([0.015, -0.015, 0] * 3))  # sqrt(9 / (9 - 5)) = 1.5
    assert np.isnan(noise_of(fitted[:5], losses[:5])).all()
    drawn, factors = redrawn(fitted, noise, 500, seed=0)
    assert drawn.shape == (500, 9)
    assert factors.shape == (500,)
    assert np.log(drawn / 4).std() == pytest.approx(0.015 * math.sqrt(2 / 3), rel=0.05)
    assert (redrawn(fitted, noise, 500, seed=0)[0] == drawn).all()
