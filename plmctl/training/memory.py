"""Memory: the largest micro-batch that fits, and smaller ones when a step does not fit.

The size of micro-batches changes nothing but the order of sums and the draws of dropout.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from plmctl.errors import PlmError
from plmctl.examples.keys import fold
from plmctl.files import write_atomically, writing
from plmctl.models.sharding import is_sharded
from plmctl.run.display import say
from plmctl.training.data import StepBatches
from plmctl.training.distributed import reduce
from plmctl.training.journal import append_event
from plmctl.training.out_of_memory import is_out_of_memory, release_memory

if TYPE_CHECKING:
    from accelerate import Accelerator

    from plmctl.models.base import Examples
    from plmctl.models.batch import Batch
    from plmctl.models.network import Network
    from plmctl.training.engine import Engine
    from plmctl.training.journal import Progress
    from plmctl.training.plan import Phase, Plan


# --- The automatic micro-batch size ---


FOUND = "micro_batches.json"

_SPARE = 0.05  # share of a device's memory for longer batches and for other libraries

_STATES = 2  # tensors per parameter in an optimizer's state, at most: AdamW's


def largest(fits: Callable[[int], bool], most: int, first: int) -> int:
    """The largest size that fits, up to sizes that cut ``most`` examples into as many pieces.

    It doubles or halves a first guess, then bisects.

    Args:
        fits: Whether a size fits; smaller sizes fit too.
        most: The largest useful size: a process's examples of a step.

    Returns:
        A size of equal pieces of ``most``; 0 if not even 1 fits.
    """
    low, high, guess = 0, most + 1, max(1, min(first, most))
    while low == 0 or _pieces(most, low) > _pieces(most, high - 1):
        if fits(guess):
            low = guess
        else:
            high = guess
        if high == 1:
            return 0
        guess = min(2 * low, most) if high > most else (low + high) // 2
    return -(-most // _pieces(most, low))


def try_micro_batch(engine: Engine, batch: Batch, phase: Phase) -> bool:
    """Whether a micro-batch fits: two forwards and backwards, as in a step that has several.

    Weights, random draws and recurrent state do not change. Before the first update an optimizer
    has no state yet: memory of AdamW's size is reserved meanwhile.
    """
    accelerator = engine.accelerator
    bare = engine.unwrapped
    bare.train()
    learned = [p for p in bare.parameters() if p.requires_grad]
    fits = True
    try:
        states = 0 if engine.trained().optimizer.state else _STATES
        room = [torch.empty_like(p) for p in learned for _ in range(states)]
        with bare.isolated():
            _twice(accelerator, bare, phase.examples, batch)
        fits = _has_spare(accelerator.device)
        del room
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        fits = False
    engine.zero_gradients()
    release_memory()
    return fits


def _twice(accelerator: Accelerator, network: Network, step: Examples, batch: Batch) -> None:
    for _ in range(2):
        losses = step.loss(network, batch.to(accelerator.device))
        total = torch.stack([loss.float() for loss in losses.values()]).sum()
        accelerator.backward(total / max(batch.tokens, 1))


def heaviest(phase: Phase, seed: int, size: int) -> Batch:
    """The largest micro-batch: the longest rows, or the first step's at its full size."""
    lengths = phase.examples.lengths()
    if lengths is not None:
        longest = np.argsort(-lengths, kind="stable")[:size]
        return phase.examples.collate(np.zeros_like(longest), longest)
    # Padding counts: another batch may have less of it.
    full = replace(phase.slicing, micro_batch_size=size, growth=None)
    kinds = phase.examples.alternatives().values()
    ends = [one.at_step(step, 2) for one in kinds for step in range(2)]  # one masks the most
    batches = [batch for examples in ends for batch in StepBatches(examples, full, seed)[0]]
    return max(batches, key=lambda batch: (batch.padded_tokens, sum(batch.counts().values())))


