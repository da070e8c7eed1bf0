"""Averages of the weights over the steps of a run, which score better than the last weights.

An average is updated after every ``every``-th step, counted back from the last one, so that it
always includes the last weights. What an update does is a function of its step alone: a checkpoint
saves the average and nothing else of it, and a resumed run has the same average bit for bit.

``ema`` is an exponential moving average, corrected for its start: weights of t steps ago count
``decay ** t``, and all counts sum to 1 from the first update on. ``last`` is the plain mean over
the last steps (Kaddour, 2022, arXiv:2209.14981).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from plmctl.config.sections import AverageConfig, TrainConfig


@dataclass(frozen=True)
class Averaging:
    """Which steps update an average, and by how much.

    Attributes:
        steps: Steps of the whole run.
    """

    config: AverageConfig
    steps: int

    @property
    def first(self) -> int:
        """The first step that updates it; the step after the first update of the run is 1."""
        every, window = self.config.every, self.steps
        if self.config.name == "last":
            window = min(max(self.config.over.of(self.steps), 1), self.steps)
        return self.steps - (window - 1) // every * every

    def weight(self, step: int) -> float:
        """The share of the weights after ``step`` steps in the average; 0: it stays as it is."""
        every = self.config.every
        if step < self.first or (step - self.first) % every:
            return 0.0
        before = (step - self.first) // every
        if self.config.name == "last":
            return 1 / (before + 1)
        kept = self.config.decay**every
        return (1 - kept) / (1 - kept ** (before + 1))


def averaging(train: TrainConfig) -> Averaging | None:
    """What a config averages; None: nothing."""
    return None if train.average is None else Averaging(train.average, train.steps)


class Average:
    """The average of a network's weights, tied ones once, on the same device.

    Args:
        network: Its weights may be sharded: then so is the average.
    """

    def __init__(self, network: nn.Module, averaging: Averaging) -> None:
        self._averaging = averaging
        self._parameters = dict(network.named_parameters())
        self.values = {name: p.detach().clone() for name, p in self._parameters.items()}

    def exists(self, step: int) -> bool:
        """Whether there is an average after ``step`` steps."""
        return step >= self._averaging.first

    @torch.no_grad()
    def update(self, step: int, failed: Tensor | None = None) -> None:
        """Include the weights after ``step`` steps, if the average is due.

        Args:
            step: Number of steps, skipped ones included.
            failed: On the device: 1 if this step is the one at which the run stops, or a later
                one. Then nothing changes.
        """
        weight = self._averaging.weight(step)
        if not weight:
            return
        averages = list(self.values.values())
        weights = [parameter.detach() for parameter in self._parameters.values()]
        if failed is None:
            torch._foreach_lerp_(averages, weights, weight)
            return
        share = torch.where(failed.bool(), 0.0, weight)  # the host does not wait for the device
        for average, value in zip(averages, weights, strict=True):
            average.lerp_(value, share)

    @torch.no_grad()
    def exchange(self) -> None:
        """Swap the average and the weights; a second call swaps them back, bit for bit."""
        for name, parameter in self._parameters.items():
            weights = parameter.detach().clone()
            parameter.copy_(self.values[name])
            self.values[name].copy_(weights)

    @contextmanager
    def in_network(self, step: int) -> Iterator[None]:
        """The network has the average within the block, if there is one after ``step`` steps."""
        if not self.exists(step):
            yield
            return
        self.exchange()
        try:
            yield
        finally:
            self.exchange()
