import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plmctl.errors import DataError, PlmError
from plmctl.run.display import work_progress
from plmctl.training.journal import Journal, LogMark, Progress


def journal(
    run: Path, *, total: int = 40, quiet: bool = False, trackers=(), accept_gap: bool = False
) -> Journal:
    return Journal(
        run,
        title="pretraining",
        total_steps=total,
        trackers=trackers,
        quiet=quiet,
        accept_gap=accept_gap,
    )


def record(step: int, **more: float) -> dict[str, float]:
    return {"step": step, "loss": 8.0 - step / 10, "lr": 9e-4, "tokens_per_second": 31002.3, **more}


def steps(run: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def train(run: Path, start: int, stop: int) -> None:
    with journal(run) as log:
        log.begin(start)
        for step in range(start + 1, stop + 1):
            log.tick(step, 1.0)
            if step % 10 == 0:
                log.log(record(step))
            if step % 20 == 0:
                log.log({"step": step, "valid/loss": 5.5})


def test_a_record_is_one_line_and_is_there_at_once(tmp_path):
    with journal(tmp_path) as log:
        log.begin(0)
        log.log(record(10, padding=0.25))
        text = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
    assert text == (
        '{"step": 10, "loss": 7.0, "lr": 0.0009, "tokens_per_second": 31002.3, "padding": 0.25}\n'
    )


def test_what_is_not_a_number_is_null_since_json_has_no_nan(tmp_path):
    with journal(tmp_path) as log:
        log.begin(0)
        log.log({"step": 1, "valid/loss": float("nan"), "valid/loss/mlm": float("inf")})
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert line == {"step": 1, "valid/loss": None, "valid/loss/mlm": None}


def test_a_resumed_log_has_no_gap_and_no_step_twice(tmp_path):
    train(tmp_path, 0, 37)  # killed after 37; the newest checkpoint is of step 20
    train(tmp_path, 20, 40)
    resumed = (tmp_path / "metrics.jsonl").read_bytes()
    assert steps(tmp_path) == [10, 20, 20, 30, 40, 40]
    straight = tmp_path / "straight"
    straight.mkdir()
    train(straight, 0, 40)
    assert (straight / "metrics.jsonl").read_bytes() == resumed


def test_samples_after_the_last_validation_of_the_checkpoint_are_written_again(tmp_path):
    """A checkpoint may be saved before the validation of its own step."""
    with journal(tmp_path) as log:
        log.begin(0)
        for step in (10, 20, 30):
            log.sample(step, {"kind": "generation", "items": [{"text": f"{step} é"}]})
    path = tmp_path / "samples.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert json.loads(lines[1]) == {
        "step": 20,
        "kind": "generation",
        "items": [{"text": "20 é"}],
    }
    path.write_bytes(b"".join(lines) + b'{"step": 40, "it')
    for validated, kept in ((30, 3), (20, 2), (0, 0)):
        with journal(tmp_path) as log:
            log.begin(30, validated=validated)
        assert (path.read_bytes() if path.exists() else b"") == b"".join(lines[:kept])


def test_a_share_of_a_sample_that_is_no_number_is_null(tmp_path):
    with journal(tmp_path) as log:
        log.begin(0)
        log.sample(1, {"items": [{"predictions": [{"score": float("nan")}]}]})
    line = json.loads((tmp_path / "samples.jsonl").read_text())
    assert line["items"][0]["predictions"][0]["score"] is None


def marked(run: Path) -> LogMark:
    """A log of 20 steps, one line more, and the mark between."""
    with journal(run) as log:
        log.begin(0)
        for step in range(1, 21):
            log.log(record(step, note=float("nan")))
        mark = log.mark()
        log.log({"step": 20, "valid/loss": 1.0})  # of the same step, and after the checkpoint
    return mark


def test_a_mark_is_of_the_file_as_it_is_then(tmp_path):
    mark = marked(tmp_path)
    content = (tmp_path / "metrics.jsonl").read_bytes()
    assert LogMark.of(content[: mark.size]) == mark
    assert mark.lines == 20
    assert content[mark.size :].count(b"\n") == 1


def test_a_log_is_cut_at_its_mark_and_hashed_from_there(tmp_path):
    mark = marked(tmp_path)
    with journal(tmp_path) as log:
        log.begin(20, mark)
        assert log.mark() == mark
        assert steps(tmp_path) == list(range(1, 21))
        log.log(record(21))
        assert log.mark() == LogMark.of((tmp_path / "metrics.jsonl").read_bytes())


