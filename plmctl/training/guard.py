"""Steps that went wrong: a loss or gradient that is no number, and spikes of the loss.

The verdict depends on the step and on the losses before it, which a checkpoint keeps: a resumed
run decides as the uninterrupted one does.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Literal

from plmctl.training.telemetry import Progress, Update

Verdict = Literal["good", "stop", "skip", "rollback"]

_ENOUGH = 16  # losses before anything is called a spike


@dataclass(frozen=True)
class Guard:
    """What is done about a step that went wrong.

    Attributes:
        nonfinite: Of a loss or gradient that is not finite.
        spike: A loss over this many times the median of the last ones is a spike; None: none is.
        on_spike: What is done about one.
        patience: Steps left out in a row, or rollbacks in all, after which the run stops.
    """

    nonfinite: Literal["stop", "skip"] = "stop"
    spike: float | None = None
    on_spike: Literal["stop", "skip", "rollback"] = "rollback"
    patience: int = 10

    def verdict(self, done: Update, progress: Progress, *, scaled: bool) -> tuple[Verdict, str]:
        """What to do with a step whose gradient is there and not yet applied, and why.

        Args:
            done: The step.
            progress: Before it.
            scaled: fp16: an infinite gradient is the scaler's business, which skips the update and
                halves its scale.
        """
        reason, verdict = "", "good"
        if not math.isfinite(done.loss):
            reason, verdict = "the loss is not finite", self.nonfinite
        elif not math.isfinite(done.grad_norm) and not scaled:
            reason, verdict = "the gradient is not finite", self.nonfinite
        elif self._is_spike(done.loss, progress.recent):
            median = statistics.median(progress.recent)
            reason = f"the loss is {done.loss:.4g}, its median of late {median:.4g}"
            verdict = self.on_spike
        if verdict == "skip" and progress.skipped >= self.patience:
            return "stop", f"{reason}, after {progress.skipped} steps left out in a row"
        if verdict == "rollback" and progress.rollbacks >= self.patience:
            return "stop", f"{reason}, after {progress.rollbacks} rollbacks"
        return verdict, reason  # type: ignore[return-value]  # a member of either literal

    def _is_spike(self, loss: float, recent: tuple[float, ...]) -> bool:
        if self.spike is None or len(recent) < _ENOUGH:
            return False
        return loss > self.spike * statistics.median(recent)
