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