@pytest.mark.parametrize("damage", ["gone", "empty", "first", "middle", "torn", "changed"])
def test_lines_that_are_missing_are_told_and_accepted_if_asked(tmp_path, damage):
    mark, path = marked(tmp_path), tmp_path / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    content = {
        "gone": None,
        "empty": b"",
        "first": b"".join(lines[1:]),
        "middle": b"".join(lines[:9] + lines[12:]),
        "torn": b"".join(lines[:7]) + lines[7][:5],
        "changed": path.read_bytes().replace(b"7.9", b"7.8", 1),
    }[damage]
    path.unlink() if content is None else path.write_bytes(content)
    for quiet in (True, False):  # every process refuses, none waits for another
        with journal(tmp_path, quiet=quiet) as log, pytest.raises(DataError, match="20 lines"):
            log.begin(20, mark)
        assert (path.read_bytes() if path.exists() else None) == content
    with journal(tmp_path, accept_gap=True) as log:
        log.begin(20, mark)
        log.log(record(21))
        later = log.mark()
    there = steps(tmp_path) if damage != "changed" else []
    assert there == [] or there[-1] == 21
    assert b'"gap"' in (tmp_path / "events").read_bytes()
    with journal(tmp_path) as log:
        log.begin(21, later)  # a checkpoint of after the gap belongs to what is there


def test_a_half_written_last_line_is_lost_and_swallows_nothing(tmp_path):
    train(tmp_path, 0, 20)
    whole = (tmp_path / "metrics.jsonl").read_bytes()
    (tmp_path / "metrics.jsonl").write_bytes(whole + b'{"step": 2')
    (tmp_path / "events").write_text('{"event": "started"}\n{"event": "sav')
    with journal(tmp_path) as log:
        log.begin(20)
        log.event("resumed", step=20)
    assert (tmp_path / "metrics.jsonl").read_bytes() == whole
    lines = (tmp_path / "events").read_text().splitlines()
    assert json.loads(lines[0]) == {"event": "started"}
    assert json.loads(lines[-1])["event"] == "resumed"
    assert len(lines) == 3


@given(saved=st.integers(0, 60), logged=st.lists(st.integers(1, 60), max_size=20))
def test_resuming_keeps_exactly_the_records_up_to_the_checkpoint(tmp_path_factory, saved, logged):
    run = tmp_path_factory.mktemp("run")
    lines = [json.dumps({"step": step, "n": n}) + "\n" for n, step in enumerate(logged)]
    (run / "metrics.jsonl").write_text("".join(lines))
    with journal(run, quiet=False) as log:
        log.begin(saved)
    expected = [line for line, step in zip(lines, logged, strict=True) if step <= saved]
    assert (run / "metrics.jsonl").read_text() == "".join(expected)


def test_events_have_a_time_and_keep_their_text(tmp_path):
    with journal(tmp_path) as log:
        log.begin(0)
        log.event("saved", step=20, checkpoint="step-000020", note="语料")
    text = (tmp_path / "events").read_text(encoding="utf-8")
    line = json.loads(text)
    assert "语料" in text
    assert line["event"] == "saved"
    assert line["step"] == 20
    assert (
        abs(time.mktime(time.strptime(line["time"][:19], "%Y-%m-%dT%H:%M:%S")) - time.time()) < 60
    )


def test_other_processes_write_and_show_nothing(tmp_path, capsys):
    with journal(tmp_path, quiet=True, trackers=("tensorboard",)) as log:
        log.begin(0)
        log.tick(1, 1.0)
        log.log(record(1))
        log.event("started")
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("act", ["begin", "log", "event"])
def test_a_disk_that_cannot_be_written_is_one_plain_message(tmp_path, act):
    name = "events" if act == "event" else "metrics.jsonl"
    blocked = tmp_path / "run"
    if act == "begin":  # what has to be rewritten beside cannot be: its place is taken
        taken = blocked / f".{name}.writing"
        taken.mkdir(parents=True)
        (blocked / name).write_text('{"step": 30}\n')
    else:
        (blocked / name).mkdir(parents=True)
    log = journal(blocked)
    actions = {
        "begin": lambda: log.begin(1),
        "log": lambda: log.log(record(1)),
        "event": lambda: log.event("saved"),
    }
    with pytest.raises(PlmError, match=f"{name}: cannot be written: Is a directory"):
        actions[act]()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's full device")
def test_a_full_disk_is_one_plain_message(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(PlmError, match="No space left"):
        journal(tmp_path).log(record(1))


def test_a_tick_writes_nothing(tmp_path):
    with journal(tmp_path, total=10**9) as log:
        log.begin(0)
        before = {path: path.stat() for path in tmp_path.rglob("*")}
        for step in range(1000):
            log.tick(step, 1.0)
        assert {path: path.stat() for path in tmp_path.rglob("*")} == before


def test_long_work_without_a_terminal_is_quiet_when_it_is_short(capsys):
    with work_progress("preparing") as progress:
        for done in range(101):
            progress(done, 100)
    assert capsys.readouterr().err == ""


def test_the_folder_of_a_run_that_was_moved_away_is_noticed(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    log = journal(run)
    log.begin(0)
    os.rename(run, tmp_path / "moved")
    with pytest.raises(PlmError, match="cannot be written"):
        log.log(record(1))


def test_progress_of_an_older_version_is_read() -> None:
    old = {"step": 3, "cells": 640, "best": [1.5, 2], "a field that has gone": 1}
    assert Progress.restored(old) == Progress(step=3, padded_tokens=640, best=(1.5, 2))
