"""One update of the weights: the gradient of a step over all processes, and its application.

The loss of a step is, for each part, the sum over its targets divided by the count of its targets
over the whole step: all processes and all micro-batches. How the step was cut up cannot change it.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import torch
import torch.distributed
from accelerate import Accelerator
from torch import Tensor

from plmctl.modeling.batch import Batch
from plmctl.modeling.network import Network
from plmctl.shaping.keys import fold
from plmctl.training.engine import Engine
from plmctl.training.memory import is_out_of_memory, release_memory
from plmctl.training.sharding import gathered, is_sharded
from plmctl.training.step import Step, weight
from plmctl.training.telemetry import Computed, Update

Losses = dict[str, Tensor]
Total = Callable[[Losses], Tensor]

_BUCKET = 8_000_000  # 32 MB of float32, as PyTorch's own exchange has about


def gradient(
    engine: Engine, step: Step, batches: list[Batch], clip: float | None, key: int, stop: bool
) -> Computed:
    """The clipped gradient of a step, left in the parameters; nothing else is changed.

    On a GPU it waits for no kernel: what it launches is there when the device has come to it.
    With several processes and ``engine.guarded``, all raise the error of one of them.

    Args:
        engine: Network and optimizer.
        step: Gives the summed losses.
        batches: Micro-batches; a process may have another number of them than its neighbours.
        clip: Largest global norm of the gradient.
        key: Seeds the draws of dropout, so that a resumed run needs no generator's history.
        stop: Whether this process was asked to stop; all learn of it in the same reduction.

    Raises:
        MemoryError: A micro-batch did not fit, or as PyTorch's allocators say it (``memory.py``).
    """
    accelerator, network = engine.accelerator, engine.network
    counts = [batch.counts() for batch in batches]
    tally = [sum(count[part] for count in counts) for part in step.parts]
    tally += [sum(b.tokens for b in batches), sum(b.cells for b in batches), int(stop)]
    *targets, tokens, cells, stops = summed_facts(engine, tally)
    divisor = dict(zip(step.parts, (max(count, 1) for count in targets), strict=True))
    weights = {part: weight(step, part) for part in step.parts}

    def total(losses: Losses) -> Tensor:
        return sum((weights[p] * losses[p] / divisor[p] for p in step.parts), torch.zeros(()))

    guarded = engine.guarded and accelerator.num_processes > 1
    accumulate = _agreed if guarded else _averaged
    summed = accumulate(engine, step, batches, total, key)
    norm = accelerator.clip_grad_norm_(network.parameters(), math.inf if clip is None else clip)
    figures = torch.cat([reduce(accelerator, summed), gathered(norm).reshape(1)])
    return Computed(figures, divisor, weights, tokens, cells, stops > 0)


def _averaged(engine: Engine, step: Step, batches: list[Batch], total: Total, key: int) -> Tensor:
    """Accumulate the gradients of micro-batches, averaged over processes within the last backward.

    Those of a sharded network are averaged within each, and every process makes as many forwards:
    a layer's weights are brought together by all of them.

    Args:
        engine: Network and optimizer.
        step: Gives the summed losses.
        batches: Micro-batches.
        total: The loss, of the summed losses of the parts.
        key: Seeds the draws of dropout.

    Returns:
        The summed loss of each part, of this process.
    """
    accelerator, network = engine.accelerator, engine.network
    summed = torch.zeros(len(step.parts), device=accelerator.device)
    forwards = _most_forwards(engine, len(batches)) if is_sharded(network) else len(batches)
    for micro, batch in enumerate(batches):
        last = micro == len(batches) - 1
        with nullcontext() if last else accelerator.no_sync(network):
            losses = _losses(network, step, batch.to(accelerator.device), int(fold(key, micro)))
            # Gradients are averaged over processes: undo that, the divisor is global already.
            accelerator.backward(accelerator.num_processes * total(losses))
        summed += torch.stack([losses[part].detach().float() for part in step.parts])
    for _ in range(forwards - len(batches)):  # with the others, and nothing comes of it
        losses = step.loss(network, batches[-1].to(accelerator.device))
        accelerator.backward(0 * total(losses))
    return summed


def _most_forwards(engine: Engine, mine: int) -> int:
    """Of any process, this one with ``mine``; told before the first forward of a step."""
    each = [0] * engine.accelerator.num_processes
    each[engine.accelerator.process_index] = mine
    return max(summed_facts(engine, each))


def _agreed(engine: Engine, step: Step, batches: list[Batch], total: Total, key: int) -> Tensor:
    """As ``_averaged``, but nothing is exchanged before every process has its gradient.

    Raises:
        MemoryError: Some process ran out of memory; raised by all of them.
    """
    accelerator = engine.accelerator
    bare = accelerator.unwrap_model(engine.network)  # whose calls wait for no other process
    fits, summed = True, torch.zeros(len(step.parts), device=accelerator.device)
    try:
        for micro, batch in enumerate(batches):
            losses = _losses(bare, step, batch.to(accelerator.device), int(fold(key, micro)))
            accelerator.backward(total(losses))
            summed += torch.stack([losses[part].detach().float() for part in step.parts])
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        fits = False
    _exchange(engine, fits=fits)
    return summed


def _losses(network: Network, step: Step, batch: Batch, key: int) -> Losses:
    """The summed losses of a micro-batch under its own draws of dropout."""
    torch.manual_seed(key >> 1)  # PyTorch takes 63 bits on every device
    return step.loss(network, batch)


def _exchange(engine: Engine, *, fits: bool) -> None:
    """Sum the gradients over processes, if all have one.

    Raises:
        MemoryError: One of them has none.
    """
    accelerator = engine.accelerator
    if not fits:
        engine.optimizer.zero_grad()
        release_memory()
    parameters = [p for p in engine.network.parameters() if p.requires_grad]
    facts = [int(not fits), *(int(p.grad is not None) for p in parameters)]
    failed, *there = summed_facts(engine, facts)
    if failed:
        raise MemoryError(f"{failed} of {accelerator.num_processes} processes")
    for parameter, count in zip(parameters, there, strict=True):
        if count and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [p.grad for p in parameters if p.grad is not None]
    for bucket in _buckets(gradients):
        flat = reduce(accelerator, torch.cat([g.reshape(-1) for g in bucket]))
        sums = torch.split(flat, [g.numel() for g in bucket])
        for gradient_, part in zip(bucket, sums, strict=True):
            gradient_.copy_(part.view_as(gradient_))


def _buckets(gradients: list[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one type, of ``_BUCKET`` numbers or a little more: one message each."""
    bucket: list[Tensor] = []
    for gradient_ in gradients:
        if bucket and (bucket[0].dtype != gradient_.dtype or _size(bucket) >= _BUCKET):
            yield bucket
            bucket = []
        bucket.append(gradient_)
    if bucket:
        yield bucket


