"""Real faults of disks, memory and processes: nothing is lost, and the message says what to do."""

import faulthandler
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from plmctl.corpus.store import TokenStore
from plmctl.errors import DataError, PlmError
from plmctl.models.batch import Batch
from plmctl.run.launch import descendants
from plmctl.training.checkpoint import Checkpoints, Retention, restore
from plmctl.training.data import StepBatches, training_batches
from plmctl.training.plan import Slicing
from tests.builders import cpu_engine, json_lines
from tests.processes import within
from tests.training.conftest import (
    Train,
    limited,
    metrics,
    tiny_network,
    tiny_plan,
    trained,
)


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in folder.glob("step-*"))


def test_a_full_disk_loses_nothing_and_is_told(small_disk: Path) -> None:
    checkpoints = Checkpoints(small_disk, 5)
    saved, message = 0, ""
    for step in range(1, 50):
        try:
            checkpoints.save(step, trained(), {"tokens": step})
        except PlmError as error:
            saved, message = step - 1, str(error)
            break
        (small_disk / f"ballast-{step}").write_bytes(b"x" * 4096)
    assert saved >= 1
    assert "No space left on device" in message
    assert "free some space there" in message
    newest, damaged = checkpoints.newest()
    assert newest == small_disk / f"step-{saved:06d}"
    assert not damaged
    assert restore(newest, trained(5))["tokens"] == saved
    assert not list(small_disk.glob(".*"))  # the half-written one takes no room
    for ballast in small_disk.glob("ballast-*"):
        ballast.unlink()
    checkpoints.save(saved + 1, trained(), {})


def test_a_limit_on_files_loses_nothing_and_is_told(tmp_path: Path) -> None:
    """The kernel refuses to let a file grow: what a quota does."""
    checkpoints = Checkpoints(tmp_path, 5)
    good = checkpoints.save(1, trained(), {})
    with (
        limited(resource.RLIMIT_FSIZE, 300),
        pytest.raises(PlmError, match="step-000002: cannot be written: .*large"),
    ):
        checkpoints.save(2, trained(), {})
    assert checkpoints.newest() == (good, [])
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]


def test_which_checkpoints_stay(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, Retention(2, every=10, best=True))
    for step in range(1, 27):
        checkpoints.save(step, trained(), {"best": (0.5, min(step, 13))})
    assert steps(tmp_path) == [10, 13, 20, 25, 26]
    fresh = Checkpoints(tmp_path, Retention(1))
    fresh.save(27, trained(), {"best": None})
    assert steps(tmp_path) == [27]


