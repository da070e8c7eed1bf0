"""Losses that are read late: the same run, to the last byte, as with every step read at once."""

import json
import math
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from plmctl.corpus.store import TokenStore
from plmctl.errors import PlmError, Preempted
from plmctl.modeling.network import Network
from plmctl.optimizers._updates import decay_groups
from plmctl.training import loop
from plmctl.training.engine import Engine, unwaiting
from plmctl.training.loop import Guard, Plan
from tests.training.conftest import Train, nothing, tiny_engine, tiny_network, tiny_plan, weights
from tests.training.test_guard import Poisoned, events, source
from tests.training.test_saving import contents
from tests.training.test_streams import network as bilm
from tests.training.test_streams import plan_of

LOGS, SAVES, VALIDATES = 10, 7, 8


def engine(network: Network, *, late: bool) -> Engine:
    """With the kernel that a GPU has as well, and that can leave out an update by itself."""
    made = tiny_engine(network)
    groups = decay_groups(network, 0.01)
    fused = made.accelerator.prepare(torch.optim.AdamW(groups, lr=1e-3, fused=True))
    made = replace(made, optimizer=fused)
    return unwaiting(made) if late else made


def plan_for(store: TokenStore, *, steps: tuple[int, ...] = (25,), objective: str = "clm") -> Plan:
    plan = tiny_plan(objective, store, steps=steps, batch=4, micro=4, save_every=SAVES)
    rising = replace(plan, learning_rate=lambda step: 1e-4 * (step + 1))
    return replace(rising, log_every=LOGS, validate_every=VALIDATES)


def logged(folder: Path) -> list[dict[str, Any]]:
    timed = ("tokens_per_second", "samples_per_second", "data_wait", "memory_gb", "time")
    path = folder / "metrics.jsonl"
    lines = map(json.loads, path.read_text().splitlines() if path.exists() else ())
    return [{key: value for key, value in line.items() if key not in timed} for line in lines]


def outcome(folder: Path) -> dict[str, Any]:
    """All that a run has left, less the times."""
    lines = [json.loads(line) for line in (folder / "events").read_text().splitlines()]
    return {
        "metrics": logged(folder),
        "events": [line | {"time": None} for line in lines],
        "divergence": {p.name: p.read_bytes() for p in sorted(folder.glob("divergence/*"))},
        "checkpoints": {p.name: contents(p) for p in sorted(folder.glob("checkpoints/*"))},
    }


