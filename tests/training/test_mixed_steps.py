"""Steps of several objectives, and phases with batches of other sizes, in the loop."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from plmctl.corpus.store import TokenStore
from plmctl.errors import PlmError
from plmctl.training.memory import heaviest
from plmctl.training.plan import Phase, Plan, Slicing
from plmctl.training.timing import time_steps
from tests.builders import cpu_engine, make_examples
from tests.training.conftest import VOCAB, Train, exact, metrics, tiny_network, weights

OF = [{"name": "clm", "weight": 3}, {"name": "mntp"}]


def mixed_plan(store: TokenStore, micro: int = 16) -> Plan:
    """Seven steps of 12 rows, then five of 6 longer ones."""
    examples = [make_examples("mixture", store, VOCAB, length, of=OF) for length in (24, 48)]
    cuts = (7, Slicing(12, micro)), (5, Slicing(6, micro))
    phases = [Phase(one, n, cut) for one, (n, cut) in zip(examples, cuts, strict=True)]
    return Plan(tuple(phases), 7, lambda step: 1e-2, 1.0, 1, None, 1000)


@pytest.mark.parametrize("stop", [3, 7, 8])
def test_an_interrupted_run_is_the_uninterrupted_one(
    stop: int, store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """Before, on and after the border of the phases, dropout on."""
    plan = mixed_plan(store)

    def run(name: str, until: int | None = None) -> dict[str, torch.Tensor]:
        engine = cpu_engine(tiny_network("clm", dropout=0.1))
        run_plan(engine, replace(plan, until=until), tmp_path / name)
        return weights(engine)

    whole = run("whole")
    with pytest.raises(PlmError, match=f"after step {stop} of 12"):
        run("cut", stop)
    resumed = run("cut")
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())
    assert exact(tmp_path / "cut") == exact(tmp_path / "whole")
    lines = metrics(tmp_path / "whole")
    named = ["mntp" if "loss/mntp/lm" in line else "clm" for line in lines]
    assert (named.count("clm"), named.count("mntp")) == (9, 3)
    assert all(
        line[f"loss/{name}/lm"] == line["loss"] for line, name in zip(lines, named, strict=True)
    )
    assert [line["tokens"] for line in lines][-1] == 7 * 12 * 24 + 5 * 6 * 48


def test_micro_batches_change_nothing(store: TokenStore, tmp_path: Path, run_plan: Train) -> None:
    for micro in (16, 5):
        engine = cpu_engine(tiny_network("clm"))
        run_plan(engine, mixed_plan(store, micro), tmp_path / str(micro))
    pairs = zip(metrics(tmp_path / "16"), metrics(tmp_path / "5"), strict=True)
    assert all(one["loss"] == pytest.approx(other["loss"], rel=2e-6) for one, other in pairs)


def test_what_is_tried_before_the_first_step(store: TokenStore) -> None:
    """Each objective is timed, and the heaviest micro-batch has the most targets: of `clm`."""
    plan, engine = mixed_plan(store), cpu_engine(tiny_network("clm"))
    assert all(seconds > 0 for seconds in time_steps(engine, plan, 1.0))
    assert heaviest(plan.phases[0], 7, 4).counts() == {"clm/lm": 4 * 24}
