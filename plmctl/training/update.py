"""One update of the weights: the gradient of a step over all processes, and its application.

The loss of a step is, for each part, the sum over its targets divided by the count of its targets
over the whole step: all processes and all micro-batches. How the step was cut up cannot change it.
"""

import math
from contextlib import nullcontext

import torch
from accelerate import Accelerator
from torch import Tensor

from plmctl.modeling.batch import Batch
from plmctl.shaping.keys import fold
from plmctl.training.engine import Engine
from plmctl.training.step import Step, weight
from plmctl.training.telemetry import Update


def gradient(
    engine: Engine, step: Step, batches: list[Batch], clip: float | None, key: int, stop: bool
) -> Update:
    """The clipped gradient of a step, left in the parameters; nothing else is changed.

    Args:
        engine: Network and optimizer.
        step: Gives the summed losses.
        batches: Micro-batches; a process may have another number of them than its neighbours.
        clip: Largest global norm of the gradient.
        key: Seeds the draws of dropout, so that a resumed run needs no generator's history.
        stop: Whether this process was asked to stop; all learn of it in the same reduction.
    """
    accelerator, network = engine.accelerator, engine.network
    counts = [batch.counts() for batch in batches]
    tally = [sum(count[part] for count in counts) for part in step.parts]
    tally += [sum(b.tokens for b in batches), sum(b.cells for b in batches), int(stop)]
    *targets, tokens, cells, stops = reduce(accelerator, torch.tensor(tally)).tolist()
    divisor = dict(zip(step.parts, (max(count, 1) for count in targets), strict=True))
    weights = {part: weight(step, part) for part in step.parts}

    summed = torch.zeros(len(step.parts), device=accelerator.device)
    for micro, batch in enumerate(batches):
        torch.manual_seed(int(fold(key, micro)) >> 1)  # PyTorch takes 63 bits on every device
        last = micro == len(batches) - 1
        with nullcontext() if last else accelerator.no_sync(network):
            losses = step.loss(network, batch.to(accelerator.device))
            total = sum(weights[part] * losses[part] / divisor[part] for part in step.parts)
            # Gradients are averaged over processes: undo that, the divisor is global already.
            accelerator.backward(accelerator.num_processes * total)
        summed += torch.stack([losses[part].detach().float() for part in step.parts])
    norm = accelerator.clip_grad_norm_(network.parameters(), math.inf if clip is None else clip)
    # The one point where the loop waits for the device: what is applied is known to be finite.
    *sums, grad_norm = torch.cat([reduce(accelerator, summed), norm.reshape(1)]).tolist()
    means = {part: total / divisor[part] for part, total in zip(step.parts, sums, strict=True)}
    loss = sum(weights[part] * mean for part, mean in means.items())
    return Update(means, grad_norm, tokens, cells, stops > 0, loss)


def apply(engine: Engine) -> None:
    """Step the optimizer by the gradient that is there."""
    engine.optimizer.step()
    engine.optimizer.zero_grad()


def update(
    engine: Engine, step: Step, batches: list[Batch], clip: float | None, key: int, stop: bool
) -> Update:
    """``gradient``, then ``apply``, whatever the gradient is."""
    done = gradient(engine, step, batches, clip, key, stop)
    apply(engine)
    return done


def reduce(accelerator: Accelerator, values: Tensor) -> Tensor:
    """The sum over processes; nothing to do, and no copy, with one."""
    if accelerator.num_processes == 1:
        return values
    reduced: Tensor = accelerator.reduce(values.to(accelerator.device), reduction="sum")
    return reduced
