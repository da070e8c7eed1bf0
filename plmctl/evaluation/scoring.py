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
from plmctl.tasks._elmo import reads_characters
from plmctl.tokenization.unknown import UnknownCounter

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from plmctl.corpus.labelled import Row
    from plmctl.evaluation.model import LoadedModel
    from plmctl.models.base import Examples
    from plmctl.models.batch import Batch
    from plmctl.models.network import Network
    from plmctl.run.stop import StopRequest
    from plmctl.tasks.base import Answer, Finetuned, ScoredConfig, TaskExamples, Use


# --- Losses and accuracies of an objective or a task ---


def score(
    accelerator: Accelerator,
    network: Network,
    examples: Examples,
    batches: Iterator[Batch],
    stop: StopRequest | None = None,
) -> dict[str, float]:
    """Mean losses and accuracies, from sums over the whole set, never means of batches.

    Args:
        accelerator: The device and the processes.
        network: Not wrapped: processes may have different numbers of batches, and a wrapper's
            forward would wait for the others.
        examples: The examples of an objective or a task.
        batches: This process's share.
        stop: Checked after every batch; the processes agree on it at the end.

    Returns:
        ``loss`` (the weighted sum of the loss terms), and for each term ``loss/<term>`` and
        ``accuracy/<term>``: nan for a term without targets, and no accuracy if its
        ``<term>/correct`` is nan.

    Raises:
        StopAsked: A process was asked to stop before its share was scored.
    """
    import torch

    from plmctl.run.stop import StopAsked
    from plmctl.training.distributed import summed

    network.eval()
    with torch.inference_mode(), accelerator.autocast(), network.apart():
        totals = _sums_of_process(accelerator, network, examples, batches, stop)
    sums = summed(accelerator, list(totals.values()))
    totals = dict(zip(totals, sums, strict=True))
    if totals["stopped"]:
        raise StopAsked
    result: dict[str, float] = {}
    for term in examples.loss_terms:
        targets = totals[f"{term}/count"]
        result[f"loss/{term}"] = totals[term] / targets if targets else math.nan
        correct = totals[f"{term}/correct"]
        if not math.isnan(correct):  # nan: right and wrong are not defined
            result[f"accuracy/{term}"] = correct / targets if targets else math.nan
    return {
        "loss": math.fsum(
            examples.weights[term] * result[f"loss/{term}"] for term in examples.loss_terms
        ),
        **result,
    }


def _sums_of_process(
    accelerator: Accelerator,
    network: Network,
    examples: Examples,
    batches: Iterator[Batch],
    stop: StopRequest | None,
) -> dict[str, float]:
    """This process's sums, and whether it was asked to stop before it had all of them."""
    totals: dict[str, float] = {"stopped": 0.0}
    for term in examples.loss_terms:
        totals |= {term: 0.0, f"{term}/correct": 0.0, f"{term}/count": 0.0}
    unread: list[dict[str, Tensor]] = []
    for batch in batches:
        if stop is not None and stop.received is not None:
            return totals | {"stopped": 1.0}
        unread.append(examples.score(network, batch.to(accelerator.device)))
        if len(unread) > _UNREAD:
            _add(totals, unread.pop(0))
        for term, count in batch.counts().items():
            totals[f"{term}/count"] += count
    for sums in unread:
        _add(totals, sums)
    return totals


_UNREAD = 8  # batches that a GPU may be behind: reading its sums waits for it


def _add(totals: dict[str, float], sums: dict[str, Tensor]) -> None:
    for name, value in sums.items():
        totals[name] += float(value)


# --- Answers of a finetuned model ---


_BATCH_TOKENS = 16_384  # per batch: rows times the longest of them


def answers(
    network: Network, examples: TaskExamples[ScoredConfig], device: torch.device
) -> list[Answer]:
    """One answer per row, in the order of the rows. Batches by length change no answer.

    Args:
        network: Not wrapped for several processes.
        device: Where the network is.
    """
    import torch

    network.eval()
    lengths = examples.lengths()
    outputs: dict[str, list[Any]] = {}
    with torch.inference_mode():
        for which in batches(lengths, max_tokens=_BATCH_TOKENS):
            batch = examples.collate(np.zeros_like(which), which).to(device)
            for name, output in examples.outputs(network, batch).items():
                rows = outputs.setdefault(name, [None] * len(lengths))
                for place, row in zip(which, output.cpu().numpy(), strict=True):
                    rows[place] = row
    return examples.answers(outputs)


_TASK_NETWORK = ("task",)  # among the networks of a ``LoadedModel``


@dataclass(frozen=True)
class FinetunedModel:
    """A finetuned model with its task: rows in, answers out. The network is loaded once.

    Attributes:
        model: The model folder or Hub id, opened.
        finetuned: Its task, labels and maximal length.
    """

    model: LoadedModel
    finetuned: Finetuned

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's, as its task uses it."""
        return self.finetuned.task.tokenizer(self.model.name)

    @cached_property
    def _counter(self) -> UnknownCounter:
        return UnknownCounter.of(self.tokenizer)

    @property
    def network(self) -> Network:
        """With the head of the task, on the model's device."""
        from plmctl.models.load import Start

        networks = self.model.networks
        if _TASK_NETWORK not in networks:
            task = self.finetuned.task
            start = Start(self.model.name, self.tokenizer, self.finetuned.labels)
            networks[_TASK_NETWORK] = self.model.placed(task.load(start), task.forward)
        return networks[_TASK_NETWORK]

    def examples(
        self, rows: Sequence[Row], use: Use, max_length: int | None = None
    ) -> TaskExamples[ScoredConfig]:
        """The rows as examples; see ``Task.make``."""
        finetuned = self.finetuned
        if not reads_characters(self.tokenizer):
            texts = [text for row in rows for text in finetuned.task.all_texts(row)]
            self.model.note_unknown(texts, counter=self._counter)
        length = max_length or finetuned.max_length
        return finetuned.task.make(rows, self.tokenizer, finetuned.labels, length, use)

    def answers(self, examples: TaskExamples[ScoredConfig]) -> list[Answer]:
        """One answer per row."""
        return answers(self.network, examples, self.model.device)
