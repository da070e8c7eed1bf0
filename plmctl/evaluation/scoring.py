"""A network on a whole set: its losses and accuracies, or its answers to all rows.

Sums are taken over the set and over all processes, and each target is counted once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from plmctl.arrays import batches

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from transformers import PreTrainedTokenizerBase

    from plmctl.corpus.labelled import Row
    from plmctl.models.base import Examples
    from plmctl.models.batch import Batch
    from plmctl.models.network import Network
    from plmctl.run.stop import StopRequest
    from plmctl.tasks.base import Answer, Finetuned, ScoredConfig, TaskExamples, Use


# --- Losses and accuracies of an objective or a task ---


def score(
    accelerator: Accelerator,
    network: Network,
    step: Examples,
    batches: Iterator[Batch],
    stop: StopRequest | None = None,
) -> dict[str, float]:
    """Mean losses and accuracies, from sums over the whole set, never means of batches.

    Args:
        accelerator: The device and the processes.
        network: Not wrapped: processes may have different numbers of batches, and a wrapper's
            forward would wait for the others.
        step: The examples of an objective or a task.
        batches: This process's term.
        stop: Checked after every batch; the processes agree on it at the end.

    Returns:
        ``loss`` (the weighted sum of the loss terms), and for each term ``loss/<term>`` and
        ``accuracy/<term>``: nan for a term without targets, and no accuracy if its
        ``<term>/correct`` is nan.

    Raises:
        StopAsked: A process was asked to stop before its term was scored.
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
    for term in step.loss_terms:
        targets = totals[f"{term}/count"]
        result[f"loss/{term}"] = totals[term] / targets if targets else math.nan
        correct = totals[f"{term}/correct"]
        if not math.isnan(correct):  # nan: right and wrong are not defined
            result[f"accuracy/{term}"] = correct / targets if targets else math.nan
    return {
        "loss": math.fsum(step.weights[term] * result[f"loss/{term}"] for term in step.loss_terms),
        **result,
    }


def _sums_of_process(
    accelerator: Accelerator,
    network: Network,
    step: Examples,
    batches: Iterator[Batch],
    stop: StopRequest | None,
) -> dict[str, float]:
    """This process's sums, and whether it was asked to stop before it had all of them."""
    totals: dict[str, float] = {"stopped": 0.0}
    for term in step.loss_terms:
        totals |= {term: 0.0, f"{term}/correct": 0.0, f"{term}/count": 0.0}
    for batch in batches:
        if stop is not None and stop.received is not None:
            return totals | {"stopped": 1.0}
        for name, value in step.score(network, batch.to(accelerator.device)).items():
            totals[name] += float(value)
        for term, count in batch.counts().items():
            totals[f"{term}/count"] += count
    return totals


# --- Answers of a finetuned model ---


_BATCH_TOKENS = 16_384  # per batch: rows times the longest of them


def answers(
    network: Network, examples: TaskExamples[ScoredConfig], device: torch.device
) -> list[Answer]:
    """One answer per row, in the order of the rows. Batches by length change no answer.

    Args:
        network: Not wrapped for several processes.
        examples: The examples of a task.
        device: Where the network is.
    """
    import torch

    network.eval()
    lengths = examples.lengths()
    found: dict[str, list[Any]] = {}
    with torch.inference_mode():
        for which in batches(lengths, max_tokens=_BATCH_TOKENS):
            batch = examples.collate(np.zeros_like(which), which).to(device)
            for name, output in examples.outputs(network, batch).items():
                rows = found.setdefault(name, [None] * len(lengths))
                for place, row in zip(which, output.cpu().numpy(), strict=True):
                    rows[place] = row
    return examples.answers(found)


@dataclass(frozen=True)
class FinetunedModel:
    """A finetuned model with its task: rows in, answers out. The network is loaded once.

    Attributes:
        model: A model folder or Hub id.
        finetuned: Its task, labels and maximal length.
        device: For the network.
    """

    model: str
    finetuned: Finetuned
    device: torch.device

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's, as its task uses it."""
        return self.finetuned.task.tokenizer(self.model)

    @cached_property
    def network(self) -> Network:
        """On the device."""
        from plmctl.models.network import Network

        task, labels = self.finetuned.task, self.finetuned.labels
        model = task.load(self.model, labels, pretrained=True, changes={})
        return Network(model, task.forward).to(self.device)

    def examples(
        self, rows: Sequence[Row], use: Use, max_length: int | None = None
    ) -> TaskExamples[ScoredConfig]:
        """The rows as examples; see ``Task.make``."""
        made = self.finetuned
        longest = max_length or made.max_length
        return made.task.make(rows, self.tokenizer, made.labels, longest, use)

    def answers(self, examples: TaskExamples[ScoredConfig]) -> list[Answer]:
        """One answer per row."""
        return answers(self.network, examples, self.device)