def test_a_damaged_checkpoint_is_never_deleted_nor_counted(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.save(5, trained(), {})
    bad = Checkpoints(tmp_path, 3).save(9, trained(), {})
    os.truncate(bad / "optimizer.safetensors", 50)
    after = Checkpoints(tmp_path, 1)
    assert after.newest()[0] == tmp_path / "step-000005"
    after.save(7, trained(), {})  # older than the damaged one, and the one to go on from
    assert steps(tmp_path) == [7, 9]
    assert after.newest()[0] == tmp_path / "step-000007"
    after.save(9, trained(), {})
    after.save(10, trained(), {})
    assert steps(tmp_path) == [10]
    assert (tmp_path / ".step-000009.damaged-1" / "optimizer.safetensors").stat().st_size == 50


@pytest.mark.parametrize("offset", [0, 9, -1])
def test_a_flipped_bit_is_found(tmp_path: Path, offset: int) -> None:
    checkpoints = Checkpoints(tmp_path, 3)
    good = checkpoints.save(1, trained(), {})
    for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
        bad = checkpoints.save(2, trained(), {})
        content = bytearray((bad / name).read_bytes())
        content[offset] ^= 4
        (bad / name).write_bytes(content)
        newest, damaged = checkpoints.newest()
        assert newest == good
        assert damaged == [f"{bad}: {name} has other bytes than were written"]


def test_the_best_by_validation_stays(store: TokenStore, tmp_path: Path, run_plan: Train) -> None:
    plan = tiny_plan("clm", store, steps=(8,))
    plan = replace(plan, validate_every=1, save_best=True, save_every=100)
    losses = iter([5.0, 4.0, 3.0, 3.5, 2.0, 2.5, float("nan"), 2.2])
    progress = run_plan(
        cpu_engine(tiny_network("clm")),
        plan,
        tmp_path,
        lambda _, *, stop=None: {"valid/loss": next(losses)},
    )
    assert progress.best == (2.0, 5)
    saved = json_lines(tmp_path / "events")
    assert [event["step"] for event in saved if event["event"] == "saved"] == [1, 2, 3, 5, 8]


@pytest.mark.parametrize("torn", ["", '{"step": 5, "lo', "nonsense\n", "\x00\x00"])
def test_the_log_goes_on_without_gap_or_repetition(
    torn: str, store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """Lines after the last checkpoint, and what a killed process left of a line, are gone."""
    plan = tiny_plan("clm", store, steps=(8,), save_every=3)
    with pytest.raises(PlmError, match="after step 5 of 8"):
        run_plan(cpu_engine(tiny_network("clm")), replace(plan, until=5), tmp_path)
    (tmp_path / "checkpoints" / "step-000005" / "model.safetensors").unlink()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(torn)
    run_plan(cpu_engine(tiny_network("clm")), plan, tmp_path)
    assert [line["step"] for line in metrics(tmp_path)] == list(range(1, 9))


@pytest.mark.parametrize("async_save", [False, True])
def test_a_log_that_lost_lines_is_told_and_nothing_is_touched(
    async_save: bool, store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    plan = replace(tiny_plan("clm", store, steps=(8,), save_every=3), async_save=async_save)
    with pytest.raises(PlmError, match="after step 5 of 8"):
        run_plan(cpu_engine(tiny_network("clm")), replace(plan, until=5), tmp_path)
    log = tmp_path / "metrics.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="up to step 5 are missing or changed: .* 5 lines"):
        run_plan(cpu_engine(tiny_network("clm")), plan, tmp_path)
    assert log.read_bytes() == whole[: len(whole) // 2]
    log.write_bytes(whole)
    run_plan(cpu_engine(tiny_network("clm")), plan, tmp_path)
    assert [line["step"] for line in metrics(tmp_path)] == list(range(1, 9))


def test_a_checkpoint_of_an_older_version_continues_with_a_notice(
    store: TokenStore, tmp_path: Path, run_plan: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tiny_plan("clm", store, steps=(8,))
    with pytest.raises(PlmError, match="after step 5 of 8"):
        run_plan(cpu_engine(tiny_network("clm")), replace(plan, until=5), tmp_path)
    manifest = tmp_path / "checkpoints" / "step-000005" / "manifest.json"
    entries = json.loads(manifest.read_text())
    del entries["metrics.jsonl"]
    manifest.write_text(json.dumps(entries))
    run_plan(cpu_engine(tiny_network("clm")), plan, tmp_path)
    assert capsys.readouterr().err.count("from an older version") == 1
    assert [line["step"] for line in metrics(tmp_path)] == list(range(1, 9))


@pytest.mark.parametrize("async_save", [False, True])
def test_a_last_validation_that_fails_costs_no_step(
    async_save: bool, store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    plan = replace(tiny_plan("clm", store, steps=(6,)), async_save=async_save)

    def failing(_: int, *, stop: object = None) -> dict[str, float]:
        raise DataError("this text cannot be scored")

    def fine(_: int, *, stop: object = None) -> dict[str, float]:
        return {"valid/loss": 2.0}

    with pytest.raises(DataError, match="cannot be scored"):
        run_plan(cpu_engine(tiny_network("clm")), plan, tmp_path / "a", failing)
    assert steps(tmp_path / "a" / "checkpoints") == [6]
    for name in ("a", "b"):
        run_plan(cpu_engine(tiny_network("clm")), plan, tmp_path / name, fine)
    log_a, log_b = (metrics(tmp_path / name) for name in ("a", "b"))
    assert [line["step"] for line in log_a] == [1, 2, 3, 4, 5, 6, 6]
    assert [line.get("loss") for line in log_a] == [line.get("loss") for line in log_b]
    run_plan(cpu_engine(tiny_network("clm")), plan, tmp_path / "a", fine)  # nothing is left to do
    assert [line["step"] for line in metrics(tmp_path / "a")] == [1, 2, 3, 4, 5, 6, 6]


# PyTorch raises in whatever runs at that moment, which may be a destructor.
def test_a_process_that_makes_batches_dies(
    store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """Killed as the kernel kills where memory is short; the same command goes on."""
    plan = replace(tiny_plan("clm", store, steps=(400,), save_every=2), workers=1)
    rate, others = plan.learning_rate, set(descendants(os.getpid()))  # of tests before this one

    def killing(step: int) -> float:
        if step == 5:
            for worker in set(descendants(os.getpid())) - others:
                os.kill(worker, signal.SIGKILL)
        return rate(step)

    with pytest.raises(PlmError, match=r"(?s)a worker process .* died.*same command"):
        run_plan(cpu_engine(tiny_network("clm")), replace(plan, learning_rate=killing), tmp_path)
    done = metrics(tmp_path)[-1]["step"]
    assert 5 <= done < 400
    rest = replace(tiny_plan("clm", store, steps=(done + 2,)), workers=0)
    run_plan(cpu_engine(tiny_network("clm")), rest, tmp_path)
    assert [line["step"] for line in metrics(tmp_path)] == list(range(1, done + 3))


def test_workers_outlive_a_signal_to_everybody(
    store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """A terminal and a scheduler signal all processes of a job: the run must still save."""
    plan = replace(tiny_plan("clm", store, steps=(400,)), workers=1)
    rate = plan.learning_rate

    def stopping(step: int) -> float:
        if step == 3:
            for process in (*descendants(os.getpid()), os.getpid()):
                os.kill(process, signal.SIGTERM)
        return rate(step)

    with pytest.raises(PlmError, match="checkpoint saved"):
        run_plan(cpu_engine(tiny_network("clm")), replace(plan, learning_rate=stopping), tmp_path)


def test_a_clock_that_jumps(
    store: TokenStore, tmp_path: Path, run_plan: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Back by hours between any two looks at it: no time of the log goes by that clock."""
    now = iter(range(10**9, 0, -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(now)))
    run_plan(cpu_engine(tiny_network("clm")), tiny_plan("clm", store), tmp_path)
    times = [line["time"] for line in metrics(tmp_path)]
    assert times == sorted(times)
    assert all(line["tokens_per_second"] > 0 for line in metrics(tmp_path))


_MEMORY = """
import resource, sys
from dataclasses import replace
from pathlib import Path
import torch
from tests.builders import cpu_engine
from tests.training.conftest import tiny_network, tiny_plan
from plmctl.corpus.store import TokenStore
from plmctl.training.checkpoint import Checkpoints
from plmctl.training.journal import Journal
from plmctl.training.plan import Slicing
from plmctl.training.data import training_batches
from plmctl.training.loop import train
from plmctl.training.plan import Phase
from plmctl.training.journal import peak_memory

folder, auto_micro_batch = Path(sys.argv[1]), sys.argv[2] == "auto"
store = TokenStore.from_lists([[list(range(6, 106))] * 3] * 600, vocab_size=120)
plan = tiny_plan("clm", store, steps=(2,), batch=1024, micro=1024)
plan = replace(plan, auto_micro_batch=auto_micro_batch)
engine = cpu_engine(tiny_network("clm"))
pages = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (pages + int(sys.argv[3]), -1))
with Journal(folder, title="t", total_steps=2, trackers=(), quiet=False) as journal:
    train(engine, plan, Checkpoints(folder / "checkpoints", 3), journal, lambda _, *, stop=None: {})
"""
ROOM = 100_000_000  # bytes: for half of the step's examples at once, but not for all


def tight(folder: Path, micro: str, room: int) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    command = [sys.executable, "-c", _MEMORY, str(folder), micro, str(room)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_out_of_memory_makes_the_micro_batches_smaller(
    store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """Under a real limit of the process's memory; the losses are those with room enough."""
    done = tight(tmp_path / "tight", "auto", ROOM)
    assert done.returncode == 0, done.stderr
    assert "step 1: out of memory; continuing with micro-batches of 512" in done.stderr
    assert tight(tmp_path / "roomy", "auto", 64_000_000_000).returncode == 0
    assert "smaller" not in (tmp_path / "roomy" / "events").read_text()
    ours, theirs = metrics(tmp_path / "tight"), metrics(tmp_path / "roomy")
    assert [line["step"] for line in ours] == [1, 2]
    for a, b in zip(ours, theirs, strict=True):
        assert a["tokens"] == b["tokens"]
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
    fixed = tight(tmp_path / "asked", "1024", ROOM)
    assert "step 1: out of memory\n  run the same command again with" in fixed.stderr
    assert "train.micro_batch_size=512" in fixed.stderr


def test_an_example_that_does_not_fit_is_told(
    store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    plan = tiny_plan("clm", store, steps=(2,), batch=4, micro=4)

    class Huge:
        def __getattr__(self, name: str) -> object:
            return getattr(plan.phases[0].examples, name)

        def __len__(self) -> int:
            return len(plan.phases[0].examples)

        def at_step(self, step: int, steps: int) -> object:
            return self

        def loss(self, network: object, batch: object) -> dict[str, torch.Tensor]:
            return {"lm": torch.empty(2**60)}  # the allocator itself refuses

    phase = replace(plan.phases[0], examples=Huge(), slicing=Slicing(4, 4))
    with pytest.raises(PlmError, match="step 1: out of memory, with one example at a time"):
        run_plan(
            cpu_engine(tiny_network("clm")),
            replace(plan, phases=(phase,), auto_micro_batch=True),
            tmp_path,
        )
    events = json_lines(tmp_path / "events")
    assert [event["micro_batch_size"] for event in events[1:]] == [2, 1]


LIMIT = 120.0  # seconds, of what takes one or two on a quiet machine


class Steps:
    """Batches of so many tensors, made by processes whose numbers are in them."""

    def __init__(self, tensors: int, dies_at: int | None = None) -> None:
        self.tensors, self.dies_at = tensors, dies_at

    def __getitem__(self, step: int) -> list[Batch]:
        if step == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        inputs = {str(name): torch.full((3,), os.getpid()) for name in range(self.tensors)}
        return [Batch(inputs, {}, 1, 1)]


def pid_of(batches: list[Batch]) -> int:
    return int(batches[0].inputs["0"][0])


def taken(steps: Steps, workers: int, at_each: Callable[[list[Batch]], None]) -> int:
    """How many steps came before a worker's death was reported."""
    count = 0

    def take() -> None:
        nonlocal count
        with closing(training_batches(steps, 0, 200, workers=workers)) as batches_of_steps:
            for batches in batches_of_steps:
                count += 1
                at_each(batches)

    with pytest.raises(PlmError, match=r"(?s)a worker process .* died.*same command"):
        take()
    return count


def kill(batches: list[Batch]) -> None:
    os.kill(pid_of(batches), signal.SIGKILL)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_dies_at_any_moment_is_one_error(workers: int, tmp_path: Path) -> None:
    """Before its first batch, at a later one, while it waits, in the middle of a large message."""

    def body() -> None:
        assert taken(Steps(1, dies_at=0), workers, lambda batches: None) == 0
        assert taken(Steps(1, dies_at=9), workers, lambda batches: None) <= 9
        # What it had sent before is in its pipe, which has 64 kB.
        assert taken(Steps(200), workers, kill) < 30
        # The message of a step is larger than a pipe: its worker is killed with half of it written.
        assert taken(Steps(900), workers, kill) < 5
        assert not descendants(os.getpid())

    within(LIMIT, body, tmp_path / "log")


def test_a_file_that_is_cut_under_a_worker_is_named_as_the_cause() -> None:
    class ReadsAShortenedFile(Steps):
        def __getitem__(self, step: int) -> list[Batch]:
            faulthandler.disable()  # of pytest
            os.kill(os.getpid(), signal.SIGBUS)  # what the kernel sends for a mapped page
            raise AssertionError

    with (
        pytest.raises(PlmError, match="a file that it reads was shortened"),
        closing(training_batches(ReadsAShortenedFile(1), 0, 9, workers=2)) as iterator,
    ):
        next(iterator)


class Closing(Steps):
    """Its process loses its connections a while before it ends, as one that is being killed."""

    def __getitem__(self, step: int) -> list[Batch]:
        if step == 2:
            time.sleep(0.2)  # steps 0 and 1 are in the pipe by then
            os.closerange(3, 1000)
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(step)


def test_a_connection_that_breaks_before_the_worker_is_dead(tmp_path: Path) -> None:
    def body() -> None:
        assert taken(Closing(1), 1, lambda batches: None) <= 2

    within(LIMIT, body, tmp_path / "log")


@pytest.mark.parametrize(
    ("error", "match"),
    [
        (ValueError("a defect"), r"(?s)in a worker process:.*__getitem__.*ValueError: a defect"),
        (DataError("the store is damaged", "make it again"), "the store is damaged\n  make it"),
        (OSError(5, "Input/output error", "tokens"), "Input/output error: 'tokens'"),
    ],
)
def test_an_error_in_a_workers_own_code_is_no_death(error: Exception, match: str) -> None:
    class Wrong(Steps):
        def __getitem__(self, step: int) -> list[Batch]:
            raise error

    kind = RuntimeError if isinstance(error, ValueError) else type(error)
    with (
        pytest.raises(kind, match=match),
        closing(training_batches(Wrong(1), 0, 9, workers=1)) as iterator,
    ):
        next(iterator)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_workers_give_the_batches_of_one_process(workers: int, store: TokenStore) -> None:
    plan = tiny_plan("mlm", store, steps=(7,), batch=6, micro=4)
    before = descendants(os.getpid())
    steps = StepBatches(plan.phases[0].examples, plan.phases[0].slicing, seed=3)
    ours, theirs = (list(training_batches(steps, 2, 7, workers=n)) for n in (workers, 0))
    assert len(ours) == len(theirs) == 5
    for a, b in zip(itertools.chain(*ours), itertools.chain(*theirs), strict=True):
        assert a.counts() == b.counts()
        assert (a.tokens, a.padded_tokens, a.rows) == (b.tokens, b.padded_tokens, b.rows)
        for one, other in ((a.inputs, b.inputs), (a.targets, b.targets)):
            assert one.keys() == other.keys()
            assert all(torch.equal(one[name], other[name]) for name in one)
            assert all(one[name].dtype == other[name].dtype for name in one)
    assert descendants(os.getpid()) == before
