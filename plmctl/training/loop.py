"""The loop: one for pretraining and finetuning, any objective, any number of processes.

The loss of a step is, for each part, the sum over its targets divided by the count of its targets
over the whole step: all processes and all micro-batches. How the step was cut up cannot change it.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.optim import Optimizer

from plmctl.errors import PlmError, Preempted
from plmctl.modeling.batch import Batch
from plmctl.modeling.network import Network
from plmctl.shaping.keys import fold, stream
from plmctl.training.best import Watch
from plmctl.training.checkpoint import Checkpoints, Trained, restore
from plmctl.training.journal import Journal
from plmctl.training.loader import Slicing, StepBatches, training_batches
from plmctl.training.step import Step, weight
from plmctl.training.stop import StopRequest
from plmctl.training.telemetry import DataClock, Progress, Update, Window

Validate = Callable[[], Mapping[str, float]]


@dataclass(frozen=True)
class Engine:
    """What computes: Accelerate, and the network and optimizer that it has prepared."""

    accelerator: Accelerator
    network: Network
    optimizer: Optimizer

    def trained(self) -> Trained:
        """What a checkpoint is about: the same objects without their wrappers."""
        return Trained(
            self.accelerator.unwrap_model(self.network).model,
            getattr(self.optimizer, "optimizer", self.optimizer),
            self.accelerator.scaler,
            self.accelerator.unwrap_model(self.network).carried,
        )


@dataclass(frozen=True)
class Phase:
    """Steps that share a sequence length."""

    step: Step
    steps: int
    slicing: Slicing


@dataclass(frozen=True)
class Plan:
    """What is to be done.

    Attributes:
        phases: In order.
        seed: Decides the order of the examples and every draw of dropout.
        learning_rate: The rate of an update, by its number from 0.
        clip: Largest global norm of the gradient, or None.
        log_every: In steps, as the next two; the last step always does all three.
        validate_every: None: at the end only.
        save_every: Between checkpoints.
        workers: Processes that make batches ahead; with 0 the loop makes them itself.
    """

    phases: tuple[Phase, ...]
    seed: int
    learning_rate: Callable[[int], float]
    clip: float | None
    log_every: int
    validate_every: int | None
    save_every: int
    workers: int = 0

    @property
    def steps(self) -> int:
        """Updates in the whole run."""
        return sum(phase.steps for phase in self.phases)

    def due(self, every: int | None, done: int) -> bool:
        """Whether something is due after ``done`` updates."""
        return done == self.steps or (every is not None and done % every == 0)

    def samples(self, step: int) -> int:
        """Samples of an update, by its number from 0."""
        _, phase, within = next(self.remaining(step))
        return phase.slicing.sizes.of(within)

    def remaining(self, done: int) -> Iterator[tuple[int, Phase, int]]:
        """Each phase that is not over: its number, itself, and the step within it to begin with."""
        before = 0
        for number, phase in enumerate(self.phases):
            if done < before + phase.steps:
                yield number, phase, max(0, done - before)
            before += phase.steps


def train(
    engine: Engine,
    plan: Plan,
    checkpoints: Checkpoints,
    journal: Journal,
    validate: Validate,
    watch: Watch | None = None,
) -> Progress:
    """Run a plan to its end, from the newest checkpoint if there is one.

    Args:
        engine: Network and optimizer.
        plan: What is to be done.
        checkpoints: Of the run.
        journal: Its log.
        validate: Gives the scores that are logged.
        watch: Keeps the best weights by these scores, and may end the run before its plan does.

    Raises:
        Preempted: A signal asked to stop; a checkpoint was saved.
        PlmError: The gradient is not finite.
    """
    progress = resume(engine, checkpoints, journal)
    window = Window(progress, data := DataClock())
    over = watch is not None and watch.over(progress)
    first = plan.steps if over else progress.step  # it had ended, and then something failed
    engine.network.train()
    with StopRequest() as stop:
        for number, phase, batches in data.timed(_steps(engine, plan, first)):
            _set_rate(engine.optimizer, rate := plan.learning_rate(progress.step))
            rank = engine.accelerator.process_index
            key = int(fold(plan.seed, stream("dropout"), progress.step, rank))
            done = update(engine, phase.step, batches, plan.clip, key, stop.received is not None)
            progress = progress.after(done, plan.samples(progress.step), len(phase.step))
            journal.tick(progress.step, done.loss)
            if not _finite(done, engine.accelerator):
                raise _diverged(progress.step, done)
            if plan.due(plan.log_every, progress.step):
                figures = window.figures(progress)
                journal.log(_record(progress, number, done, rate) | figures)
                progress = replace(progress, seconds=figures["time"])
                window = Window(progress, data)
            if plan.due(plan.validate_every, progress.step):
                with window.paused():
                    progress = _validated(engine, progress, journal, validate, watch)
                engine.network.train()
            over = watch is not None and watch.over(progress)
            if done.stop or over or plan.due(plan.save_every, progress.step):
                with window.paused():
                    save(engine, checkpoints, journal, progress)
            if done.stop:
                raise Preempted(
                    f"stopped after step {progress.step:,} of {plan.steps:,}, checkpoint saved",
                    "run the same command again to go on",
                )
            if over:
                journal.event("enough", step=progress.step, best_step=progress.best_step)
                break
    return progress


def _validated(
    engine: Engine, progress: Progress, journal: Journal, validate: Validate, watch: Watch | None
) -> Progress:
    """The progress after a validation, whose scores are logged; the best weights are kept."""
    scores = validate()
    if scores:
        journal.log({"step": progress.step, **scores})
    if watch is None:
        return progress
    progress = watch.after(progress, scores)
    if progress.best_step == progress.step and engine.accelerator.is_main_process:
        watch.keep(engine.trained().network, progress.step)
    return progress


def update(
    engine: Engine, step: Step, batches: list[Batch], clip: float | None, key: int, stop: bool
) -> Update:
    """One update of the weights from the micro-batches of this process.

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
    *targets, tokens, cells, stops = _reduce(accelerator, torch.tensor(tally)).tolist()
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
    engine.optimizer.step()
    engine.optimizer.zero_grad()
    # The one point where the loop waits for the device.
    *sums, grad_norm = torch.cat([_reduce(accelerator, summed), norm.reshape(1)]).tolist()
    means = {part: total / divisor[part] for part, total in zip(step.parts, sums, strict=True)}
    loss = sum(weights[part] * mean for part, mean in means.items())
    return Update(means, grad_norm, tokens, cells, stops > 0, loss)


