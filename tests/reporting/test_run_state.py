"""The state of a run, and its log read in pieces."""

import json
import math
import os
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest

from plmctl.reporting.run_state import Columns, LogEnd, LoggedValidation, State, is_locked, state_of
from tests.reporting import sample_runs

HOLD = """
import fcntl, platform, sys
file = open(sys.argv[1], "a+")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
file.truncate(0)
file.write(f"process 1 on {platform.node()}")
file.flush()
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return sample_runs.pretrain(tmp_path / "run", steps=400)


def status(run: Path, name: str, **more: object) -> None:
    (run / "status.json").write_text(json.dumps({"status": name, "time": "2026-01-01", **more}))


def holding(lock: Path) -> "subprocess.Popen[str]":
    """A process that holds a lock until its input ends."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(lock)], text=True, **pipes)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


@pytest.mark.parametrize("name", ["stopped", "failed"])
def test_a_run_that_ended_says_why(run: Path, name: str) -> None:
    status(run, name, message="no space left")
    state = state_of(run)
    assert (state.name, state.message, state.since) == (name, "no space left", "2026-01-01")


def test_a_run_is_running_while_a_process_holds_its_lock(run: Path) -> None:
    status(run, "running")
    with holding(run / ".lock") as process:
        assert is_locked(run / ".lock")
        assert state_of(run).name == "running"
        process.communicate()
    assert state_of(run).name == "killed"


def test_looking_at_a_lock_does_not_take_it(run: Path) -> None:
    (run / ".lock").write_text("")
    looking = threading.Thread(target=lambda: [is_locked(run / ".lock") for _ in range(3000)])
    looking.start()
    for _ in range(3):  # a process that takes it meanwhile gets it, or it would end with an error
        with holding(run / ".lock") as process:
            process.communicate()
    looking.join()


def test_another_machine_that_wrote_now_is_running(run: Path) -> None:
    status(run, "running")
    (run / ".lock").write_text("process 5 on another-machine")
    assert state_of(run).name == "running"
    for name in ("metrics.jsonl", "status.json", "events"):
        os.utime(run / name, (1e9, 1e9))
    assert state_of(run).name == "killed"


def test_a_finished_run_without_its_files_is_incomplete(run: Path) -> None:
    status(run, "finished", files=["model", "eval/valid.json"])
    assert state_of(run).name == "finished"
    (run / "eval" / "valid.json").unlink()
    assert state_of(run) == State("incomplete", "missing: eval/valid.json", "2026-01-01")


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"status": "odd"}', "[" * 100_000])
def test_a_status_that_cannot_be_read_is_damaged(run: Path, text: str) -> None:
    (run / "status.json").write_text(text)
    assert state_of(run).name == "damaged"


def test_a_pipe_or_a_link_is_no_file(run: Path, tmp_path: Path) -> None:
    (run / "status.json").unlink(missing_ok=True)
    os.mkfifo(run / "status.json")  # reading it would wait for ever
    assert state_of(run).name == "damaged"
    secret = tmp_path / "secret.jsonl"
    secret.write_text('{"step": 1, "loss": 42.0}\n')
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to(secret)
    log = LogEnd(run / "metrics.jsonl")
    log.refresh()
    assert log.last == {}


def line(step: int, **values: object) -> str:
    return json.dumps({"step": step, **values}) + "\n"


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(1, loss=3.0, time=1.0))
    log = LogEnd(path)
    assert log.refresh()
    assert not log.refresh()
    with path.open("a") as file:
        file.write(line(2, loss=2.0, time=2.0) + '{"step": 3, "lo')
    assert log.refresh()
    assert log.last["step"] == 2
    # If the beginning were read again it would not be readable.
    with path.open("r+b") as file:
        file.write(b"x" * len(line(1, loss=3.0, time=1.0)))
    with path.open("a") as file:
        file.write('ss": 1.5, "time": 3.0}\n')
    assert log.refresh()
    assert (log.last["step"], log.unreadable) == (3, 0)
    assert log.seconds_per_step() == 1.0


@pytest.mark.parametrize("way", ["replaced", "cut"])
def test_a_log_that_a_resumed_run_wrote_again_is_read_again(tmp_path: Path, way: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(line(n, loss=1.0) for n in range(1, 10)))
    log, columns = LogEnd(path), Columns(path)
    log.refresh()
    columns.refresh()
    new = "".join(line(n, loss=2.0) for n in range(1, 4))
    if way == "replaced":
        (tmp_path / "new").write_text(new + new)
        (tmp_path / "new").replace(path)
    else:
        path.write_text(new)
    assert log.refresh()
    assert columns.refresh()
    assert log.last == {"step": 3, "loss": 2.0}
    assert set(columns.of("train")["loss"]) == {2.0}


def test_old_validations_are_searched_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with path.open("w") as file:
        for step in range(1, 30_001):
            valid = step % 10_000 == 0 or step == 7
            loss = {"valid/loss": abs(step - 10_000) / 1e4 + 1} if valid else {"loss": 0.1}
            file.write(line(step, **loss, filler="f" * 60))
    log = LogEnd(path)
    log.refresh()
    assert log.last["step"] == 29_999
    assert log.best == LoggedValidation(30_000, 3.0)
    pieces = 0
    while not log.searched:
        log.search()
        pieces += 1
    assert log.best == LoggedValidation(10_000, 1.0)
    assert pieces > 2


def test_the_best_validation_is_one_of_the_last_phase(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    losses = {100: (0, 3.0), 200: (0, 2.0), 300: (1, 4.0), 400: (1, 3.5), 500: (1, 3.7)}
    lines = [
        line(step, phase=phase, **{"valid/loss": loss}) for step, (phase, loss) in losses.items()
    ]
    path.write_text("".join(lines[:2]))
    log = LogEnd(path)
    log.refresh()
    assert log.best == LoggedValidation(200, 2.0)
    path.write_text("".join(lines))
    log.refresh()
    assert log.best == LoggedValidation(400, 3.5)


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with path.open("wb") as file:
        file.truncate(40_000_000)  # zeros, without room on the disk
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + line(3, loss=1.0).encode())
    log, columns = LogEnd(path), Columns(path)
    tracemalloc.start()
    log.refresh()
    columns.refresh()
    while not log.searched:
        log.search()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000
    assert log.last["step"] == 3
    assert columns.of("train")["step"].tolist() == [3.0]


def test_damaged_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    bad = ["null", "[]", '{"loss": 1}', '{"step": "x"}', "\x00\xff", "{" * 9000, '{"step": NaN}']
    path.write_text("\n".join(bad) + "\n" + line(2, loss=None) + "\n")
    log, columns = LogEnd(path), Columns(path)
    log.refresh()
    columns.refresh()
    assert log.unreadable == len(bad)
    assert log.last["step"] == 2
    assert math.isnan(columns.of("train")["loss"][0])