def search(engine: Engine, plan: Plan) -> tuple[int, ...]:
    """The largest micro-batch of each phase that fits in every process.

    Raises:
        PlmError: Not even one example fits.
    """
    largest_sizes = []
    for number, phase in enumerate(plan.phases):
        slicing, seed = phase.slicing, int(fold(plan.seed, number))

        def fits(size: int, phase: Phase = phase, seed: int = seed) -> bool:
            return try_micro_batch(engine, heaviest(phase, seed, size), phase)

        most = -(-slicing.batch_size // slicing.world)
        largest_sizes.append(largest(fits, most, slicing.micro_batch_size))
    sizes = -_most(engine, [-size for size in largest_sizes])
    if not sizes.all():
        raise PlmError(
            "train.micro_batch_size: not even one example fits in memory",
            "use shorter sequences, a smaller network, or a device with more memory",
        )
    return tuple(sizes.tolist())


def too_large(engine: Engine, plan: Plan) -> int | None:
    """The micro-batch size of the plan's largest batch, if it does not fit; None: it does.

    A process of a sharded network cannot try alone, and sizes that were searched for were tried.
    """
    searched = plan.auto_micro_batch and engine.accelerator.device.type == "cuda"
    if searched or is_sharded(engine.network):
        return None
    batches = [
        (phase, heaviest(phase, int(fold(plan.seed, number)), phase.slicing.micro_batch_size))
        for number, phase in enumerate(plan.phases)
    ]
    phase, batch = max(batches, key=lambda pair: pair[1].padded_tokens)
    return None if try_micro_batch(engine, batch, phase) else phase.slicing.micro_batch_size


def with_found_sizes(engine: Engine, plan: Plan, folder: Path) -> Plan:
    """The plan with the largest micro-batches that fit, if their size is automatic.

    They are searched for once per run, on a GPU, and saved in ``micro_batches.json`` for when the
    run resumes, so that it is reproducible to the bit. On a CPU larger ones are no faster, and the
    plan's size stays.

    Args:
        engine: Network and optimizer at the start of training.
        plan: With a first guess of its micro-batches.
    """
    if not plan.auto_micro_batch or engine.accelerator.device.type != "cuda":
        return plan
    where = {
        "processes": engine.accelerator.num_processes,
        "device": torch.cuda.get_device_name(),
        "batch_sizes": [phase.slicing.batch_size for phase in plan.phases],
    }
    sizes = _known(engine, folder / FOUND, where, len(plan.phases))
    if sizes is None:
        sizes = search(engine, plan)
        text = ", ".join(map(str, sizes))
        if engine.accelerator.is_main_process:
            with writing(folder / FOUND) as path:
                write_atomically(path, json.dumps({**where, "micro_batch_sizes": list(sizes)}))
            append_event(folder, "micro_batches", sizes=text)
        say(f"micro-batches of {text} (the most that fit in memory)")
    return with_sizes(plan, sizes)


def with_sizes(plan: Plan, sizes: tuple[int, ...]) -> Plan:
    """The plan with these micro-batch sizes, one per phase."""
    phases = [
        replace(phase, slicing=replace(phase.slicing, micro_batch_size=size))
        for phase, size in zip(plan.phases, sizes, strict=True)
    ]
    return replace(plan, phases=tuple(phases))


def with_smaller(plan: Plan, progress: Progress, size: int) -> Progress:
    """The progress with micro-batches of ``size`` examples from now on in its phase."""
    number, _, _ = next(plan.remaining(progress.step))
    sizes = list(progress.micro or (phase.slicing.micro_batch_size for phase in plan.phases))
    sizes[number] = size
    return replace(progress, micro=tuple(sizes))


def most_examples(batches: list[Batch]) -> int:
    """Rows of the largest micro-batch: the first axis of its widest input."""
    return max(max((len(t) for t in b.inputs.values() if t.ndim > 1), default=1) for b in batches)


def _pieces(most: int, size: int) -> int:
    return -(-most // size)


def _has_spare(device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    free, total = torch.cuda.mem_get_info(device)  # PyTorch's cache does not count as free
    return free >= _SPARE * total


def _most(engine: Engine, numbers: list[int]) -> np.ndarray:
    """The maximum of each number over processes; called by all of them."""
    accelerator = engine.accelerator
    mine = torch.tensor([numbers], device=accelerator.device)
    gathered: torch.Tensor = accelerator.gather(mine)
    most: np.ndarray = gathered.amax(0).cpu().numpy()
    return most


def _known(
    engine: Engine, path: Path, where: dict[str, object], phases: int
) -> tuple[int, ...] | None:
    """The sizes that an earlier start saved, if the device and the batches are the same."""
    sizes = [0] * phases
    if engine.accelerator.is_main_process and path.is_file():
        saved = json.loads(path.read_text(encoding="utf-8"))
        if {key: saved.get(key) for key in where} == where:
            sizes = saved["micro_batch_sizes"]
    shared: list[int] = reduce(engine.accelerator, torch.tensor(sizes)).tolist()
    return tuple(shared) if all(shared) else None
