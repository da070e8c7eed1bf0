"""A network on a whole set: its losses and accuracies, or its answer to every row.

Sums are taken over the set and over all processes, and each target is counted once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from plmctl.arrays import batches

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator

    from plmctl.models.batch import Batch
    from plmctl.models.network import Network
    from plmctl.run.stop import StopRequest
    from plmctl.tasks.base import Answer, TaskExamples


# --- Losses and accuracies of an objective or a task ---


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
        ``loss`` (the weighted sum of the loss terms), and for each term ``loss/<term>`` and
        ``accuracy/<term>``; nan for a part without a target, no accuracy where ``<part>/correct``
        is scored as nan.

    Raises:
        StopAsked: A process was asked to stop before its part was scored.
    """
    import torch

    from plmctl.run.stop import StopAsked

    network.eval()
    with torch.inference_mode(), accelerator.autocast(), network.apart():
        totals = _sums_of_process(accelerator, network, step, batches, stop)
    vector = torch.tensor(list(totals.values()), dtype=torch.float64, device=accelerator.device)
    reduced = accelerator.reduce(vector, reduction="sum").tolist()
    totals = dict(zip(totals, reduced, strict=True))
    if totals["stopped"]:
        raise StopAsked
    result: dict[str, float] = {}
    for part in step.loss_terms:
        targets = totals[f"{part}/count"]
        result[f"loss/{part}"] = totals[part] / targets if targets else math.nan
        correct = totals[f"{part}/correct"]
        if not math.isnan(correct):  # nan: a part in which nothing is right or wrong
            result[f"accuracy/{part}"] = correct / targets if targets else math.nan
    return {
        "loss": math.fsum(step.weights[part] * result[f"loss/{part}"] for part in step.loss_terms),
        **result,
    }


def _sums_of_process(
    accelerator: Accelerator,
    network: Network,
    step: Any,
    batches: Iterator[Batch],
    stop: StopRequest | None,
) -> dict[str, float]:
    """This process's sums, and whether it was asked to stop before it had all of them."""
    totals: dict[str, float] = {"stopped": 0.0}
    for part in step.loss_terms:
        totals |= {part: 0.0, f"{part}/correct": 0.0, f"{part}/count": 0.0}
    for batch in batches:
        if stop is not None and stop.received is not None:
            return totals | {"stopped": 1.0}
        for name, value in step.score(network, batch.to(accelerator.device)).items():
            totals[name] += float(value)
        for part, count in batch.counts().items():
            totals[f"{part}/count"] += count
    return totals


# --- Answers of a finetuned network ---


_BATCH_TOKENS = 16_384  # of a batch: rows times the longest of them


def answers(network: Network, examples: TaskExamples, device: torch.device) -> list[Answer]:
    """One answer a row, in the order of the rows; batched by length, which changes no answer.

    Args:
        network: Not wrapped for several processes.
        examples: Of a task.
        device: Where the network is.
    """
    import torch

    network.eval()
    lengths = examples.lengths()
    found: dict[str, list[Any]] = {}
    with torch.inference_mode():
        for which in batches(lengths, cells=_BATCH_TOKENS):
            batch = examples.collate(np.zeros_like(which), which).to(device)
            for name, output in examples.outputs(network, batch).items():
                rows = found.setdefault(name, [None] * len(lengths))
                for place, row in zip(which, output.cpu().numpy(), strict=True):
                    rows[place] = row
    return examples.answers(found)
