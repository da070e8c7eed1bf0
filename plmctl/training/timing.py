"""The time of a few real steps, for a budget of time, or of a layer, for an estimate."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as trees

from plmctl.errors import PlmError
from plmctl.examples.keys import fold
from plmctl.formatting import format_duration
from plmctl.models.fast import apply_fast_paths, use_fused_attention
from plmctl.models.parameters import layer_stacks
from plmctl.training.data import StepBatches
from plmctl.training.distributed import summed
from plmctl.training.loop import apply, compute_gradient

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from plmctl.training.engine import Engine
    from plmctl.training.plan import Plan

_COMPILED = (
    3  # steps in which a compiled network may still compile; the first also allocates memory
)

_MOST = 100  # steps per phase that are counted

_SHARE = 0.03  # of the budget, for the steps of all phases

_SPARE = 0.02  # of the time of the steps, for the logs and for a slower hour

_REPORT = 5.0  # seconds, for the samples and the report


@dataclass(frozen=True)
class Timing:
    """What a run was measured to take, in seconds.

    Attributes:
        step_seconds: A step of each phase at its full batch.
        spent: Before the first step: the micro-batch search and this measurement.
        validation: One validation.
        save: One checkpoint.
        validate_every: Steps between validations; None: at the end only.
        save_every: Steps between checkpoints.
        extra_saves: Checkpoints besides these, at most.
    """

    step_seconds: tuple[float, ...]
    spent: float
    validation: float
    save: float
    validate_every: int | None
    save_every: int
    extra_saves: int = 0
    source: str = "measured here"

    def overhead(self, steps: int) -> float:
        """Seconds that a run of this many steps spends outside its steps, and some to spare."""
        validations = steps // self.validate_every if self.validate_every else 0
        saves = steps // self.save_every + min(self.extra_saves, steps)
        # At the end: the last validation, the results, the last checkpoint and the model folder.
        fixed = self.spent + 2 * self.validation + 2 * self.save + _REPORT
        mean = sum(self.step_seconds) / len(self.step_seconds)
        return fixed + validations * self.validation + saves * self.save + _SPARE * steps * mean

    @property
    def parts(self) -> str:
        """The parts in words."""
        each = " and ".join(f"{seconds:.3g}" for seconds in self.step_seconds)
        others = {"a validation": self.validation, "a checkpoint": self.save}
        known = [f"{name} {seconds:.3g} s" for name, seconds in others.items() if seconds]
        if self.spent:
            known.append(f"the start {format_duration(self.spent)}")
        return ", ".join([f"a step takes {each} s", *known])

    @property
    def reason(self) -> str:
        """How the steps come about, in words."""
        return f"{self.source}: {self.parts}"


def time_steps(engine: Engine, plan: Plan, budget: float) -> tuple[float, ...]:
    """Seconds of a step of each phase at its full batch; called by all processes.

    Args:
        engine: Network and optimizer, which are changed.
        plan: The phases; the numbers of their steps do not matter.
        budget: Seconds of the whole run, of which a small share is used.

    Raises:
        PlmError: The loss of a step is not finite.
    """
    engine.network.train()
    limit = _SHARE * budget / len(plan.phases)
    return tuple(_step_seconds(engine, plan, number, limit) for number in range(len(plan.phases)))


def _step_seconds(engine: Engine, plan: Plan, number: int, limit: float) -> float:
    phase = plan.phases[number]
    kinds = list(phase.examples.alternatives().values())  # of a mixture, each as often
    seed = int(fold(plan.seed, number))
    sources = [StepBatches(one, phase.slicing, seed) for one in kinds]
    first = phase.slicing.sizes.stages[-1].step  # of a batch that grows, the full one

    def run(begin: int, count: int) -> tuple[float, float]:
        """Seconds of these steps, and of making their batches."""
        making, began = 0.0, time.perf_counter()
        for index in range(begin, begin + count):
            at, kind = time.perf_counter(), index % len(kinds)
            batches = sources[kind][index]
            making += time.perf_counter() - at
            for group in engine.optimizer.param_groups:
                group["lr"] = 0.0
            computed = compute_gradient(
                engine, kinds[kind], batches, plan.clip, index, stopping=False
            )
            apply(engine)
        loss = computed.read().loss  # waits for the device
        if loss != loss:
            raise PlmError("the loss of a trial step is not a number", "lower optim.lr")
        return time.perf_counter() - began, making

    warm = len(kinds) * (_COMPILED if engine.unwrapped.compiled else 1)
    run(first, warm)
    whole, making = run(first + warm, len(kinds))
    count = min(_MOST, int(limit / agreed(engine, whole)) * len(kinds))
    if count > len(kinds):
        whole, making = run(first + warm + len(kinds), count)
    count = max(count, len(kinds))
    if plan.workers:  # they make batches while the device computes
        whole = max(whole - making, making / plan.workers)
    return agreed(engine, whole / count)


def timed(engine: Engine, body: Callable[[], object]) -> float:
    """Seconds of something that all processes do, as the main process measures them."""
    engine.accelerator.wait_for_everyone()
    began = time.perf_counter()
    body()
    engine.accelerator.wait_for_everyone()
    return agreed(engine, time.perf_counter() - began)


def agreed(engine: Engine, number: float) -> float:
    """The number of the main process, in all of them."""
    (shared,) = summed(engine.accelerator, [number if engine.accelerator.is_main_process else 0.0])
    return shared


# --- The time of a layer, without text and without the whole network ---

_TRIED = 0.3  # seconds of the passes of each


def first_layers(
    model: PreTrainedModel, run_layers: Callable[[], None], device: torch.device
) -> tuple[nn.ModuleList, Callable[[], Tensor]]:
    """The first layer of each stack with any weights, and a function that gives their mean output.

    Args:
        model: On the meta device; it is changed.
        run_layers: Runs all its layers, on inputs of the shapes that are timed.
        device: Where the layers will be.
    """
    calls = dict[nn.Module, tuple[Any, Any]]()

    def note(layer: nn.Module, arguments: Any, named: Any) -> None:
        calls.setdefault(layer, (arguments, named))  # ALBERT's layer is called several times

    use_fused_attention(model)  # it reads no mask, of which the meta device has no values
    firsts = [stack[0] for stack in layer_stacks(model).values()]
    hooks = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in firsts]
    with torch.no_grad(), torch.device("meta"):
        run_layers()
    for hook in hooks:
        hook.remove()
    apply_fast_paths(model, device=device.type, compiled=False, sharded=False)
    layers = nn.ModuleList(firsts).to_empty(device=device).train()
    with torch.no_grad():
        for weight in layers.parameters():
            weight.normal_(std=0.02)
        for buffer in layers.buffers():
            buffer.fill_(1)
    inputs = trees.tree_map_only(Tensor, partial(_like, device=device), list(calls.values()))

    def run() -> Tensor:
        outputs = [layer(*a, **named) for layer, (a, named) in zip(layers, inputs, strict=True)]
        states = [one if isinstance(one, Tensor) else one[0] for one in outputs]
        return torch.stack([one.float().mean() for one in states]).sum()

    return layers, run


def _like(tensor: Tensor, device: torch.device) -> Tensor:
    """Any values in the shape of a tensor that has none."""
    if tensor.is_floating_point():
        return torch.randn(tensor.shape, dtype=tensor.dtype, device=device, requires_grad=True)
    return torch.ones_like(tensor, device=device)


def time_passes(
    body: Callable[[], Tensor],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    precision: torch.dtype | None,
) -> tuple[float, float]:
    """Median seconds of a forward and backward pass, and of the update.

    Args:
        body: Gives the loss.
        precision: Of products; None: float32.
    """
    times = list[tuple[float, float]]()
    while len(times) < 3 or sum(map(sum, times)) < _TRIED:
        began = time.perf_counter()
        with torch.autocast(device.type, dtype=precision, enabled=precision is not None):
            loss = body()
        torch.autograd.backward(loss)
        float(loss.detach())  # waits for the device
        passed = time.perf_counter()
        optimizer.step()  # of what has a gradient
        if device.type != "cpu":
            torch.accelerator.synchronize()
        times.append((passed - began, time.perf_counter() - passed))
    optimizer.zero_grad()
    passes, updates = zip(*times[1:], strict=True)
    return statistics.median(passes), statistics.median(updates)
