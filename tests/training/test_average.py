"""The average of the weights is the sum that its definition says, at any step, after any resume."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from plmctl.config.sections import AverageConfig
from plmctl.corpus.store import TokenStore
from plmctl.errors import Preempted
from plmctl.training.average import Average, Averaging
from plmctl.training.engine import Engine
from tests.builders import cpu_engine
from tests.training.conftest import Train, tiny_network, tiny_plan, weights

STEPS = 11
EMA = AverageConfig(name="ema", decay=0.8, every=2)
LAST = AverageConfig(name="last", over=5, every=2)


def engine_of(config: AverageConfig | None) -> Engine:
    averaging = None if config is None else Averaging(config, STEPS)
    return cpu_engine(tiny_network("clm", dropout=0.1), averaging=averaging)


@pytest.mark.parametrize(
    ("config", "counts"),
    [
        (EMA, {1: 0.8**10, 3: 0.8**8, 5: 0.8**6, 7: 0.8**4, 9: 0.8**2, 11: 1.0}),
        (LAST, {7: 1.0, 9: 1.0, 11: 1.0}),
        (AverageConfig(name="last", over=0.5, every=1), dict.fromkeys(range(6, 12), 1.0)),
        (AverageConfig(name="last", over=5, every=100), {11: 1.0}),
        (AverageConfig(name="last", over=1000, every=5), dict.fromkeys((1, 6, 11), 1.0)),
    ],
)
def test_it_is_the_weighted_mean_of_the_weights_of_its_steps(
    config: AverageConfig, counts: dict[int, float]
) -> None:
    network = nn.Linear(3, 2)
    average = Average(network, Averaging(config, STEPS))
    total = torch.zeros(2, 3)
    for step in range(1, STEPS + 1):
        with torch.no_grad():
            network.weight.add_(torch.randn(2, 3))
        average.update(step)
        total += counts.get(step, 0.0) * network.weight.detach()
        assert average.exists(step) == (step >= min(counts))
    torch.testing.assert_close(average.values["weight"], total / sum(counts.values()))


def test_a_step_that_failed_on_the_device_changes_nothing() -> None:
    network = nn.Linear(3, 2)
    average = Average(network, Averaging(EMA, STEPS))
    average.update(1, torch.tensor(0.0))
    before = average.values["weight"].clone()
    with torch.no_grad():
        network.weight.add_(1)
    average.update(3, torch.tensor(1.0))
    assert torch.equal(average.values["weight"], before)
    average.update(3, torch.tensor(0.0))
    assert not torch.equal(average.values["weight"], before)


@pytest.mark.parametrize("config", [EMA, LAST], ids=["ema", "last"])
def test_a_resumed_run_has_the_same_average_and_training_does_not_see_it(
    store: TokenStore, tmp_path: Path, run_plan: Train, config: AverageConfig
) -> None:
    plan = replace(tiny_plan("clm", store, steps=(STEPS,), save_every=3), validate_every=2)
    scored: list[dict[str, torch.Tensor]] = []

    def one_run(name: str, config: AverageConfig | None, until: int | None = None) -> Engine:
        engine = engine_of(config)

        def validate(step: int, *, stop: object = None) -> dict[str, float]:
            scored.append(weights(engine))
            return {"valid/loss": 1.0}

        run_plan(engine, replace(plan, until=until), tmp_path / name, validate)
        return engine

    whole = one_run("whole", config)
    with pytest.raises(Preempted):
        one_run("stopped", config, 4)
    with pytest.raises(Preempted):
        one_run("stopped", config, 8)
    folders = [tmp_path / "stopped" / "checkpoints" / f"step-{step:06d}" for step in (4, 8)]
    there = [(folder / "average.safetensors").is_file() for folder in folders]
    assert there == [config.name == "ema", True]
    one_run("stopped", config)
    last = [tmp_path / name / "checkpoints" / f"step-{STEPS:06d}" for name in ("whole", "stopped")]
    for name in ("model", "optimizer", "average"):
        one, other = ((folder / f"{name}.safetensors").read_bytes() for folder in last)
        assert one == other
    average, plain = load_file(last[0] / "average.safetensors"), weights(one_run("plain", None))
    assert all(torch.equal(average[name], value) for name, value in scored[5].items())
    for name, value in weights(whole).items():
        assert torch.equal(value, plain[name])
        assert not torch.equal(value, average[name])