def resume(engine: Engine, checkpoints: Checkpoints, journal: Journal) -> Progress:
    """The state of the newest valid checkpoint, put into the engine; else that of a new run."""
    newest, damaged = checkpoints.newest()
    for fault in damaged:
        journal.event("damaged", checkpoint=fault)
    if newest is None:
        journal.begin(0)
        journal.event("started")
        return Progress()
    progress = Progress.restored(restore(newest, engine.trained()))
    journal.begin(progress.step)
    journal.event("resumed", step=progress.step, checkpoint=newest.name)
    return progress


def save(engine: Engine, checkpoints: Checkpoints, journal: Journal, progress: Progress) -> None:
    """Write a checkpoint from the main process; every process has the same state."""
    engine.trained().carried.share(lambda rows: _reduce(engine.accelerator, rows))
    if engine.accelerator.is_main_process:
        folder = checkpoints.save(progress.step, engine.trained(), progress.saved())
        journal.event("saved", step=progress.step, checkpoint=folder.name)


def _steps(engine: Engine, plan: Plan, done: int) -> Iterator[tuple[int, Phase, list[Batch]]]:
    """The micro-batches of every step that is left, with the phase and its number."""
    for number, phase, first in plan.remaining(done):
        source = StepBatches(phase.step, phase.slicing, int(fold(plan.seed, number)))
        pin = engine.accelerator.device.type == "cuda"
        for batches in training_batches(source, first, phase.steps, workers=plan.workers, pin=pin):
            yield number, phase, batches


def _reduce(accelerator: Accelerator, values: Tensor) -> Tensor:
    """The sum over processes; nothing to do, and no copy, with one."""
    if accelerator.num_processes == 1:
        return values
    reduced: Tensor = accelerator.reduce(values.to(accelerator.device), reduction="sum")
    return reduced


def _set_rate(optimizer: Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("scale", 1.0)


def _record(progress: Progress, phase: int, done: Update, rate: float) -> dict[str, float]:
    """The log keys that tell of learning (DESIGN: metrics.jsonl)."""
    parts = {f"loss/{part}": loss for part, loss in done.losses.items()}
    return {
        "step": progress.step,
        "phase": phase,
        "epoch": round(progress.epoch, 4),
        "tokens": progress.tokens,
        "loss": done.loss,
        **(parts if len(parts) > 1 else {}),
        "lr": rate,
        "grad_norm": done.grad_norm,
    }


def _finite(done: Update, accelerator: Accelerator) -> bool:
    """fp16 may overflow a gradient: its scaler skips that update and halves the scale."""
    return math.isfinite(done.loss) and (
        math.isfinite(done.grad_norm) or accelerator.scaler is not None
    )


def _diverged(step: int, done: Update) -> PlmError:
    return PlmError(
        f"step {step}: the gradient is not finite (loss {done.loss:.4g})",
        "lower optim.lr or lengthen schedule.warmup; the last checkpoint is kept",
    )
