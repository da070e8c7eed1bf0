"""Scoring a network by a step's losses, over all processes, each target counted once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accelerate import Accelerator

    from plmctl.modeling.batch import Batch
    from plmctl.modeling.network import Network
    from plmctl.training.stop import StopRequest


def score(
    accelerator: Accelerator,
    network: Network,
    step: Any,
    batches: Iterator[Batch],
    stop: StopRequest | None = None,
) -> dict[str, float]:
    """Mean losses and accuracies, from sums over the whole set, never means of batches.

    Args:
        accelerator: The device and the processes.
        network: Not wrapped: processes may have different numbers of batches, and a wrapper's
            forward would wait for the others.
        step: An objective or a task.
        batches: This process's part.
        stop: Looked at after every batch; the processes agree on it at the end.

    Returns:
        ``loss`` (the sum of the parts, by their weights), and for each part ``loss/<part>`` and
        ``accuracy/<part>``; nan for a part without a target, no accuracy where ``<part>/correct``
        is scored as nan.

    Raises:
        StopAsked: A process was asked to stop before its part was scored.
    """
    import torch

    from plmctl.training.data import weight
    from plmctl.training.stop import StopAsked

    network.eval()
    with torch.inference_mode(), accelerator.autocast(), network.apart():
        totals = _totals(accelerator, network, step, batches, stop)
    vector = torch.tensor(list(totals.values()), dtype=torch.float64, device=accelerator.device)
    reduced = accelerator.reduce(vector, reduction="sum").tolist()
    totals = dict(zip(totals, reduced, strict=True))
    if totals["stopped"]:
        raise StopAsked
    result: dict[str, float] = {}
    for part in step.parts:
        targets = totals[f"{part}/count"]
        result[f"loss/{part}"] = totals[part] / targets if targets else math.nan
        correct = totals[f"{part}/correct"]
        if not math.isnan(correct):  # nan: a part in which nothing is right or wrong
            result[f"accuracy/{part}"] = correct / targets if targets else math.nan
    return {
        "loss": math.fsum(weight(step, part) * result[f"loss/{part}"] for part in step.parts),
        **result,
    }


def _totals(
    accelerator: Accelerator,
    network: Network,
    step: Any,
    batches: Iterator[Batch],
    stop: StopRequest | None,
) -> dict[str, float]:
    """This process's sums, and whether it was asked to stop before it had all of them."""
    totals: dict[str, float] = {"stopped": 0.0}
    for part in step.parts:
        totals |= {part: 0.0, f"{part}/correct": 0.0, f"{part}/count": 0.0}
    for batch in batches:
        if stop is not None and stop.received is not None:
            return totals | {"stopped": 1.0}
        for name, value in step.score(network, batch.to(accelerator.device)).items():
            totals[name] += float(value)
        for part, count in batch.counts().items():
            totals[f"{part}/count"] += count
    return totals
