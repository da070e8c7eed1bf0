"""Steps whose samples are of about one length: less padding, and still a function of the step.

An epoch is shuffled and cut into windows of several steps. The samples of a window are sorted by
length and dealt out to its steps, whose order is shuffled. So a step's samples are alike in length,
which samples share a step changes from epoch to epoch, and every epoch has every sample once.
"""

import numpy as np
from numpy.typing import NDArray

from plmctl.shaping.keys import fold, stream
from plmctl.shaping.order import permute

Ints = NDArray[np.int64]

_WINDOW = 50
"""Steps of a window, at most: more would save little padding and cost more sorting."""
_WINDOWS = 4
"""Windows of an epoch, at least, so that an epoch's steps are not the same ones in every epoch."""


def grouped(step: int, lengths: Ints, batch_size: int, seed: int) -> Ints:
    """The examples of a step, alike in length.

    The cost is that of shuffling and sorting one window (50 steps), at any step.

    Args:
        step: Step number within the phase, from 0.
        lengths: [N] of each sample of an epoch.
        batch_size: Samples in a step.
        seed: Decides the order of every epoch.

    Returns:
        [2, batch_size]: epochs and sample numbers, shorter samples first in each epoch.
    """
    first, last = step * batch_size // len(lengths), ((step + 1) * batch_size - 1) // len(lengths)
    parts = [_part(step, e, lengths, batch_size, seed) for e in range(first, last + 1)]
    return np.concatenate(parts, axis=1)


def _part(step: int, epoch: int, lengths: Ints, batch_size: int, seed: int) -> Ints:
    """What a step takes of one epoch; a step at the end of an epoch takes a part of two."""
    size = len(lengths)
    start, end = epoch * size, (epoch + 1) * size
    width = max(1, min(_WINDOW, size // (batch_size * _WINDOWS)))
    window = step // width
    # The window's samples of this epoch, by their numbers in the run; its steps and their shares.
    low = max(start, window * width * batch_size)
    high = min(end, (window + 1) * width * batch_size)
    steps = np.arange(low // batch_size, -(-high // batch_size))
    shares = np.minimum(high, (steps + 1) * batch_size) - np.maximum(low, steps * batch_size)
    samples = permute(np.arange(low, high) - start, size, fold(seed, stream("order"), epoch))
    samples = samples[np.argsort(lengths[samples], kind="stable")]
    # Which step takes the shortest samples, and so on: a shuffle of the steps.
    key = fold(seed, stream("windows"), epoch, window)
    turns = permute(np.arange(len(steps)), len(steps), key)
    place = int(np.flatnonzero(steps[turns] == step)[0])
    before = int(shares[turns[:place]].sum())
    mine = samples[before : before + int(shares[turns[place]])]
    return np.stack([np.full_like(mine, epoch), mine])
