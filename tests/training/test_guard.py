"""Steps that go wrong: what is saved, left out or passed over, and that a resume decides alike."""

import json
import math
import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from plmctl.corpus.store import TokenStore
from plmctl.errors import PlmError, Preempted
from plmctl.shaping.keys import fold
from plmctl.training.data import StepBatches
from plmctl.training.engine import Engine
from plmctl.training.journal import Progress, Update
from plmctl.training.loop import Guard, Plan
from plmctl.training.stop import StopAsked, StopRequest
from tests.training.conftest import Train, tiny_engine, tiny_network, tiny_plan, weights
from tests.training.test_loop import metrics

EXACT = ("step", "phase", "tokens", "loss", "lr", "grad_norm", "padding", "epoch")


@dataclass(frozen=True)
class Poisoned:
    """An objective in which one batch has a loss that is ``times`` what it should be."""

    step: object
    batch: torch.Tensor
    times: float

    def __getattr__(self, name: str) -> object:
        return getattr(self.step, name)

    def __len__(self) -> int:
        return len(self.step)

    def loss(self, network: object, batch: object) -> dict[str, torch.Tensor]:
        found = batch.inputs["input_ids"]
        bad = found.shape == self.batch.shape and torch.equal(found, self.batch)
        factor = self.times if bad else 1.0
        return {part: value * factor for part, value in self.step.loss(network, batch).items()}


def poisoned(store: TokenStore, at: int, times: float, guard: Guard, steps: int = 24) -> Plan:
    """A plan whose step ``at``, from 0, goes wrong."""
    plan = tiny_plan("clm", store, steps=(steps,), batch=4, micro=4, lr=1e-3, save_every=5)
    (phase,) = plan.phases
    (batch,) = source(plan)[at]
    bad = replace(phase, step=Poisoned(phase.step, batch.inputs["input_ids"], times))
    return replace(plan, phases=(bad,), guard=guard)


def source(plan: Plan) -> StepBatches:
    return StepBatches(plan.phases[0].step, plan.phases[0].slicing, int(fold(plan.seed, 0)))


def engine() -> Engine:
    return tiny_engine(tiny_network("clm", dropout=0.1), lr=1e-3)


def events(folder: Path) -> list[str]:
    lines = (folder / "events").read_text().splitlines()
    return [json.loads(line)["event"] for line in lines]


def exact(folder: Path) -> list[dict]:
    return [{key: line[key] for key in EXACT} for line in metrics(folder)]


