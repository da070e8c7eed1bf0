"""A measurement leaves no trace: the run after it is the run without it, bit for bit."""

from pathlib import Path

import pytest
import torch

from plmctl.corpus.store import TokenStore
from plmctl.training.timing import Timing, throwaway, time_steps
from tests.builders import cpu_engine
from tests.training.conftest import Train, exact, tiny_network, tiny_plan, weights


def test_a_measured_run_is_the_same_run(store: TokenStore, tmp_path: Path, run_plan: Train) -> None:
    ends = []
    for name in ("plain", "measured"):
        engine = cpu_engine(tiny_network("mlm+nsp", dropout=0.1))
        plan = tiny_plan("mlm+nsp", store, steps=(3, 2))
        if name == "measured":
            before = weights(engine)
            with throwaway(engine):
                seconds = time_steps(engine, plan, 1e-9)
                assert engine.trained().optimizer.state
                for parameter in engine.trained().network.parameters():
                    parameter.data.add_(1)
            assert len(seconds) == 2
            assert min(seconds) > 0
            assert all(torch.equal(before[n], value) for n, value in weights(engine).items())
            assert not engine.trained().optimizer.state
        run_plan(engine, plan, tmp_path / name)
        ends.append(weights(engine))
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
    assert exact(tmp_path / "plain") == exact(tmp_path / "measured")


def test_what_comes_around_the_steps() -> None:
    timing = Timing((1.0, 3.0), 5.0, 2.0, 0.5, 10, 25, extra_saves=4)
    # 3 validations and 1 + 4 checkpoints on the way, 2 of each at the end, 5 s for the report, and
    # 2 % of 30 steps of 2 s.
    expected = 5 + 3 * 2 + 5 * 0.5 + 2 * 2 + 2 * 0.5 + 5 + 1.2
    assert timing.overhead(30) == pytest.approx(expected)
