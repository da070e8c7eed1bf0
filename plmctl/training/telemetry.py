"""Where a run stands, and how fast it goes."""

import math
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Protocol

import torch
from torch import Tensor

_RECENT = 64  # losses that a spike is measured against


@dataclass(frozen=True)
class Update:
    """What one update of the weights did, over all processes.

    Attributes:
        losses: Mean loss of each part over its targets, in nats.
        grad_norm: Global norm of the gradient before clipping.
        tokens: Input tokens that are no padding.
        cells: Input positions, padding included.
        stop: Some process was asked to stop.
        loss: The weighted sum of the parts: what was descended.
    """

    losses: dict[str, float]
    grad_norm: float
    tokens: int
    cells: int
    stop: bool
    loss: float


@dataclass(frozen=True)
class Computed:
    """A step whose gradient was computed: what the host knows, and figures still on the device.

    Attributes:
        figures: [parts + 1]: the summed loss of each part over all processes, in nats, and the
            global norm of the gradient before clipping.
        targets: Of each part of the loss over all processes, at least 1.
        weights: What the mean of each part counts for in the loss.
        tokens: As in ``Update``.
        cells: As in ``Update``.
        stop: As in ``Update``.
    """

    figures: Tensor
    targets: dict[str, int]
    weights: dict[str, float]
    tokens: int
    cells: int
    stop: bool

    def read(self) -> Update:
        """What the step did; waits for the device."""
        return self.update(self.figures.tolist())

    def update(self, figures: list[float]) -> Update:
        """What the step did, its figures known."""
        *sums, grad_norm = figures
        means = {p: total / n for (p, n), total in zip(self.targets.items(), sums, strict=True)}
        loss = sum(self.weights[part] * mean for part, mean in means.items())
        return Update(means, grad_norm, self.tokens, self.cells, self.stop, loss)


@dataclass(frozen=True)
class Progress:
    """What a run has done so far; saved with every checkpoint.

    Attributes:
        step: Updates, those that were left out included.
        epoch: Passes over the corpora.
        tokens: Input tokens that are no padding.
        cells: Input positions, padding included.
        samples: Examples.
        seconds: Training time, validation and saving not counted.
        validated: The last step that was validated.
        best: The lowest validation loss, and its step.
        recent: The last losses of updates that were made.
        skipped: Steps left out in a row.
        rollbacks: How often the run went back to a checkpoint.
        shift: Samples that rollbacks have passed over: the data goes on after them.
        judged: The best score of what the run is judged by (``training.best``), and its step.
        waited: Validations since.
        micro: The largest micro-batch of each phase, once a step did not fit in memory.
    """

    step: int = 0
    epoch: float = 0.0
    tokens: int = 0
    cells: int = 0
    samples: int = 0
    seconds: float = 0.0
    validated: int = 0
    best: tuple[float, int] | None = None
    recent: tuple[float, ...] = ()
    skipped: int = 0
    rollbacks: int = 0
    shift: int = 0
    judged: tuple[float, int] | None = None
    waited: int = 0
    micro: tuple[int, ...] = ()

    def ahead(self, done: Update | Computed, samples: int, epoch_size: int) -> "Progress":
        """One more step of ``samples`` of an epoch's ``epoch_size``, whatever its loss is."""
        return replace(
            self,
            step=self.step + 1,
            epoch=self.epoch + samples / epoch_size,
            tokens=self.tokens + done.tokens,
            cells=self.cells + done.cells,
            samples=self.samples + samples,
        )

    def after(self, update: Update, samples: int, epoch_size: int) -> "Progress":
        """The progress after one more update."""
        recent = (*self.recent, update.loss)[-_RECENT:]
        return replace(self.ahead(update, samples, epoch_size), recent=recent, skipped=0)

    def without(self, update: Update, samples: int, epoch_size: int) -> "Progress":
        """The same, where the update was left out."""
        return replace(self.ahead(update, samples, epoch_size), skipped=self.skipped + 1)

    def scored(self, loss: float | None) -> "Progress":
        """The progress after a validation; None: there was nothing to score."""
        if loss is None or math.isnan(loss) or (self.best is not None and loss >= self.best[0]):
            return replace(self, validated=self.step)
        return replace(self, validated=self.step, best=(loss, self.step))

    def saved(self) -> dict[str, Any]:
        """As a checkpoint keeps it."""
        return asdict(self)

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> "Progress":
        """From what a checkpoint kept."""
        kept = {field.name: saved[field.name] for field in fields(cls) if field.name in saved}
        plain: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in kept.items()}
        return cls(**plain)


class Waits(Protocol):
    """What counts the seconds that the loop waits for data (``feed.Feed``)."""

    seconds: float


class Window:
    """The time between two log lines: training time, with what is not training left out.

    Args:
        progress: Where the window opens.
        data: What counts the seconds that the loop waits for data.
    """

    def __init__(self, progress: Progress, data: "Waits") -> None:
        self._start, self._data = progress, data
        self._opened, self._waited_before, self._paused = time.perf_counter(), data.seconds, 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Validation and saving are no training time."""
        began = time.perf_counter()
        yield
        self._paused += time.perf_counter() - began

    def figures(self, progress: Progress) -> dict[str, float]:
        """The log keys that tell of speed and memory."""
        seconds = max(time.perf_counter() - self._opened - self._paused, 1e-9)
        cells = progress.cells - self._start.cells
        tokens = progress.tokens - self._start.tokens
        return {
            "tokens_per_second": round(tokens / seconds, 1),
            "samples_per_second": round((progress.samples - self._start.samples) / seconds, 2),
            "data_wait": round((self._data.seconds - self._waited_before) / seconds, 4),
            "memory_gb": round(peak_memory() / 1e9, 3),
            "padding": round(1 - tokens / max(cells, 1), 4),
            "time": round(progress.seconds + seconds, 2),
        }


def peak_memory() -> int:
    """Most bytes in use so far: the device's when it has memory of its own, else the process's."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def record(progress: Progress, phase: int, done: Update, rate: float) -> dict[str, float]:
    """The log keys that tell of learning (DESIGN: metrics.jsonl)."""
    parts = {f"loss/{part}": loss for part, loss in done.losses.items()}
    return {
        "step": progress.step,
        "phase": phase,
        "epoch": round(progress.epoch, 4),
        "tokens": progress.tokens,
        "loss": done.loss,
        **(parts if len(parts) > 1 else {}),
        "lr": rate,
        "grad_norm": done.grad_norm,
    }
