"""Checkpoints: complete or absent, saved at once or in the background."""

import json
import os
import resource
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Thread

import pytest
import torch
from torch import nn

from plmctl.commands.verify_resume import start_child
from plmctl.corpus.store import TokenStore
from plmctl.errors import PlmError, Preempted
from plmctl.models.network import RecurrentState
from plmctl.training.checkpoint import (
    Checkpoints,
    Retention,
    Saver,
    Snapshot,
    Trained,
    restore,
    snapshot,
)
from plmctl.training.engine import Engine
from plmctl.training.journal import Journal, LogMark
from plmctl.training.plan import Guard, Plan
from tests.builders import cpu_engine, stopping_at
from tests.training.conftest import (
    Train,
    contents,
    events,
    exact,
    limited,
    metrics,
    tiny_network,
    tiny_plan,
    trained,
)
from tests.training.test_loop import dropping, poisoned

# --- The folders of checkpoints ---


def test_what_is_saved_comes_back_bit_for_bit(tmp_path: Path) -> None:
    before, after = trained(1), trained(2)
    folder = Checkpoints(tmp_path, 3).save(7, before, {"tokens": 123})
    assert restore(folder, after) == {"step": 7, "tokens": 123}
    for a, b in zip(before.network.parameters(), after.network.parameters(), strict=True):
        assert torch.equal(a, b)
        for field in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(before.optimizer.state[a][field], after.optimizer.state[b][field])


