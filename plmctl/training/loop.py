"""The training loop, for pretraining and finetuning, any objective, any number of processes.

From top to bottom: the settings (``Plan``), the loop (``train``), the gradient of a step
(``compute_gradient``), synchronising losses, validating and saving, and failed steps.

The loss of a step is, for each loss term, the sum over its targets divided by the number of its
targets in the whole step: all processes and all micro-batches. How a step is cut into micro-batches
therefore cannot change it.

On a GPU, copying a loss to the host waits for the device. There the losses stay on the device until
a step is logged, validated or saved, and the optimizer's kernel skips a step whose loss or gradient
is not finite, and every step after it (``Engine.found_nonfinite``). When the losses are
synchronised, the run stops with the weights from before that step, as if every loss had been.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import torch
import torch.distributed
from torch import Tensor

from plmctl.errors import PlmError, Preempted
from plmctl.examples.keys import fold, stream
from plmctl.models.base import Examples
from plmctl.models.batch import Batch
from plmctl.models.sharding import gathered, is_sharded
from plmctl.optimizers._gpu import Flagged
from plmctl.run.stop import StopAsked, StopRequest
from plmctl.startup import search_garbage_as_usual
from plmctl.training.checkpoint import (
    Checkpoints,
    Saver,
    Watch,
    check_best,
    journal_of,
    restore,
)
from plmctl.training.data import StepLoader
from plmctl.training.distributed import reduce, summed_facts
from plmctl.training.engine import Engine, has_other_bits
from plmctl.training.journal import Computed, Journal, LogInterval, Progress, Update, record
from plmctl.training.judge import COMPILING, COMPUTING, LOADING, SAVING, VALIDATING
from plmctl.training.memory import most_examples, with_smaller
from plmctl.training.out_of_memory import is_out_of_memory, release_memory
from plmctl.training.plan import Plan, Verdict

# --- What a run consists of ---


class Validate(Protocol):
    """Scores the validation examples; called by all processes."""

    def __call__(self, step: int, *, stop: StopRequest | None = None) -> Mapping[str, float]:
        """The metrics after so many steps, by their log keys; empty without validation examples.

        Raises:
            StopAsked: A process was asked to stop meanwhile.
        """


Sample = Callable[[], Mapping[str, object]]
"""Texts of the network as it is now, for samples.jsonl: empty in all processes but the main one.
Called by all of them after a validation."""


@dataclass(frozen=True)
class Run:
    """The parts of a run, each built once."""

    engine: Engine
    plan: Plan
    checkpoints: Checkpoints
    journal: Journal
    validate: Validate
    loader: StepLoader
    sample: Sample | None
    watch: Watch | None
    saver: Saver

    @property
    def decides_on_device(self) -> bool:
        """Whether the device skips steps that are not finite: losses can be synchronised late.

        A spike is compared with the losses before it, and a skipped step with the steps after it:
        both need every loss at once.
        """
        guard = self.plan.guard
        stops = guard.nonfinite == "stop" and guard.spike is None
        return stops and self.engine.found_nonfinite is not None

    def is_over(self, progress: Progress) -> bool:
        """Whether early stopping ends the run."""
        return self.watch is not None and self.watch.over(progress)


# --- The loop ---


def train(
    engine: Engine,
    plan: Plan,
    checkpoints: Checkpoints,
    journal: Journal,
    validate: Validate,
    watch: Watch | None = None,
    sample: Sample | None = None,
) -> Progress:
    """Run a plan to its end, from the newest checkpoint if there is one.

    Args:
        watch: Keeps the weights with the best metric, and may end the run early.

    Raises:
        Preempted: A signal, or ``plan.until``, stopped the run; a checkpoint was saved.
        PlmError: A loss or gradient is not finite; the state before it was saved. Or a micro-batch
            does not fit in memory.
        DataError: Lines of metrics.jsonl that belong to the checkpoint are missing or changed.
    """
    search_garbage_as_usual()
    accelerator, recurrent_state = engine.accelerator, engine.trained().recurrent_state
    progress = resume(engine, checkpoints, journal)
    if watch is not None and watch.folder is not None and accelerator.is_main_process:
        line = check_best(watch.folder, progress)
        if line is not None:
            journal.warn(line)
    if not plan.auto_micro_batch:  # the configured size holds, whatever an earlier start had to do
        progress = replace(progress, micro=())
    loader = StepLoader(plan)
    saver = Saver(
        checkpoints, journal, async_save=plan.async_save, writes=accelerator.is_main_process
    )
    run = Run(engine, plan, checkpoints, journal, validate, loader, sample, watch, saver)
    engine.network.train()
    peers = engine.peers
    compiling = peers.compilations() if engine.unwrapped.compiled else nullcontext()
    with StopRequest() as stop, closing(loader), saver, compiling:
        if 0 < progress.step != progress.validated and plan.due(plan.validate_every, progress.step):
            progress = _validate(run, progress, stop)  # the run was stopped during a validation
        window = LogInterval(progress, loader)
        pending: list[Pending] = []
        started = set[int]()  # phases
        while progress.step < plan.last_step and not run.is_over(progress):
            # The examples are a pure function of (seed, step).
            peers.doing(LOADING, progress.step + 1)
            phase_number, phase, micro_batches = loader.next_step(progress)
            peers.doing(COMPUTING if phase_number in started else COMPILING, progress.step + 1)
            started.add(phase_number)
            learning_rate = plan.learning_rate(progress.step)
            for group in engine.optimizer.param_groups:
                group["lr"] = learning_rate * group.get("scale", 1.0)
            # Seeds dropout, so that a resumed run needs no generator's history.
            key = int(fold(plan.seed, stream("dropout"), progress.step, accelerator.process_index))
            state_before = recurrent_state.marked()
            try:  # count targets, forward, backward, clip
                stopping = stop.received is not None
                examples = phase.examples.at_step(progress.step, plan.steps)
                computed = compute_gradient(
                    engine, examples, micro_batches, plan.clip, key, stopping
                )
            except (RuntimeError, MemoryError) as error:
                if has_other_bits(error):
                    raise PlmError(
                        f"step {progress.step + 1}: {str(error).splitlines()[0]}",
                        "set compute.deterministic=false: the run then resumes from its state, "
                        "but not to the same bits",
                    ) from error
                if not is_out_of_memory(error):
                    raise
                engine.zero_gradients()
                recurrent_state.rewind(state_before)
                if pending:
                    progress, _ = _synchronise(run, pending, applied=True)
                progress = _shrink_micro_batches(run, micro_batches, progress)
                window, pending = LogInterval(progress, loader), []
                continue
            samples, epoch_size = plan.samples(progress.step), len(phase.examples)
            pending.append(Pending(progress, computed, samples, epoch_size, state_before))
            saver.look()
            on_device = run.decides_on_device
            if on_device:
                apply_if_finite(engine, computed)
                if engine.average is not None:
                    engine.average.update(progress.step + 1, engine.found_nonfinite)
            if on_device and not _must_synchronise(plan, pending):
                progress = progress.ahead(computed, samples, epoch_size)
                loss = progress.recent[-1] if progress.recent else None
                journal.tick(progress.step, loss, plan.next_save(progress.step))
                continue
            progress, update = _synchronise(run, pending, applied=on_device)
            pending = []
            if update is None:  # the run went back to a checkpoint
                window = LogInterval(progress, loader)
                continue
            journal.tick(progress.step, update.loss, plan.next_save(progress.step))
            if plan.due(plan.log_every, progress.step):
                speed = window.metrics(progress)
                words = plan.words_at(progress.step)
                several = len(phase.examples.loss_terms) > 1
                done = record(progress, phase_number, update, learning_rate, each_term=several)
                journal.log(done | words | speed)
                loader.warn_of_slow_data(speed["data_wait"], speed["time"], journal.warn)
                progress = replace(progress, seconds=speed["time"])
                window = LogInterval(progress, loader)
            with window.paused():
                is_last = progress.step == plan.steps
                if is_last:  # first: if the validation fails, no step is lost
                    _save(run, progress)
                if plan.due(plan.validate_every, progress.step):
                    progress = _validate(run, progress, stop)
                save_due = plan.save_due(progress.step, progress.best)
                if not is_last and (update.stop or run.is_over(progress) or save_due):
                    _save(run, progress)
            if update.stop:
                raise _preempted(run, progress)
        if run.is_over(progress):
            _, best_step = progress.judged or (0.0, 0)
            journal.event("enough", step=progress.step, best_step=best_step)
        elif progress.step < plan.steps:  # ``plan.until`` was reached
            raise _preempted(run, progress)
        return progress


# --- The gradient of a step over all processes, and its application ---


def compute_gradient(
    engine: Engine,
    examples: Examples,
    micro_batches: list[Batch],
    clip: float | None,
    key: int,
    stopping: bool,
) -> Computed:
    """The clipped gradient of a step, left in the parameters; nothing else is changed.

    On a GPU it does not synchronise: the losses that it returns are still being computed.

    Args:
        micro_batches: Those of this process; another process may have another number of them.
        clip: Largest global norm of the gradient.
        stopping: Whether this process was asked to stop; the same reduction tells all others.

    Raises:
        MemoryError: A micro-batch did not fit; PyTorch has other errors too (``memory.py``).
    """
    accelerator, network = engine.accelerator, engine.network
    # The number of targets of each loss term, over all processes and micro-batches.
    counts = [batch.counts() for batch in micro_batches]
    facts = [sum(count[term] for count in counts) for term in examples.loss_terms]
    facts += [sum(batch.tokens for batch in micro_batches)]
    facts += [sum(batch.padded_tokens for batch in micro_batches), int(stopping)]
    *targets, tokens, padded_tokens, stops = summed_facts(engine.hosts, accelerator, facts)
    num_targets = dict(zip(examples.loss_terms, (max(count, 1) for count in targets), strict=True))
    weights = dict(examples.weights)

    def mean_loss(losses: dict[str, Tensor]) -> Tensor:
        terms = [weights[term] * losses[term] / num_targets[term] for term in examples.loss_terms]
        return sum(terms, torch.zeros(()))

    # Every forward gathers sharded weights from all processes: each must run as many forwards.
    num_forwards = len(micro_batches)
    if is_sharded(network):
        num_forwards = _most_forwards(engine, num_forwards)
    sums = torch.zeros(len(examples.loss_terms), device=accelerator.device)
    for number, batch in enumerate(micro_batches):
        engine.peers.progress()
        is_last = number == len(micro_batches) - 1
        with nullcontext() if is_last else accelerator.no_sync(network):
            torch.manual_seed(int(fold(key, number)) >> 1)  # PyTorch takes 63 bits on every device
            losses = examples.loss(network, engine.moved(batch))
            # DDP averages gradients over processes; undo it, since num_targets is global already.
            accelerator.backward(accelerator.num_processes * mean_loss(losses))
        sums += torch.stack([losses[term].detach().float() for term in examples.loss_terms])
    for _ in range(num_forwards - len(micro_batches)):
        losses = examples.loss(network, micro_batches[-1].to(accelerator.device))
        accelerator.backward(0 * mean_loss(losses))
    norm = accelerator.clip_grad_norm_(network.parameters(), math.inf if clip is None else clip)
    values = torch.cat([reduce(accelerator, sums), gathered(norm).reshape(1)])
    return Computed(values, num_targets, weights, tokens, padded_tokens, stops > 0)


def _most_forwards(engine: Engine, mine: int) -> int:
    """The largest number of forwards of any process; called before the first forward."""
    each = [0] * engine.accelerator.num_processes
    each[engine.accelerator.process_index] = mine
    return max(summed_facts(engine.hosts, engine.accelerator, each))


def apply(engine: Engine) -> None:
    """Update the weights by the computed gradient."""
    engine.optimizer.step()
    engine.zero_gradients()


def apply_if_finite(engine: Engine, computed: Computed) -> None:
    """Update the weights; the device skips a step that is not finite, and all later ones."""
    assert engine.found_nonfinite is not None
    engine.found_nonfinite.logical_or_(~computed.values.isfinite().all())
    apply(engine)


def take_step(
    engine: Engine, examples: Examples, batches: list[Batch], clip: float | None, key: int
) -> Update:
    """One step outside a run, whatever its gradient is: for measurements."""
    done = compute_gradient(engine, examples, batches, clip, key, stopping=False).read()
    apply(engine)
    return done


# --- Synchronising losses: after each step on a CPU, when they are needed on a GPU ---


_MOST_PENDING = 32  # steps that are lost after one that is not finite; their recurrent states


@dataclass(frozen=True)
class Pending:
    """A step whose losses are not synchronised yet.

    Attributes:
        before: The progress before it, without losses that are pending too.
        state_before: The recurrent state before it.
    """

    before: Progress
    computed: Computed
    samples: int
    epoch_size: int
    state_before: Tensor | None


def _must_synchronise(plan: Plan, pending: list[Pending]) -> bool:
    """Whether the losses are needed now: the same in all processes."""
    last = pending[-1]
    if last.computed.stop or len(pending) == _MOST_PENDING:
        return True
    done = last.before.step + 1
    logs, validates = plan.due(plan.log_every, done), plan.due(plan.validate_every, done)
    return logs or validates or plan.save_due(done, last.before.best)


def _synchronise(
    run: Run, pending: list[Pending], *, applied: bool
) -> tuple[Progress, Update | None]:
    """Copy the losses of steps to the host, and decide about each step in order.

    Args:
        applied: Whether their updates were made; otherwise there is one step, and it is applied
            here if it is good.

    Returns:
        The progress after the last step, and that step's update; None after a rollback.

    Raises:
        PlmError: A step failed and the run stops; the state before it was saved.
    """
    engine = run.engine
    values = torch.cat([step.computed.values for step in pending]).tolist()  # one copy
    progress = pending[0].before
    for number, step in enumerate(pending):
        size = len(step.computed.values)
        update, values = step.computed.update(values[:size]), values[size:]
        scaled = engine.accelerator.scaler is not None
        verdict, reason = run.plan.guard.verdict(update, progress, scaled=scaled)
        if verdict != "good":
            optimizer = engine.trained().optimizer
            if applied and isinstance(optimizer, Flagged):
                optimizer.uncount(len(pending) - number)
            engine.zero_gradients()
            engine.trained().recurrent_state.rewind(step.state_before)
            _report_failure(run, progress, update, verdict, reason)
            if scaled:  # it has unscaled this gradient, and may not again before it is told
                engine.accelerator.scaler.update()
            if verdict == "rollback":
                return _roll_back(run, progress), None
            progress = progress.without(update, step.samples, step.epoch_size)
            break
        progress = progress.after(update, step.samples, step.epoch_size)
    if not applied:
        if verdict == "good":
            apply(engine)
        if engine.average is not None:
            engine.average.update(progress.step)
    return progress, update


# --- Validating, resuming, saving ---


def _validate(run: Run, progress: Progress, stop: StopRequest) -> Progress:
    """Validate, and return the progress.

    Raises:
        Preempted: A process was asked to stop meanwhile; a checkpoint was saved.
    """
    try:
        run.engine.peers.doing(VALIDATING, progress.step)
        with run.engine.averaged(progress.step):
            scores = run.validate(progress.step, stop=stop)
            samples = {} if run.sample is None else run.sample()
    except StopAsked:
        if progress.step < run.plan.steps:  # the last step is saved before it is validated
            _save(run, progress)
        raise _preempted(run, progress) from None
    finally:
        run.engine.network.train()
    phase = run.plan.phase_of(progress.step)
    if scores:
        run.journal.log({"step": progress.step, "phase": phase, **scores})
    if samples:
        run.journal.sample(progress.step, samples)
    progress = progress.scored(scores.get("valid/loss"), run.plan.stretch(phase).first)
    if run.watch is None:
        return progress
    progress = run.watch.after(progress, scores)
    is_best = progress.judged is not None and progress.judged[1] == progress.step
    network, is_main = run.engine.trained().network, run.engine.accelerator.is_main_process
    if is_best and (is_main or is_sharded(network)):
        kept = run.watch.keep(network, progress.step, writes=is_main)
        progress = replace(progress, kept=kept)
    return progress


def resume(engine: Engine, checkpoints: Checkpoints, journal: Journal) -> Progress:
    """Load the newest valid checkpoint into the engine, if there is one."""
    newest, damaged = checkpoints.newest()
    for fault in damaged:
        journal.event("damaged", checkpoint=fault)
        journal.warn(f"{fault}: skipped; its files were left in place")
    if newest is None:
        journal.begin(0)
        journal.event("started")
        return Progress()
    mark = journal_of(newest)
    progress = Progress.restored(restore(newest, engine.trained()))
    journal.begin(progress.step, mark, validated=progress.validated)
    if mark is None:
        journal.warn(f"{newest}: from an older version: metrics.jsonl continues unverified")
    if engine.accelerator.is_main_process:
        checkpoints.tidy(progress.step, progress.best)
    journal.event("resumed", step=progress.step, checkpoint=newest.name)
    return progress


def _save(run: Run, progress: Progress) -> None:
    """Save from the main process, with the recurrent state and the weights of all processes."""
    run.engine.peers.doing(SAVING, progress.step)
    trained = run.engine.trained()
    trained.recurrent_state.share(lambda rows: reduce(run.engine.accelerator, rows))
    if run.engine.accelerator.is_main_process or is_sharded(trained.network):
        seen = run.plan.words_at(progress.step)
        run.saver.save(progress.step, trained, progress.saved() | seen)


def _wait_for_save(run: Run) -> None:
    """Wait in all processes until the last checkpoint is on the disk."""
    run.engine.peers.doing(SAVING)
    run.saver.wait()
    run.engine.accelerator.wait_for_everyone()


def _preempted(run: Run, progress: Progress) -> Preempted:
    """The error that ends a stopped run, once all processes are done: a launcher kills others."""
    _wait_for_save(run)
    return Preempted(
        f"stopped after step {progress.step:,} of {run.plan.steps:,}, checkpoint saved",
        "run the same command again to resume",
    )


# --- Failed steps: out of memory, losses that are not finite, spikes ---


_OUTCOMES: dict[Verdict, tuple[str, str]] = {
    "stop": ("diverged", "stopping before it"),
    "skip": ("skipped", "the update is skipped"),
    "rollback": ("rolled_back", "continuing from the last checkpoint with the data after the step"),
}


def _shrink_micro_batches(run: Run, batches: list[Batch], progress: Progress) -> Progress:
    """Continue with micro-batches of half the size after a step that did not fit in memory.

    Raises:
        PlmError: One example does not fit; or the config sets the size; or there are several
            processes, which would have to agree in the middle of a step.
    """
    release_memory()
    message, size = f"step {progress.step + 1}: out of memory", most_examples(batches) // 2
    if size == 0:
        raise PlmError(
            f"{message}, with one example at a time",
            "use shorter sequences, a smaller network, or a device with more memory",
        )
    if not run.plan.auto_micro_batch or run.engine.accelerator.num_processes > 1:
        hint = f"run the same command again with train.micro_batch_size={size}"
        raise PlmError(message, f"{hint}: it resumes from the last checkpoint")
    run.journal.event("smaller", step=progress.step, micro_batch_size=size)
    run.journal.warn(f"{message}; continuing with micro-batches of {size}")
    return with_smaller(run.plan, progress, size)


def _report_failure(
    run: Run, progress: Progress, done: Update, verdict: Verdict, reason: str
) -> None:
    """Report a failed step and its examples.

    Raises:
        PlmError: The verdict is to stop; the state before the step was saved.
    """
    number = progress.step + 1
    file = f"divergence/step-{number:06d}.json"
    epochs, samples = run.loader.examples(progress).tolist()
    facts = {"step": number, "verdict": verdict, "reason": reason}
    metrics = {"loss": done.loss, "losses": done.losses, "grad_norm": done.grad_norm}
    run.journal.keep(file, {**facts, **metrics, "epochs": epochs, "samples": samples})
    event, outcome = _OUTCOMES[verdict]
    run.journal.event(event, step=number, reason=reason, loss=done.loss, batch=file)
    run.journal.warn(f"step {number:,}: {reason}; {outcome}")
    if verdict == "stop":
        _save(run, progress)
        _wait_for_save(run)
        key = "nonfinite" if "finite" in reason else "on_spike"
        raise PlmError(
            f"step {number}: {reason}; the state before it is saved",
            f"see its examples with `plmctl preview CONFIG --batch {number}`; resume without them "
            f"by the same command with divergence.{key}=skip, or start a new run with a lower "
            "optim.lr or a longer schedule.warmup",
        )


def _roll_back(run: Run, progress: Progress) -> Progress:
    """Load the last scheduled checkpoint, and skip the data up to this step."""
    _wait_for_save(run)
    every = run.plan.save_every
    folder, _ = run.checkpoints.newest(lambda step: step <= progress.step and not step % every)
    if folder is None:
        raise PlmError(
            f"step {progress.step + 1}: no checkpoint to go back to",
            "lower checkpoint.every, or set divergence.on_spike=skip",
        )
    before = Progress.restored(restore(folder, run.engine.trained()))
    skipped = sum(map(run.plan.samples, range(before.step, progress.step + 1)))
    if run.engine.accelerator.is_main_process:
        run.checkpoints.abandon(before.step)
    run.journal.begin(before.step, journal_of(folder), validated=before.validated)
    return replace(
        before,
        shift=progress.shift + skipped,
        rollbacks=progress.rollbacks + 1,
        micro=progress.micro,
        judged=progress.judged,  # those weights are kept, and no earlier ones
        kept=progress.kept,
    )