def scores(engine: Engine) -> Callable[..., dict[str, float]]:
    """Of the weights: a validation that finds others tells."""

    def validate(*, stop: object = None) -> dict[str, float]:
        return {"valid/loss": sum(float(p.sum()) for p in weights(engine).values())}

    return validate


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps after which the loop has read."""
    seen: list[int] = []
    real = loop.read

    def noting(run: Any, unread: Any, batches: Any) -> Any:
        seen.append(unread[-1].before.step + 1)
        return real(run, unread, batches)

    monkeypatch.setattr(loop, "read", noting)
    return seen


@pytest.mark.parametrize("objective", ["clm", "mlm+nsp"])
def test_a_run_that_reads_late_is_the_run_that_reads_at_once(
    objective: str, store: TokenStore, tmp_path: Path, run_plan: Train, readings: list[int]
) -> None:
    """Two phases, dropout, a rate that changes; logged, saved and validated at odd steps."""
    due = {s for s in range(1, 26) if not (s % LOGS and s % SAVES and s % VALIDATES)} | {25}
    for late, expected in ((False, set(range(1, 26))), (True, due)):
        readings.clear()
        made = engine(tiny_network(objective, dropout=0.1), late=late)
        plan = plan_for(store, steps=(12, 13), objective=objective)
        run_plan(made, plan, tmp_path / str(late), scores(made))
        assert readings == sorted(expected)
    assert outcome(tmp_path / "True") == outcome(tmp_path / "False")
    assert [line["step"] for line in logged(tmp_path / "True") if "loss" in line] == [10, 20, 25]


def wrong(plan: Plan, steps: tuple[int, ...], times: float) -> Plan:
    """The plan with steps, from 0, whose loss is ``times`` what it should be."""
    (phase,) = plan.phases
    step, made = phase.step, source(plan)
    for number in steps:
        step = Poisoned(step, made[number][0].inputs["input_ids"], times)
    return replace(plan, phases=(replace(phase, step=step),))


@pytest.mark.parametrize("nonfinite", ["stop", "skip"])
@pytest.mark.parametrize("times", [math.nan, 1e35])  # 1e35: the loss is finite, its gradient not
@pytest.mark.parametrize("bad", [(0,), (6,), (9,), (12,), (11, 12), (12, 13, 14)])
def test_a_step_that_is_not_finite_leaves_what_it_leaves_where_it_is_read_at_once(
    bad: tuple[int, ...], times: float, nonfinite: Any, store: TokenStore, tmp_path: Path,
    run_plan: Train,
) -> None:  # fmt: skip
    """The first step, one that is saved, one that is logged, one that nobody reads; several."""
    plan = wrong(plan_for(store, steps=(17,)), bad, times)
    plan = replace(plan, guard=Guard(nonfinite, patience=2))
    ends = nonfinite == "skip" and len(bad) <= 2
    made = {}
    for late in (False, True):
        made[late] = engine(tiny_network("clm", dropout=0.1), late=late)
        if ends:
            run_plan(made[late], plan, tmp_path / str(late), scores(made[late]))
        else:
            number = (bad[0] if nonfinite == "stop" else bad[2]) + 1
            with pytest.raises(PlmError, match=f"step {number}: the (loss|gradient) is not finite"):
                run_plan(made[late], plan, tmp_path / str(late), scores(made[late]))
    found = outcome(tmp_path / "True")
    assert found == outcome(tmp_path / "False")
    assert len(found["divergence"]) == (1 if nonfinite == "stop" else len(bad))
    assert any(
        "loss" in file["reason"] for file in map(json.loads, found["divergence"].values())
    ) == math.isnan(times)
    at_once = weights(made[False])
    for name, value in weights(made[True]).items():
        assert torch.equal(value, at_once[name]), name


def test_the_optimizer_leaves_out_what_follows_until_the_host_has_looked(
    store: TokenStore, tmp_path: Path, run_plan: Train, readings: list[int]
) -> None:
    """Between steps 8 and 10, which are read, nothing changes after a bad step 9 but the flag."""
    plan = wrong(plan_for(store, steps=(10,)), (8,), math.nan)
    plan = replace(plan, guard=Guard("skip"), validate_every=None, save_every=8)
    made = engine(tiny_network("clm"), late=True)
    assert made.halted is not None
    seen = {}
    rate = plan.learning_rate

    def looking(step: int) -> float:
        seen.setdefault(step, []).append((float(made.halted), weights(made)))
        return rate(step)

    run_plan(made, replace(plan, learning_rate=looking), tmp_path)
    assert readings == [8, 10, 10]  # the last once more, after the bad one was left out
    assert [flag for flag, _ in seen[9]] == [1.0, 0.0]
    ((_, before),) = seen[8]
    for _, after in seen[9]:
        assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert float(made.halted) == 0


@pytest.mark.parametrize("how", ["until", "signal"])
def test_an_interrupted_run_is_the_uninterrupted_one(
    how: str, store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """Stopped between two readings, with a bad step before the stop and one after it.

    A signal finds the host ahead: the bad step is noticed then, and the run ends a step later.
    """
    plan = replace(wrong(plan_for(store), (10, 18), math.nan), guard=Guard("skip"))
    rate = plan.learning_rate

    def stopping(step: int) -> float:
        if step == 12 and how == "signal":
            os.kill(os.getpid(), signal.SIGTERM)
        return rate(step)

    cut = replace(plan, learning_rate=stopping, until=13 if how == "until" else None)
    with pytest.raises(Preempted, match="after step 1[23] of 25, checkpoint saved"):
        run_plan(engine(tiny_network("clm", dropout=0.1), late=True), cut, tmp_path / "cut")
    again = engine(tiny_network("clm", seed=9, dropout=0.1), late=True)
    run_plan(again, plan, tmp_path / "cut")
    run_plan(engine(tiny_network("clm", dropout=0.1), late=False), plan, tmp_path / "whole")
    ours, theirs = outcome(tmp_path / "cut"), outcome(tmp_path / "whole")
    for kind in ("metrics", "divergence"):
        assert ours[kind] == theirs[kind]
    last = "step-000025"
    assert ours["checkpoints"][last] == theirs["checkpoints"][last]
    assert events(tmp_path / "cut").count("skipped") == 2


@dataclass(frozen=True)
class BadWindow:
    """Streams of which one window has no loss."""

    step: Any
    window: int
    streamed: bool = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.step, name)

    def __len__(self) -> int:
        return len(self.step)

    def loss(self, network: Network, batch: Any) -> dict[str, torch.Tensor]:
        factor = math.nan if batch.rows.window == self.window else 1.0
        return {part: value * factor for part, value in self.step.loss(network, batch).items()}


@pytest.mark.parametrize("window", [0, 4])
def test_rows_that_go_on_go_on_from_before_a_step_that_was_left_out(
    window: int, store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    plan = plan_of(store, steps=(8,), micro=3)
    bad = replace(plan.phases[0], step=BadWindow(plan.phases[0].step, window))
    plan = replace(plan, phases=(bad,), log_every=7, guard=Guard("skip"))
    for late in (False, True):
        run_plan(engine(bilm(dropout=0.1), late=late), plan, tmp_path / str(late))
    assert outcome(tmp_path / "True") == outcome(tmp_path / "False")
    assert events(tmp_path / "True").count("skipped") == 1


@dataclass(frozen=True)
class Big:
    """A step of which one micro-batch of four examples does not fit in memory."""

    step: Any
    batch: torch.Tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.step, name)

    def __len__(self) -> int:
        return len(self.step)

    def loss(self, network: Network, batch: Any) -> dict[str, torch.Tensor]:
        if torch.equal(batch.inputs["input_ids"], self.batch):
            return {"lm": torch.empty(2**60)}  # the allocator itself refuses
        return self.step.loss(network, batch)


@pytest.mark.parametrize("bad", [(), (11,)])
def test_out_of_memory_after_steps_that_nobody_has_read(
    bad: tuple[int, ...], store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """Those are read first; with a bad one among them that comes first, as it would at once."""
    plan = plan_for(store, steps=(17,))
    large = source(plan)[12][0].inputs["input_ids"]
    plan = replace(wrong(plan, bad, math.nan), elastic=True, guard=Guard("skip"))
    plan = replace(plan, phases=(replace(plan.phases[0], step=Big(plan.phases[0].step, large)),))
    for late in (False, True):
        run_plan(engine(tiny_network("clm"), late=late), plan, tmp_path / str(late))
    assert outcome(tmp_path / "True") == outcome(tmp_path / "False")
    expected = [*["skipped"] * len(bad), "smaller"]
    assert [name for name in events(tmp_path / "True") if name in expected] == expected


def test_what_needs_every_loss_reads_every_step(
    store: TokenStore, tmp_path: Path, run_plan: Train, readings: list[int]
) -> None:
    """A guard against spikes, and an optimizer whose kernel cannot leave out an update."""
    plan = plan_for(store, steps=(6,))
    run_plan(engine(tiny_network("clm"), late=True), plan, tmp_path / "late")
    assert readings == [6]
    readings.clear()
    spikes = replace(plan, guard=Guard(spike=3.0))
    run_plan(engine(tiny_network("clm"), late=True), spikes, tmp_path / "spikes")
    plain = unwaiting(tiny_engine(tiny_network("clm")))
    assert plain.halted is None
    run_plan(plain, plan, tmp_path / "plain")
    assert readings == [*range(1, 7), *range(1, 7)]


def test_no_more_than_a_few_steps_stay_unread(
    store: TokenStore, tmp_path: Path, run_plan: Train, readings: list[int]
) -> None:
    plan = replace(plan_for(store, steps=(70,)), log_every=1000, save_every=1000)
    plan = replace(plan, validate_every=None)
    run_plan(engine(tiny_network("clm"), late=True), plan, tmp_path, nothing)
    assert readings == [32, 64, 70]
