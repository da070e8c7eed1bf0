"""Where a run stands, and how fast it goes."""

import resource
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import TypeVar

import torch

T = TypeVar("T")


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
class Progress:
    """What a run has done so far; saved with every checkpoint."""

    step: int = 0
    epoch: float = 0.0
    tokens: int = 0
    cells: int = 0
    samples: int = 0
    seconds: float = 0.0
    """Training time, validation and saving not counted."""
    best: float | None = None
    """The best score so far of what the run is judged by (``training.best``)."""
    best_step: int = 0
    waited: int = 0
    """Validations since."""

    def after(self, update: Update, samples: int, epoch_size: int) -> "Progress":
        """The progress after one more update of ``samples`` of an epoch's ``epoch_size``."""
        return replace(
            self,
            step=self.step + 1,
            epoch=self.epoch + samples / epoch_size,
            tokens=self.tokens + update.tokens,
            cells=self.cells + update.cells,
            samples=self.samples + samples,
        )

    def saved(self) -> dict[str, float | None]:
        """As a checkpoint keeps it."""
        return asdict(self)

    @classmethod
    def restored(cls, saved: Mapping[str, float | None]) -> "Progress":
        """From what a checkpoint kept."""
        known = {field.name for field in fields(cls)}
        return cls(**{key: value for key, value in saved.items() if key in known})  # type: ignore[arg-type]  # JSON keeps ints ints


class Window:
    """The time between two log lines: training time, with what is not training left out.

    Args:
        progress: Where the window opens.
        data: The clock of the loader.
    """

    def __init__(self, progress: Progress, data: "DataClock") -> None:
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


class DataClock:
    """How long the loop has waited for data."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, items: Iterator[T]) -> Iterator[T]:
        """The same items; the time that each one takes to come is added up."""
        while True:
            began = time.perf_counter()
            item = next(items, None)
            self.seconds += time.perf_counter() - began
            if item is None:
                return
            yield item


def peak_memory() -> int:
    """Most bytes in use so far: the device's when it has memory of its own, else the process's."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
