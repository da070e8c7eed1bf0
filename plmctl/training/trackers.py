"""The records of a run in TensorBoard, W&B, MLflow ... by Accelerate's trackers.

Most trackers keep what was logged after the last checkpoint, or refuse a step that they have seen.
So each start of a run, and each rollback to a checkpoint, is a new run of the tracker that first
gets the records up to that step; older runs stay as they ended. TensorBoard needs no new run: with
``purge_step`` it hides the later records.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from plmctl.errors import PlmError

_PROJECT = "plmctl"  # what most trackers group runs by


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that are not installed, before training starts.

    Raises:
        PlmError: With the command that installs the package.
    """
    if not names:
        return
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
    from accelerate.utils import LoggerType

    own = {str(kind) for kind in LoggerType}
    installed = {str(kind) for kind in get_available_trackers()}
    for name in names:
        if name not in LOGGER_TYPE_TO_CLASS:
            known = ", ".join(sorted(LOGGER_TYPE_TO_CLASS))
            raise PlmError(f"log.trackers: unknown tracker {name}", f"use one of {known}")
        if name in own and name not in installed:
            package = "'plmctl[tensorboard]'" if name == "tensorboard" else name
            raise PlmError(f"log.trackers: {name} is not installed", f"pip install {package}")


class Trackers:
    """All trackers of a run.

    Args:
        names: As Accelerate has them, or as a class was registered there.

    Raises:
        PlmError: As ``check_trackers``.
    """

    def __init__(self, run: Path, names: Sequence[str]) -> None:
        check_trackers(names)
        self._run, self._names = run, list(names)
        self._open: dict[str, Any] = {}

    def begin(self, step: int, content: bytes) -> list[str]:
        """Start, or continue after ``step``: what was logged of later steps does not count.

        Args:
            content: ``metrics.jsonl`` up to this step.

        Returns:
            As ``log``.
        """
        failures = self.close()
        for name in list(self._names):
            self._open[name] = self._start(name, step)
            if name != "tensorboard":
                for line in content.splitlines():
                    failures += self._log(name, json.loads(line))
        return failures

    def log(self, record: Mapping[str, float | int | str]) -> list[str]:
        """Log a record under its ``step``.

        Returns:
            A message for each tracker that failed: it gets no more records. The training continues,
            and metrics.jsonl has them all.
        """
        return [message for name in list(self._open) for message in self._log(name, record)]

    def close(self) -> list[str]:
        """Write what is left, and end the trackers' runs; messages as ``log``."""
        failures = []
        while self._open:
            name, tracker = self._open.popitem()
            try:
                with redirect_stdout(sys.stderr):  # stdout has the result of the command
                    tracker.finish()
            except Exception as error:  # each package has its own kinds
                failures.append(f"log.trackers: {name} could not end its run: {error}")
        return failures

    def _log(self, name: str, record: Mapping[str, Any]) -> list[str]:
        """Give a record's numbers to a tracker; metrics.jsonl has null for one not finite."""
        if name not in self._open:
            return []
        # DVCLive takes loss/mlm for a part of loss.
        separator = "_" if name == "dvclive" else "/"
        values = {
            key.replace("/", separator): value
            for key, value in record.items()
            if key != "step" and isinstance(value, int | float)
        }
        try:
            self._open[name].log(values, step=record["step"])
        except Exception as error:  # each package has its own kinds
            del self._open[name]
            self._names.remove(name)
            reason = str(error) or type(error).__name__
            return [f"log.trackers: {name} failed and gets no more records: {reason}"]
        return []

    def _start(self, name: str, step: int) -> Any:
        """A tracker, started.

        A tracker whose service needs an account logs into the run folder unless the user chose a
        mode or gave a key: a training makes no network call by default.
        """
        from accelerate import PartialState
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        PartialState()  # Accelerate's trackers need it; a training has it before
        tracker_class, title = LOGGER_TYPE_TO_CLASS[name], self._run.resolve().name
        if name == "tensorboard":
            purge = step + 1 if step else None
            tracker = tracker_class(name, self._run, purge_step=purge)
        elif name == "wandb":
            chosen = "WANDB_MODE" in os.environ or "WANDB_API_KEY" in os.environ
            mode = None if chosen else "offline"
            project = os.environ.get("WANDB_PROJECT", _PROJECT)
            tracker = tracker_class(project, name=title, dir=self._run, mode=mode)
        elif name == "swanlab":
            chosen = "SWANLAB_MODE" in os.environ or "SWANLAB_API_KEY" in os.environ
            place = {} if chosen else {"mode": "offline", "logdir": str(self._run / "swanlab")}
            tracker = tracker_class(_PROJECT, experiment_name=title, **place)
        elif name == "mlflow":
            tracker = tracker_class(_PROJECT, run_name=title)
        elif name == "trackio":
            tracker = tracker_class(_PROJECT, name=title)
        elif name == "dvclive":
            # Into the run folder alone: no dvc.yaml and no commit in the working directory.
            folder = str(self._run / "dvclive")
            tracker = tracker_class(title, dir=folder, dvcyaml=None, save_dvc_exp=False)
        elif tracker_class.requires_logging_directory:
            tracker = tracker_class(title, str(self._run))
        else:
            tracker = tracker_class(title)
        try:
            with redirect_stdout(sys.stderr):
                tracker.start()
        except Exception as error:  # each package has its own kinds
            raise PlmError(
                f"log.trackers: {name} cannot start: {error}",
                "fix this, or remove it from log.trackers, and run the same command again",
            ) from error
        return tracker
