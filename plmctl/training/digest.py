"""Hashes of a step's examples: equal where they are the same ones in the same order."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from plmctl.shaping.keys import fold
from plmctl.training.loader import StepBatches
from plmctl.training.plan import Plan


def step_digests(plan: Plan, steps: int, *, world: int, micro: int) -> Iterator[str]:
    """A hash of each of the first steps: every input and target of every example, in order.

    Each process's share is taken as the loader takes it; each example of it is made alone, so that
    padding, which goes by the longest of a micro-batch, has no part in the hash.

    Args:
        plan: The steps, cut up in any way.
        steps: How many.
        world: Processes to share them.
        micro: Examples a micro-batch.
    """
    for number, phase, first in plan.remaining(0):
        seed = int(fold(plan.seed, number))
        cut = replace(phase.slicing, micro_batch_size=micro, world=world)
        shares = [StepBatches(phase.step, replace(cut, rank=rank), seed) for rank in range(world)]
        for index in range(first, phase.steps):
            if not steps:
                return
            steps -= 1
            found = hashlib.blake2b(digest_size=16)
            for share in shares:
                for epochs, samples in share.pieces(index):
                    for at in range(len(samples)):
                        batch = phase.step.collate(epochs[at : at + 1], samples[at : at + 1])
                        for name, tensor in sorted({**batch.inputs, **batch.targets}.items()):
                            found.update(name.encode())
                            found.update(np.ascontiguousarray(tensor.numpy()).tobytes())
            yield found.hexdigest()
