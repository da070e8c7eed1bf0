"""Trackers: TensorBoard's, and one that writes a file, as a user would register it."""

import json
import time
from typing import get_args

import pytest
from accelerate import tracking

from plmctl.config.sections import LogConfig
from plmctl.errors import PlmError
from plmctl.training.journal import Journal
from plmctl.training.trackers import check_trackers


class Lines(tracking.GeneralTracker):
    """A file of records per start."""

    name = "lines"
    requires_logging_directory = True

    def __init__(self, title, folder):
        super().__init__()
        self.title, self.folder = title, folder

    def start(self):
        number = len(list(self.tracker.glob("*.jsonl")))
        self.file = (self.tracker / f"{number}.jsonl").open("w")

    @property
    def tracker(self):
        from pathlib import Path

        (folder := Path(self.folder, "lines")).mkdir(exist_ok=True)
        return folder

    def log(self, values, step=None, **more):
        self.file.write(json.dumps({"step": step, **values}) + "\n")

    def finish(self):
        self.file.close()


@pytest.fixture
def lines(monkeypatch):
    monkeypatch.setattr(tracking, "LOGGER_TYPE_TO_CLASS", dict(tracking.LOGGER_TYPE_TO_CLASS))
    tracking.register_tracker_class(Lines)


def train(run, start, stop, tracker):
    with Journal(run, title="t", total_steps=40, trackers=(tracker,), quiet=False) as journal:
        journal.begin(start)
        for step in range(start + 10, stop + 1, 10):
            journal.log({"step": step, "loss": 8.0 - step / 10, "lr": 1e-3, "note": "text"})


def test_a_tracker_gets_every_record_and_no_later_ones_after_a_resume(tmp_path, lines):
    train(tmp_path, 0, 30, "lines")
    train(tmp_path, 20, 40, "lines")
    first, second = (
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted((tmp_path / "lines").glob("*.jsonl"))
    )
    assert first == [{"step": n, "loss": 8.0 - n / 10, "lr": 1e-3} for n in (10, 20, 30)]
    assert second == [{"step": n, "loss": 8.0 - n / 10, "lr": 1e-3} for n in (10, 20, 30, 40)]


def test_a_return_to_a_checkpoint_is_a_new_run_of_the_tracker(tmp_path, lines):
    with Journal(tmp_path, title="t", total_steps=9, trackers=("lines",), quiet=False) as journal:
        journal.begin(0)
        journal.log({"step": 1, "loss": 1.0, "lr": 1e-3})
        journal.log({"step": 2, "loss": float("nan"), "lr": 1e-3})
        journal.begin(1)
        journal.log({"step": 2, "loss": 3.0, "lr": 1e-3})
    files = sorted((tmp_path / "lines").glob("*.jsonl"))
    assert [len(path.read_text().splitlines()) for path in files] == [2, 2]
    assert json.loads(files[1].read_text().splitlines()[1])["loss"] == 3.0


def test_tensorboard_has_each_record_once_after_a_resume(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tmp_path, 0, 30, "tensorboard")
    time.sleep(1.1)  # the name of its file has a resolution of a second
    train(tmp_path, 20, 40, "tensorboard")
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert set(events.Tags()["scalars"]) == {"loss", "lr"}
    scalars = [(scalar.step, round(scalar.value, 4)) for scalar in events.Scalars("loss")]
    assert scalars == [(10, 7.0), (20, 6.0), (30, 5.0), (40, 4.0)]


def test_the_config_has_the_names_that_accelerate_has():
    (names, _) = get_args(LogConfig.model_fields["trackers"].annotation)
    assert set(get_args(names)) == set(tracking.LOGGER_TYPE_TO_CLASS)


def test_a_tracker_that_is_not_installed_is_one_message(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "_available_trackers", [])
    with pytest.raises(PlmError, match="log.trackers: wandb is not installed") as caught:
        check_trackers(["wandb"])
    assert caught.value.hint == "pip install wandb"
    with pytest.raises(PlmError, match="tensorboard is not installed") as caught:
        Journal(tmp_path, title="t", total_steps=1, trackers=("tensorboard",), quiet=False)
    assert caught.value.hint == "pip install 'plmctl[tensorboard]'"
    with pytest.raises(PlmError, match="unknown tracker wandbb"):
        check_trackers(["wandbb"])


def test_a_tracker_that_cannot_start_is_one_message(tmp_path, lines):
    (tmp_path / "lines").write_text("a file in the place of its folder")
    with (
        Journal(tmp_path, title="t", total_steps=9, trackers=("lines",), quiet=False) as journal,
        pytest.raises(PlmError, match="log.trackers: lines cannot start: .*File exists"),
    ):
        journal.begin(0)


@pytest.mark.parametrize("when", ["log", "finish"])
def test_a_tracker_that_fails_later_does_not_end_the_run(
    when, tmp_path, lines, monkeypatch, capsys
):
    def fail(self, *values, step=None, **more):
        if when == "finish" or step == 20:
            raise RuntimeError("the server is gone")

    monkeypatch.setattr(Lines, when, fail)
    train(tmp_path, 0, 40, "lines")
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 4
    messages = [line for line in capsys.readouterr().err.splitlines() if "log.trackers" in line]
    words = {
        "log": "lines failed and gets no more records: the server is gone",
        "finish": "lines could not end its run: the server is gone",
    }
    assert messages == [f"log.trackers: {words[when]}"]
