"""What the host of a GPU waits for in a step: nothing; and how several hosts agree without one."""

import math
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from plmctl.config.run import ComputeConfig
from plmctl.corpus.store import TokenStore
from plmctl.errors import Preempted
from plmctl.modeling.batch import Batch
from plmctl.training.checkpoint import Checkpoints, Trained, restore
from plmctl.training.distributed import summed_facts
from plmctl.training.engine import Engine, make_accelerator, unwaiting
from plmctl.training.journal import Journal
from plmctl.training.loop import Guard, apply_unread, gradient, train
from tests.processes import in_two_processes
from tests.training.conftest import nothing, tiny_network, weights
from tests.training.test_checkpoint import trained
from tests.training.test_guard import events, source
from tests.training.test_reading import Big, engine, outcome, plan_for, wrong


@dataclass(frozen=True)
class Regression:
    """A step of two parts that reads nothing from the device; ``peeks``: it does."""

    peeks: bool = False
    parts: tuple[str, ...] = ("far", "near")

    def loss(self, network: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        error = (network(batch.inputs["x"])[:, 0] - batch.targets["far"]).square().sum()
        if self.peeks:
            error.item()
        return {"far": error, "near": error.sqrt()}


def test_a_step_is_computed_and_applied_on_a_device_that_tells_nothing() -> None:
    """On PyTorch's device without data, which refuses every read: so no step of a GPU waits."""
    device = torch.device("meta")
    network = nn.Linear(4, 1, device=device)
    accelerator = make_accelerator(ComputeConfig(device="cpu"))
    accelerator.state._shared_state["device"] = device
    flag = torch.zeros((), device=device)
    made = Engine(accelerator, network, torch.optim.SGD(network.parameters(), 0.1), halted=flag)
    target = torch.arange(3)
    batches = [Batch({"x": torch.ones(3, 4)}, {"far": target, "near": target}, 12, 12)] * 2
    computed = gradient(made, Regression(), batches, 1.0, 5, False)
    apply_unread(made, computed)
    assert computed.figures.shape == (3,)
    assert (computed.targets, computed.tokens) == ({"far": 6, "near": 6}, 24)
    with pytest.raises(RuntimeError, match="meta"):
        computed.read()
    with pytest.raises(RuntimeError, match="meta"):
        gradient(made, Regression(peeks=True), batches, 1.0, 5, False)
    make_accelerator(ComputeConfig(device="cpu"))  # the state is of all accelerators


@pytest.mark.parametrize("fused", [True, False])
def test_the_count_of_updates_comes_back_where_the_kernel_reads_it(
    fused: bool, tmp_path: Path
) -> None:
    """A fused kernel counts on the device; any other asks the host, who waits for no device."""
    folder = Checkpoints(tmp_path, 3).save(3, trained(), {})
    network = trained().network.to("meta")
    optimizer = torch.optim.AdamW(network.parameters(), fused=fused)
    restore(folder, Trained(network, optimizer))
    for state in optimizer.state.values():
        assert state["exp_avg"].device.type == "meta"
        assert state["step"].device.type == ("meta" if fused else "cpu")


def _signalled(rate: Callable[[int], float], step: int) -> float:
    if step == 18:
        os.kill(os.getpid(), signal.SIGTERM)
    return rate(step)


def _one_of_two(folder: Path, store: TokenStore, rank: int) -> None:
    """A process; the second one has a bad step, then no memory for one, and then is to stop."""
    for late in (False, True):
        plan = plan_for(store)
        (phase,) = plan.phases
        mine = replace(phase, slicing=replace(phase.slicing, rank=rank, world=2))
        plan = replace(plan, phases=(mine,), guard=Guard("skip"), elastic=True)
        if rank == 1:
            plan = replace(plan, learning_rate=partial(_signalled, plan.learning_rate))
            large = source(plan)[15][0].inputs["input_ids"]
            plan = wrong(plan, (12,), math.nan)
            (bad,) = plan.phases
            plan = replace(plan, phases=(replace(bad, step=Big(bad.step, large)),))

        made = engine(tiny_network("clm", dropout=0.1), late=late)
        made = replace(made, network=made.accelerator.prepare(made.network))
        assert (made.hosts is not None) == late
        assert summed_facts(made, [rank + 1, 2**40]) == [3, 2**41]
        run = folder / str(late)
        run.mkdir(exist_ok=True)
        with Journal(run, title="t", total_steps=25, trackers=(), quiet=rank > 0) as journal:
            checkpoints = Checkpoints(run / "checkpoints", 3)
            with suppress(Preempted):
                train(made, plan, checkpoints, journal, nothing)
        found = {name: value.numpy() for name, value in weights(made).items()}
        np.savez(run / f"weights-{rank}.npz", **found)


def test_processes_that_read_late_are_those_that_read_at_once(
    store: TokenStore, tmp_path: Path
) -> None:
    """One process is wrong, out of memory, asked to stop: both learn of it in the same step."""
    in_two_processes(partial(_one_of_two, tmp_path, store), tmp_path)
    late, at_once = outcome(tmp_path / "True"), outcome(tmp_path / "False")
    assert late == at_once
    assert set(late["checkpoints"]) == {"step-000007", "step-000014", "step-000019"}
    assert [name for name in events(tmp_path / "True") if name != "saved"] == [
        "started", "skipped", "smaller",
    ]  # fmt: skip
    reference = np.load(tmp_path / "False" / "weights-0.npz")
    for rank in (0, 1):
        got = np.load(tmp_path / "True" / f"weights-{rank}.npz")
        assert all(np.array_equal(got[name], value) for name, value in reference.items())


def test_an_optimizer_is_armed_only_where_its_kernel_has_the_flag() -> None:
    network = tiny_network("clm")
    armed = engine(network, late=True)
    assert armed.halted is armed.trained().optimizer.found_inf
    assert armed.hosts is None  # one process
    plain = replace(armed, optimizer=torch.optim.AdamW(network.parameters(), fused=False))
    assert unwaiting(plain).halted is None