def test_a_loss_that_is_not_finite_leaves_the_state_before_it_and_its_examples(
    store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    plan = poisoned(store, 7, math.nan, Guard())
    first = engine()
    with pytest.raises(PlmError, match="(?s)step 8: the loss is not finite.*--batch 8"):
        run_plan(first, plan, tmp_path / "a")
    assert all(value.isfinite().all() for value in weights(first).values())
    assert (tmp_path / "a" / "checkpoints" / "step-000007").is_dir()
    noted = json.loads((tmp_path / "a" / "divergence" / "step-000008.json").read_text())
    assert [noted["epochs"], noted["samples"]] == source(plan).examples(7).tolist()
    assert noted["loss"] is None
    assert events(tmp_path / "a")[-2:] == ["diverged", "saved"]
    assert [line["step"] for line in metrics(tmp_path / "a")] == list(range(1, 8))

    # The same command with divergence.nonfinite=skip: what a run with it from the start does.
    skipping = replace(plan, guard=Guard(nonfinite="skip"))
    second, whole = engine(), engine()
    run_plan(second, skipping, tmp_path / "a")
    run_plan(whole, skipping, tmp_path / "b")
    assert exact(tmp_path / "a") == exact(tmp_path / "b")
    assert metrics(tmp_path / "b")[7]["loss"] is None
    assert events(tmp_path / "b").count("skipped") == 1
    reference = weights(whole)
    for name, value in weights(second).items():
        assert torch.equal(value, reference[name]), name


def test_a_step_that_is_left_out_changes_no_weight(
    store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    guard = Guard(spike=3.0, on_spike="skip")
    short = poisoned(store, 20, 50.0, guard, steps=20)
    long = replace(poisoned(store, 20, 50.0, guard, steps=21))
    before, after = engine(), engine()
    run_plan(before, short, tmp_path / "short")
    run_plan(after, long, tmp_path / "long")
    reference = weights(before)
    for name, value in weights(after).items():
        assert torch.equal(value, reference[name]), name
    assert metrics(tmp_path / "long")[20]["loss"] > 100


def test_a_rollback_passes_over_the_data_and_survives_a_stop(
    store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    plan = poisoned(store, 21, 50.0, Guard(spike=3.0))
    whole = engine()
    progress = run_plan(whole, plan, tmp_path / "whole")
    assert progress.rollbacks == 1
    assert progress.shift == 2 * 4  # steps 20 and 21, of four examples
    assert events(tmp_path / "whole").count("rolled_back") == 1
    assert [line["step"] for line in metrics(tmp_path / "whole")] == list(range(1, 25))
    assert max(line["loss"] for line in metrics(tmp_path / "whole")) < 10

    for until in (21, 23):  # before the spike, off the rhythm of the checkpoints; and after it
        cut, folder = engine(), tmp_path / f"cut-{until}"
        with pytest.raises(Preempted):
            run_plan(cut, replace(plan, until=until), folder)
        again = engine()
        run_plan(again, plan, folder)
        assert exact(folder) == exact(tmp_path / "whole")
        reference = weights(whole)
        for name, value in weights(again).items():
            assert torch.equal(value, reference[name]), name


def test_data_after_a_rollback_is_that_of_the_steps_after_the_spike(store: TokenStore) -> None:
    plan = tiny_plan("clm", store, steps=(24,), batch=4)
    plain, phase = source(plan), plan.phases[0]
    shifted = StepBatches(phase.step, phase.slicing, int(fold(plan.seed, 0)), shift=8)
    for step in (0, 5, 20):
        assert np.array_equal(shifted.examples(step), plain.examples(step + 2))


@pytest.mark.parametrize(
    ("loss", "norm", "guard", "verdict"),
    [
        (1.0, 1.0, Guard(), "good"),
        (math.inf, 1.0, Guard(), "stop"),
        (1.0, math.nan, Guard(), "stop"),
        (1.0, math.nan, Guard(nonfinite="skip"), "skip"),
        (1.9, 1.0, Guard(spike=2.0), "good"),
        (2.1, 1.0, Guard(spike=2.0), "rollback"),
        (2.1, 1.0, Guard(spike=2.0, on_spike="stop"), "stop"),
        (2.1, 1.0, Guard(spike=2.0, patience=0), "stop"),
    ],
)
def test_verdicts(loss: float, norm: float, guard: Guard, verdict: str) -> None:
    done = Update({"lm": loss}, norm, 1, 1, False, loss)
    calm = Progress(recent=(1.0,) * 16)
    assert guard.verdict(done, calm, scaled=False)[0] == verdict
    if math.isfinite(loss):  # before there are losses enough, nothing is a spike
        expected = verdict if not math.isfinite(norm) else "good"
        assert guard.verdict(done, Progress(recent=(1.0,) * 15), scaled=False)[0] == expected
    if math.isnan(norm):
        assert guard.verdict(done, calm, scaled=True)[0] == "good"


def test_a_stop_during_validation_is_made_up_for(
    store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """One save, no validation line; after the resume it is there, once."""
    plan = replace(tiny_plan("clm", store, steps=(6,)), validate_every=2)
    signals = iter([False, True])

    def validate(*, stop: StopRequest | None = None) -> dict[str, float]:
        if next(signals, False):
            os.kill(os.getpid(), signal.SIGUSR1)
        assert stop is not None
        if stop.received:
            raise StopAsked
        return {"valid/loss": 1.0}

    with pytest.raises(Preempted, match="after step 4 of 6"):
        run_plan(engine(), plan, tmp_path, validate)
    assert events(tmp_path) == ["started", "saved"]
    run_plan(engine(), plan, tmp_path, validate)
    lines = metrics(tmp_path)
    assert [line["step"] for line in lines if "valid/loss" in line] == [2, 4, 6]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4, 5, 6]


def test_scoring_stops_between_batches(store: TokenStore) -> None:
    from plmctl.evaluation.scoring import score

    made, plan = engine(), tiny_plan("clm", store)
    asked, seen = StopRequest(), []

    def batches():
        for index in range(4):
            seen.append(index)
            yield from source(plan)[index]
            if index == 1:
                asked.received = signal.SIGTERM

    with pytest.raises(StopAsked):
        score(made.accelerator, made.network, plan.phases[0].step, batches(), asked)
    assert seen == [0, 1, 2]