def _size(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def apply(engine: Engine) -> None:
    """Step the optimizer by the gradient that is there."""
    engine.optimizer.step()
    engine.optimizer.zero_grad()


def apply_unread(engine: Engine, computed: Computed) -> None:
    """Step the optimizer by a gradient of which nobody knows yet whether it is finite.

    If its figures are not, this update and all later ones change nothing (``Engine.halted``).
    """
    assert engine.halted is not None
    engine.halted.logical_or_(~computed.figures.isfinite().all())
    apply(engine)


def update(
    engine: Engine, step: Step, batches: list[Batch], clip: float | None, key: int, stop: bool
) -> Update:
    """``gradient``, then ``apply``, whatever the gradient is."""
    done = gradient(engine, step, batches, clip, key, stop).read()
    apply(engine)
    return done


def summed_facts(engine: Engine, facts: list[int]) -> list[int]:
    """The sums over processes of what their hosts know, which no GPU is waited for."""
    if engine.hosts is None:
        sums: list[int] = reduce(engine.accelerator, torch.tensor(facts)).tolist()
        return sums
    values = torch.tensor(facts)
    torch.distributed.all_reduce(values, group=engine.hosts)
    return values.tolist()


def reduce(accelerator: Accelerator, values: Tensor) -> Tensor:
    """The sum over processes; nothing to do, and no copy, with one."""
    if accelerator.num_processes == 1:
        return values
    reduced: Tensor = accelerator.reduce(values.to(accelerator.device), reduction="sum")
    return reduced
