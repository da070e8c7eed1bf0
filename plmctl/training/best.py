"""The best weights of a run so far, and when to stop looking for better ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from plmctl.errors import ConfigError
from plmctl.training.checkpoint import load_weights, save_weights
from plmctl.training.telemetry import Progress


@dataclass(frozen=True)
class Watch:
    """What a run is judged by at its validations; its state is in ``Progress``.

    The same scores give the same decisions, so a resumed run stops where an uninterrupted one does.

    Attributes:
        metric: The key of a score.
        larger: Whether more of it is better.
        patience: Validations without a better score after which the run ends; None: it goes on.
        folder: Where the best weights are kept; None: they are not.
    """

    metric: str
    larger: bool
    patience: int | None
    folder: Path | None

    def after(self, progress: Progress, scores: Mapping[str, float]) -> Progress:
        """The progress after a validation; the first of equal scores is the best.

        Raises:
            ConfigError: There is no such score.
        """
        if self.metric not in scores:
            raise ConfigError(
                f"train.metric: no figure {self.metric.removeprefix('valid/')!r} here",
                f"there are: {', '.join(key.removeprefix('valid/') for key in scores)}",
            )
        score = float(scores[self.metric])
        best = progress.judged
        if best is None or (score > best[0] if self.larger else score < best[0]):
            return replace(progress, judged=(score, progress.step), waited=0)
        return replace(progress, waited=progress.waited + 1)

    def over(self, progress: Progress) -> bool:
        """Whether the patience is at its end."""
        return self.patience is not None and progress.waited >= self.patience

    def keep(self, network: nn.Module, step: int) -> None:
        """Put weights that are the best so far in the place of earlier ones.

        A run that is killed between this and the next checkpoint comes to the same step again, and
        writes the same weights again.
        """
        if self.folder is None:
            return
        beside = self.folder.with_name(f".{self.folder.name}.writing")
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        save_weights(beside, network)
        (beside / "state.json").write_text(json.dumps({"metric": self.metric, "step": step}))
        shutil.rmtree(self.folder, ignore_errors=True)
        beside.rename(self.folder)


def take_best(folder: Path, network: nn.Module) -> int:
    """Put the best weights into a network; the step that they are of."""
    load_weights(folder, network)
    return int(json.loads((folder / "state.json").read_text())["step"])
