"""Several corpora in one run, each with a share of the samples (GPT-3, section 2.2).

A corpus with a large share and little text is seen several times while another is not yet seen
once. An epoch of the mixture has as many samples as all corpora together, and exactly its share of
them, to one sample, comes from each. Which corpus a sample comes from, and which of its samples it
is, are functions of the epoch and the sample number: nothing is carried on, so that seeking and
resuming cost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from plmctl.errors import ConfigError
from plmctl.modeling.batch import Batch
from plmctl.modeling.network import Network
from plmctl.shaping.examples import Example, Tallies, merge, tally
from plmctl.shaping.keys import fold, stream
from plmctl.shaping.order import permute
from plmctl.training.step import Step, streamed, weight

Ints = NDArray[np.int64]


def exact_shares(weights: Sequence[float], total: int) -> Ints:
    """Whole numbers in proportion to ``weights`` that sum to ``total`` (largest remainders).

    Args:
        weights: Positive, of any sum.
        total: What the result sums to.

    Returns:
        [S], each within one of its exact share.
    """
    exact = np.asarray(weights, dtype=np.float64) / sum(weights) * total
    counts: Ints = np.floor(exact).astype(np.int64)
    left = total - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:left]] += 1
    return counts


@dataclass(frozen=True)
class Mixture:
    """Steps of several corpora as one ``Step``; the loader never mixes two of them in a batch.

    Attributes:
        names: Of the corpora.
        steps: One objective over each corpus.
        counts: [S] samples of each in an epoch of the mixture.
        seed: Decides which samples of an epoch are whose, and the order within each corpus.
    """

    names: tuple[str, ...]
    steps: tuple[Step, ...]
    counts: Ints
    seed: int
    _bounds: Ints = field(init=False, repr=False)
    _sizes: Ints = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_bounds", np.concatenate([[0], np.cumsum(self.counts)]))
        object.__setattr__(self, "_sizes", np.array([len(step) for step in self.steps]))

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts of the loss, the same for all corpora."""
        return self.steps[0].parts

    @property
    def weights(self) -> Mapping[str, float]:
        """What each part counts for in the loss, as its objective has it."""
        first = self.steps[0]
        return {part: weight(first, part) for part in first.parts}

    def __len__(self) -> int:
        """Samples in an epoch of the mixture."""
        return int(self._bounds[-1])

    def locate(self, epochs: Ints, samples: Ints) -> tuple[Ints, Ints, Ints]:
        """Where samples of the mixture come from.

        Args:
            epochs: [N] of the mixture.
            samples: [N], each below ``len(self)``.

        Returns:
            Numbers of the corpora, and the epochs and sample numbers within them, each [N]. All
            samples of a corpus come once before any of them comes again.
        """
        key = fold(self.seed, stream("mixture"))
        slot = permute(samples, len(self), fold(key, 0, epochs))
        source = np.searchsorted(self._bounds, slot, side="right") - 1
        number = epochs * self.counts[source] + slot - self._bounds[source]
        size = self._sizes[source]
        within = number // size
        return source, within, permute(number % size, size, fold(key, 1, source, within))

    def sorted(self, examples: Ints) -> Ints:
        """The examples [2, N] (epochs and samples) of a step in the order of their corpora."""
        source, _, _ = self.locate(*examples)
        return examples[:, np.argsort(source, kind="stable")]

    def split(self, examples: Ints) -> list[Ints]:
        """The examples [2, N] cut into pieces of one corpus each."""
        source, _, _ = self.locate(*examples)
        order = np.argsort(source, kind="stable")
        cuts = np.flatnonzero(np.diff(source[order])) + 1
        return np.split(examples[:, order], cuts, axis=1)

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The examples [B] named by ``epochs`` and ``samples``, all of one corpus.

        Raises:
            ValueError: They are of several: rows of different objects have no common width.
        """
        source, within, numbers = self.locate(epochs, samples)
        if (source != source[0]).any():
            raise ValueError("a batch of several corpora: split it first")
        return self.steps[int(source[0])].collate(within, numbers)

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The loss of each part, summed over the batch's targets."""
        return self.steps[0].loss(network, batch)

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """As ``loss``, with the right first guesses."""
        return self.steps[0].score(network, batch)

    def tally(self, epochs: Ints, samples: Ints) -> Tallies:
        """Statistics of the examples, and the share of each corpus (``share_NAME``)."""
        source, within, numbers = self.locate(epochs, samples)
        shares = {f"share_{name}": tally(source == at) for at, name in enumerate(self.names)}
        parts = [
            self._shown(at).tally(within[source == at], numbers[source == at])
            for at in np.unique(source)
        ]
        return merge([*parts, shares])

    def expected(self) -> dict[str, float]:
        """The shares, and what comes to the same in every corpus."""
        first, *others = (self._shown(at).expected() for at in range(len(self.steps)))
        same = {n: value for n, value in first.items() if all(o.get(n) == value for o in others)}
        shares = self.counts / len(self)
        return same | {f"share_{n}": float(s) for n, s in zip(self.names, shares, strict=True)}

    def example(self, epoch: int, sample: int) -> Example:
        """One example for reading, with the name of its corpus."""
        source, within, number = (
            int(found[0]) for found in self.locate(np.array([epoch]), np.array([sample]))
        )
        shown: Example = self._shown(source).example(within, number)
        return Example(shown.rows, f"{shown.note} [{self.names[source]}]".strip())

    def _shown(self, source: int) -> Any:
        """An objective as ``plmctl preview`` has it: more than a ``Step``."""
        return self.steps[source]


def mixture(
    names: Sequence[str], steps: Sequence[Step], weights: Sequence[float], seed: int
) -> Mixture:
    """Steps of several corpora with their weights.

    Raises:
        ConfigError: A weight so small that an epoch has no sample of its corpus, or rows that go on
            from step to step, which a change of corpus would cut off.
    """
    if any(streamed(step) for step in steps):
        raise ConfigError(
            "data.mixture: the rows of this objective are streams that go on from step to step",
            "use data.train",
        )
    counts = exact_shares(weights, sum(len(step) for step in steps))
    for name, count in zip(names, counts, strict=True):
        if not count:
            raise ConfigError(
                f"data.mixture: the weight of {name} is less than one sample of all the text",
                "raise it, or leave the source out",
            )
    return Mixture(tuple(names), tuple(steps), counts, seed)
