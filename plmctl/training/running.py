"""What a run consists of, and how all of its processes save and stop."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from plmctl.errors import Preempted
from plmctl.training.best import Watch
from plmctl.training.checkpoint import Checkpoints
from plmctl.training.engine import Engine
from plmctl.training.feed import Feed
from plmctl.training.journal import Journal
from plmctl.training.plan import Plan
from plmctl.training.saving import Saver
from plmctl.training.sharding import is_sharded
from plmctl.training.stop import StopRequest
from plmctl.training.telemetry import Progress
from plmctl.training.update import reduce


class Validate(Protocol):
    """Scores the held-out examples; of all processes, or of none."""

    def __call__(self, *, stop: StopRequest | None = None) -> Mapping[str, float]:
        """The log keys of a validation, empty where there is nothing to validate on.

        Raises:
            StopAsked: Some process was asked to stop meanwhile.
        """


@dataclass(frozen=True)
class Run:
    """What a run consists of."""

    engine: Engine
    plan: Plan
    checkpoints: Checkpoints
    journal: Journal
    validate: Validate
    feed: Feed
    watch: Watch | None
    saver: Saver

    def over(self, progress: Progress) -> bool:
        """Whether it has waited long enough for better scores."""
        return self.watch is not None and self.watch.over(progress)


def save(run: Run, progress: Progress) -> None:
    """Save from the main process; others have the same state, or parts of it, and other rows."""
    trained = run.engine.trained()
    trained.carried.share(lambda rows: reduce(run.engine.accelerator, rows))
    if run.engine.accelerator.is_main_process or is_sharded(trained.network):
        run.saver.save(progress.step, trained, progress.saved())


def saved(run: Run) -> None:
    """Wait until the last save is on the disk; all processes do."""
    run.saver.wait()
    run.engine.accelerator.wait_for_everyone()


def stopped(run: Run, progress: Progress) -> Preempted:
    """Where the run stands; said when every process is done, since a launcher ends the others."""
    saved(run)
    return Preempted(
        f"stopped after step {progress.step:,} of {run.plan.steps:,}, checkpoint saved",
        "run the same command again to go on",
    )