def test_a_group_can_read_a_checkpoint(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        folder = Checkpoints(tmp_path, 2).save(1, trained(1), {})
    finally:
        os.umask(mask)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 2)
    for step in (9, 10, 11, 100):
        checkpoints.save(step, trained(), {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000011", "step-000100"]


NO_MANIFEST = ["{", "{}", "[]", '{"model.safetensors": 3}', '{"metrics.jsonl": {"lines": 1}}']


@pytest.mark.parametrize("damage", ["bytes", "size", "missing", "unlisted", *NO_MANIFEST])
def test_a_damaged_checkpoint_is_passed_over_and_kept(tmp_path: Path, damage: str) -> None:
    checkpoints = Checkpoints(tmp_path, 3)
    good = checkpoints.save(1, trained(), {})
    bad = checkpoints.save(2, trained(), {})
    weights = bad / "model.safetensors"
    if damage == "bytes":
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
    elif damage == "size":
        os.truncate(weights, 10)
    elif damage == "missing":
        weights.unlink()
    elif damage == "unlisted":  # a file that no hash is known of would be believed
        (bad / "carried.safetensors").write_bytes(weights.read_bytes())
    else:
        (bad / "manifest.json").write_text(damage)
    newest, faults = checkpoints.newest()
    assert newest == good
    assert len(faults) == 1
    assert "step-000002" in faults[0]
    assert bad.is_dir()
    (tmp_path / "step-notes").mkdir()  # somebody's own
    assert checkpoints.newest()[0] == good


def test_a_half_written_one_is_not_seen(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 3)
    checkpoints.save(1, trained(), {})
    (tmp_path / ".step-000002.writing").mkdir()
    assert checkpoints.newest()[0] == tmp_path / "step-000001"
    assert checkpoints.save(2, trained(), {}).is_dir()


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    folder = Checkpoints(tmp_path, 3).save(1, trained(), {})
    network = nn.Sequential(nn.Linear(4, 8))
    other = Trained(network, torch.optim.AdamW(network.parameters()))
    with pytest.raises(PlmError, match="another network"):
        restore(folder, other)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """/dev/full refuses every write, as a full disk does."""
    checkpoints = Checkpoints(tmp_path, 1)
    good = checkpoints.save(1, trained(), {})
    writing = tmp_path / ".step-000002.writing"
    target = writing / "state.json"
    original = Path.mkdir

    def with_full_disk(self: Path, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        if self == writing:
            target.symlink_to("/dev/full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "mkdir", with_full_disk)
        with pytest.raises(PlmError, match="No space left on device"):
            checkpoints.save(2, trained(), {})
    assert not writing.exists()
    assert checkpoints.newest() == (good, [])


def test_no_pickle_in_a_checkpoint(tmp_path: Path) -> None:
    folder = Checkpoints(tmp_path, 1).save(1, trained(), {"tokens": 5})
    assert {p.suffix for p in folder.iterdir()} == {".safetensors", ".json"}
    assert json.loads((folder / "state.json").read_text()) == {"step": 1, "tokens": 5}


# --- Saving in the background: the same files as saving at once, and the same faults ---


def journal_of(folder: Path) -> Journal:
    return Journal(folder, title="test", total_steps=9, trackers=(), quiet=False)


def step_on(state: Trained) -> None:
    """Another update, in place, and other rows."""
    state.network(torch.randn(5, 4)).sum().backward()
    state.optimizer.step()
    state.optimizer.zero_grad()
    assert state.recurrent_state.slots is not None
    state.recurrent_state.slots += 1


def test_a_copy_is_the_state_of_its_step_whatever_comes_after(tmp_path: Path) -> None:
    state = replace(trained(), recurrent_state=RecurrentState(torch.arange(6.0).view(3, 2)))
    telemetry = {"tokens": 3, "best": None}
    at_once = Checkpoints(tmp_path / "a", 3).save(4, state, telemetry)
    copied = snapshot(state, 4, telemetry, copy=True)
    step_on(state)
    later = Checkpoints(tmp_path / "b", 3).write(copied)
    assert {path.name for path in later.iterdir()} == {
        "carried.safetensors", "manifest.json", "model.safetensors", "optimizer.safetensors",
        "state.json",
    }  # fmt: skip
    for path in later.iterdir():
        assert path.read_bytes() == (at_once / path.name).read_bytes(), path.name
    other = Checkpoints(tmp_path / "c", 3).save(4, state, telemetry)
    for name in ("model", "optimizer", "carried"):
        path = f"{name}.safetensors"
        assert (other / path).read_bytes() != (at_once / path).read_bytes(), name


@pytest.mark.parametrize("objective", ["clm", "mlm+nsp"])
def test_every_checkpoint_is_the_one_saved_at_once(
    objective: str, store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """Saved after every step of a run with dropout, tied weights and two phases; and the log."""

    def run(name: str, *, async_save: bool) -> Path:
        plan = tiny_plan(objective, store, steps=(4, 4), save_every=1)
        plan = replace(plan, async_save=async_save, save_best=True)
        engine = cpu_engine(tiny_network(objective, dropout=0.1))
        run_plan(engine, plan, tmp_path / name)
        return tmp_path / name

    ours, theirs = run("behind", async_save=True), run("at-once", async_save=False)
    for step in (6, 7, 8):  # the three that are kept
        folder = f"checkpoints/step-{step:06d}"
        assert contents(ours / folder) == contents(theirs / folder)
    assert exact(ours) == exact(theirs)
    assert events(ours) == events(theirs) == ["started", *["saved"] * 8]
    assert sorted(p.name for p in (ours / "checkpoints").iterdir()) == [
        f"step-{step:06d}" for step in (6, 7, 8)
    ]


def test_the_best_checkpoint_is_of_the_last_phase(
    store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """Longer sequences have other losses: the lowest of the first phase is not the run's best."""
    losses = iter([1.0, 0.5, 3.0, 2.0, 2.5, 2.6, 2.7, 2.8])  # steps 1 and 2: the first phase
    plan = tiny_plan("clm", store, steps=(2, 6))
    plan = replace(plan, validate_every=1, save_best=True)
    engine = cpu_engine(tiny_network("clm"))
    done = run_plan(engine, plan, tmp_path, lambda step, stop=None: {"valid/loss": next(losses)})
    assert done.best == (2.0, 4)
    assert events(tmp_path) == ["started", *["saved"] * 5]  # steps 1, 2, 3, 4 and the last


class Gated(Checkpoints):
    """A disk that is slow for as long as a test wants."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Retention(5))
        self.gate, self.began = Event(), list[int]()

    def write(self, state: Snapshot, journal: LogMark | None = None) -> Path:
        self.began.append(state.state["step"])
        assert self.gate.wait(30)
        return super().write(state, journal)


def test_one_save_is_under_way_at_a_time(tmp_path: Path) -> None:
    checkpoints = Gated(tmp_path / "checkpoints")
    with Saver(checkpoints, journal_of(tmp_path), async_save=True) as saver:
        saver.save(1, trained(), {})
        saver.look()  # waits for nothing
        second = Thread(target=saver.save, args=(2, trained(), {}))
        second.start()
        second.join(0.2)
        assert second.is_alive()
        assert checkpoints.began == [1]
        checkpoints.gate.set()
        second.join()
    assert checkpoints.began == [1, 2]
    assert events(tmp_path) == ["saved", "saved"]


def test_a_second_ctrl_c_waits_for_no_save(tmp_path: Path) -> None:
    checkpoints = Gated(tmp_path / "checkpoints")
    saver = Saver(checkpoints, journal_of(tmp_path), async_save=True)

    def interrupted() -> None:
        with saver:
            saver.save(1, trained(), {})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert checkpoints.newest() == (None, [])
    checkpoints.gate.set()
    saver.wait()


def test_a_full_disk_is_told_by_the_next_call_and_loses_nothing(small_disk: Path) -> None:
    checkpoints = Checkpoints(small_disk / "checkpoints", 50)
    saver = Saver(checkpoints, journal_of(small_disk), async_save=True)
    message = ""
    for step in range(1, 50):
        try:
            saver.save(step, trained(), {"tokens": step})
        except PlmError as error:
            message = str(error)
            break
    assert "No space left on device" in message
    assert "free some space there, or write to another disk" in message
    assert f"step-{step - 1:06d}: cannot be written" in message
    newest, damaged = checkpoints.newest()
    assert newest is not None
    assert newest.name == f"step-{step - 2:06d}"
    assert not damaged
    assert not list((small_disk / "checkpoints").glob(".*"))
    saver.wait()  # it was told once


@pytest.mark.parametrize("async_save", [False, True])
def test_a_limit_on_files_stops_the_run_where_the_same_command_goes_on(
    async_save: bool, store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """From step 5 on the kernel lets no file grow over 20 kB."""
    plan = tiny_plan("clm", store, steps=(12,), save_every=2)
    plan = replace(plan, async_save=async_save)
    rate = plan.learning_rate

    def filling(step: int) -> float:
        if step == 5:
            while not (tmp_path / "a" / "checkpoints" / "step-000004").is_dir():
                time.sleep(0.001)  # it may still be under way
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
        return rate(step)

    full = replace(plan, learning_rate=filling)
    with (
        limited(resource.RLIMIT_FSIZE, resource.RLIM_INFINITY),
        pytest.raises(PlmError, match="step-000006: cannot be written: .*large"),
    ):
        run_plan(dropping(), full, tmp_path / "a")
    assert sorted(p.name for p in (tmp_path / "a" / "checkpoints").iterdir()) == [
        "step-000002", "step-000004",
    ]  # fmt: skip
    assert 6 <= metrics(tmp_path / "a")[-1]["step"] < 9  # at the next save at the latest
    run_plan(dropping(), plan, tmp_path / "a")
    run_plan(dropping(), plan, tmp_path / "b")
    assert exact(tmp_path / "a") == exact(tmp_path / "b")


def test_a_stop_waits_for_its_save(store: TokenStore, tmp_path: Path, run_plan: Train) -> None:
    plan = stopping_at(6, tiny_plan("clm", store, steps=(200,), save_every=2))
    stopped = replace(plan, async_save=True)
    with pytest.raises(Preempted, match=r"after step [78] of 200, checkpoint saved"):
        run_plan(dropping(), stopped, tmp_path)
    last = metrics(tmp_path)[-1]["step"]
    assert Checkpoints(tmp_path / "checkpoints", 3).newest() == (
        tmp_path / "checkpoints" / f"step-{last:06d}",
        [],
    )


@pytest.mark.parametrize("async_save", [False, True])
def test_ctrl_c_saves_once_and_twice_stops(
    async_save: bool, store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """Both in a step; what an earlier step has saved is there, and the run goes on from it."""
    plan = replace(tiny_plan("clm", store, steps=(12,), save_every=5), async_save=async_save)
    rate = plan.learning_rate

    def pressing(times: int) -> Plan:
        def pressed(step: int) -> float:
            for _ in range(times if step == 7 else 0):
                signal.raise_signal(signal.SIGINT)
            return rate(step)

        return replace(plan, learning_rate=pressed)

    with pytest.raises(KeyboardInterrupt):
        run_plan(dropping(), pressing(2), tmp_path / "a")
    assert {path.name for path in (tmp_path / "a" / "checkpoints").glob("step-*")} <= {
        "step-000005"
    }
    with pytest.raises(Preempted, match="after step 8 of 12, checkpoint saved"):
        run_plan(dropping(), pressing(1), tmp_path / "a")
    run_plan(dropping(), plan, tmp_path / "a")
    run_plan(dropping(), plan, tmp_path / "b")
    assert exact(tmp_path / "a") == exact(tmp_path / "b")


def test_a_checkpoint_half_deleted_is_no_damaged_one(tmp_path: Path) -> None:
    """What a kill leaves of a checkpoint that was not to be kept goes with the next save."""
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.save(1, trained(), {})
    half = tmp_path / ".step-000000.dropped"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    assert checkpoints.newest() == (tmp_path / "step-000001", [])
    checkpoints.save(2, trained(), {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-000002"]


def test_a_rollback_waits_for_the_save_that_it_goes_back_to(
    store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """The spike comes in the step after a save."""

    def run(name: str, *, async_save: bool) -> Engine:
        plan: Plan = poisoned(store, 20, 50.0, Guard(spike=3.0, on_spike="rollback"))
        engine = dropping()
        run_plan(engine, replace(plan, async_save=async_save), tmp_path / name)
        return engine

    run("behind", async_save=True)
    run("at-once", async_save=False)
    assert exact(tmp_path / "behind") == exact(tmp_path / "at-once")
    assert events(tmp_path / "behind").count("rolled_back") == 1


def _save_on_and_on(run: Path) -> None:
    network = nn.Sequential(*(nn.Linear(1000, 1000) for _ in range(5)))
    optimizer = torch.optim.AdamW(network.parameters())
    saver = Saver(Checkpoints(run / "checkpoints", 1), journal_of(run), async_save=True)
    for step in range(1, 1000):
        for parameter in network.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        saver.save(step, Trained(network, optimizer), {"tokens": step})


def test_a_kill_during_a_background_save_leaves_the_one_before_it(tmp_path: Path) -> None:
    """60 MB, and SIGKILL in the middle of the third or a later one.

    The process is stopped first, and goes on where the save was over by then: so that it does not
    matter how fast either process is.
    """
    folder = tmp_path / "checkpoints"
    child = start_child(partial(_save_on_and_on, tmp_path), tmp_path / "log")
    number = 0
    while number < 3:
        assert not child.ended(), (tmp_path / "log").read_text()
        time.sleep(0.001)
        if list(folder.glob(".step-*.writing/model.safetensors")):
            os.kill(child.pid, signal.SIGSTOP)
            os.waitpid(child.pid, os.WUNTRACED)
            number = max((int(p.name[6:12]) for p in folder.glob(".step-*.writing")), default=0)
            if number < 3:
                os.kill(child.pid, signal.SIGCONT)
    child.kill()
    assert not (folder / f"step-{number:06d}").exists()
    checkpoints = Checkpoints(folder, 1)
    assert checkpoints.newest() == (folder / f"step-{number - 1:06d}", [])
    checkpoints.save(number + 1, trained(), {})
    assert [path.name for path in folder.iterdir()] == [
        f"step-{number + 1:06d}"
    ]  # and the rest is gone
