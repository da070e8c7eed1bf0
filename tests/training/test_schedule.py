import pytest

from plmctl.config.optim import ScheduleConfig
from plmctl.training.schedule import rate


def rates(steps: int, **fields: object) -> list[float]:
    config = ScheduleConfig.model_validate(fields)
    return [rate(config, step, steps) for step in range(steps)]


def test_linear_by_hand() -> None:
    assert rates(6, name="linear", warmup=2) == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]


def test_cosine_by_hand() -> None:
    got = rates(5, name="cosine", warmup=1, min_lr_ratio=0.1)
    assert got == pytest.approx([1.0, 1.0, 0.1 + 0.9 * 0.8535534, 0.55, 0.1 + 0.9 * 0.1464466])


def test_inverse_sqrt_by_hand() -> None:
    assert rates(9, name="inverse_sqrt", warmup=4)[3:] == pytest.approx(
        [1.0, (4 / 5) ** 0.5, (4 / 6) ** 0.5, (4 / 7) ** 0.5, (4 / 8) ** 0.5, (4 / 9) ** 0.5]
    )


def test_wsd_stays_and_falls() -> None:
    got = rates(10, name="wsd", warmup="10%", decay="40%")
    assert got == pytest.approx([1, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25])


def test_constant_and_share() -> None:
    assert rates(4, name="constant", warmup="50%") == [0.5, 1, 1, 1]


@pytest.mark.parametrize("name", ["linear", "cosine", "constant", "inverse_sqrt", "wsd"])
def test_no_update_is_wasted(name: str) -> None:
    got = rates(50, name=name, warmup=5)
    assert min(got) > 0
    assert max(got) == 1.0


def test_t5_is_one_over_the_root_to_the_number() -> None:
    """Published: 1/sqrt(max(n, 10^4)), a peak of 0.01 without any ramp."""
    config = ScheduleConfig.model_validate({"name": "inverse_sqrt", "plateau": 10_000})
    for n in (0, 1, 9_999, 10_000, 10_001, 40_000, 1_000_000):
        got = 0.01 * rate(config, n, 2**20)
        assert got == pytest.approx(max(n, 10_000) ** -0.5, rel=1e-12)


def test_polynomial_is_the_code_of_bert() -> None:
    """The warm-up replaces a line that falls from step 0: the maximum is 0.99 of the rate."""
    config = ScheduleConfig.model_validate({"name": "polynomial", "warmup": 10_000})
    points = {0: 0.0, 5_000: 0.5, 9_999: 0.9999, 10_000: 0.99, 500_000: 0.5, 999_999: 1e-6}
    for step, expected in points.items():
        assert rate(config, step, 10**6) == pytest.approx(expected, rel=1e-9)
    square = ScheduleConfig.model_validate({"name": "polynomial", "power": 2.0})
    assert rate(square, 50, 100) == 0.25


def test_gpt3_falls_to_a_tenth_over_260_of_300_and_stays() -> None:
    config = ScheduleConfig.model_validate(
        {"name": "cosine", "decay_until": 260_000, "min_lr_ratio": 0.1}
    )
    assert rate(config, 0, 300_000) == 1.0
    assert rate(config, 130_000, 300_000) == pytest.approx(0.55)
    assert rate(config, 260_000, 300_000) == pytest.approx(0.1)
    assert rate(config, 299_999, 300_000) == pytest.approx(0.1)
