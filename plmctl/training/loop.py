"""The training loop, for pretraining and finetuning, any objective, any number of processes.

Read it from top to bottom: what is to be done (``Plan``), the loop (``train``), the gradient of a
step (``compute_gradient``), what follows it, and what happens when a step fails.

The loss of a step is, for each loss term, the sum over its targets divided by the number of its
targets in the whole step: all processes and all micro-batches. How a step is cut into micro-batches
therefore cannot change it.

On a GPU, reading a loss waits for the device. There the losses stay on the device until they are
logged, validated or saved, and the optimizer's kernel leaves out a step whose loss or gradient is
not finite, and every step after it (``Engine.found_nonfinite``). When the host reads the losses,
the run stops with the weights from before that step, as if each step had been read at once.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import torch
import torch.distributed
from torch import Tensor

from plmctl.errors import PlmError, Preempted
from plmctl.examples.keys import fold, stream
from plmctl.models.base import Examples
from plmctl.models.batch import Batch
from plmctl.models.sharding import gathered
from plmctl.run.stop import StopAsked, StopRequest
from plmctl.training.checkpoint import Checkpoints, Saver, Watch, journal_of, restore
from plmctl.training.data import Feed, Phase
from plmctl.training.distributed import is_sharded, reduce, summed_facts
from plmctl.training.engine import Engine
from plmctl.training.journal import Computed, Journal, Progress, Update, Window, record
from plmctl.training.memory import is_out_of_memory, most_examples, release_memory, smaller

# --- What is to be done, and the rule by which steps are judged ---
#
# The verdict on a step depends on the step and on the losses before it, which a checkpoint keeps: a
# resumed run decides as the uninterrupted one does.


Verdict = Literal["good", "stop", "skip", "rollback"]

_ENOUGH = 16  # losses before anything is called a spike


@dataclass(frozen=True)
class Guard:
    """What is done about a step that went wrong.

    Attributes:
        nonfinite: Of a loss or gradient that is not finite.
        spike: A loss over this many times the median of the last ones is a spike; None: none is.
        on_spike: What is done about one.
        patience: Steps left out in a row, or rollbacks in all, after which the run stops.
    """

    nonfinite: Literal["stop", "skip"] = "stop"
    spike: float | None = None
    on_spike: Literal["stop", "skip", "rollback"] = "rollback"
    patience: int = 10

    def verdict(self, done: Update, progress: Progress, *, scaled: bool) -> tuple[Verdict, str]:
        """What to do with a step whose gradient is there and not yet applied, and why.

        Args:
            done: The step.
            progress: Before it.
            scaled: fp16: an infinite gradient is the scaler's business, which skips the update and
                halves its scale.
        """
        reason, verdict = "", "good"
        if not math.isfinite(done.loss):
            reason, verdict = "the loss is not finite", self.nonfinite
        elif not math.isfinite(done.grad_norm) and not scaled:
            reason, verdict = "the gradient is not finite", self.nonfinite
        elif self._is_spike(done.loss, progress.recent):
            median = statistics.median(progress.recent)
            reason = f"the loss is {done.loss:.4g}, its median of late {median:.4g}"
            verdict = self.on_spike
        if verdict == "skip" and progress.skipped >= self.patience:
            return "stop", f"{reason}, after {progress.skipped} steps left out in a row"
        if verdict == "rollback" and progress.rollbacks >= self.patience:
            return "stop", f"{reason}, after {progress.rollbacks} rollbacks"
        return verdict, reason  # type: ignore[return-value]  # a member of either literal

    def _is_spike(self, loss: float, recent: tuple[float, ...]) -> bool:
        if self.spike is None or len(recent) < _ENOUGH:
            return False
        return loss > self.spike * statistics.median(recent)


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
        until: Save and stop after this step; None: go on to the end.
        guard: What is done about a step that went wrong.
        save_best: Save as well where the validation loss is the lowest so far.
        background: Whether the loop goes on while a checkpoint is written.
        elastic: Whether micro-batches are made smaller where they do not fit in memory.
    """

    phases: tuple[Phase, ...]
    seed: int
    learning_rate: Callable[[int], float]
    clip: float | None
    log_every: int
    validate_every: int | None
    save_every: int
    workers: int = 0
    until: int | None = None
    guard: Guard = field(default_factory=Guard)
    save_best: bool = False
    background: bool = False
    elastic: bool = False

    @property
    def last(self) -> int:
        """The step after which this start of the run ends."""
        return self.steps if self.until is None else min(self.until, self.steps)

    @property
    def steps(self) -> int:
        """Updates in the whole run."""
        return sum(phase.steps for phase in self.phases)

    def due(self, every: int | None, done: int) -> bool:
        """Whether something is due after ``done`` updates."""
        return done == self.steps or (every is not None and done % every == 0)

    def save_due(self, done: int, best: tuple[float, int] | None) -> bool:
        """Whether a checkpoint is due after ``done`` updates, the best validation loss known."""
        improved = self.save_best and best is not None and best[1] == done
        return improved or done == self.last or self.due(self.save_every, done)

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


# --- What a run consists of ---


class Validate(Protocol):
    """Scores the held-out examples; of all processes, or of none."""

    def __call__(self, *, stop: StopRequest | None = None) -> Mapping[str, float]:
        """The log keys of a validation, empty where there is nothing to validate on.

        Raises:
            StopAsked: Some process was asked to stop meanwhile.
        """


@dataclass(frozen=True)
class Run:
    """What a run consists of."""

    engine: Engine
    plan: Plan
    checkpoints: Checkpoints
    journal: Journal
    validate: Validate
    feed: Feed
    watch: Watch | None
    saver: Saver

    @property
    def decides_on_device(self) -> bool:
        """Whether the device itself leaves out what is not finite, so that losses can be read late.

        A spike is measured against the losses before it, and after a step that is skipped the next
        ones count: both need every loss.
        """
        guard = self.plan.guard
        stops = guard.nonfinite == "stop" and guard.spike is None
        return stops and self.engine.found_nonfinite is not None

    def over(self, progress: Progress) -> bool:
        """Whether it has waited long enough for better scores."""
        return self.watch is not None and self.watch.over(progress)


# --- The loop ---


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
        Preempted: A signal, or ``plan.until``, asked to stop; a checkpoint was saved.
        PlmError: A loss or gradient is not finite; the state before it was saved. Or a micro-batch
            does not fit in memory.
        DataError: Lines of metrics.jsonl that belong to the checkpoint are missing or changed.
    """
    accelerator, carried = engine.accelerator, engine.trained().carried
    progress = resume(engine, checkpoints, journal)
    if not plan.elastic:  # the size was given: what an earlier start had to do does not matter
        progress = replace(progress, micro=())
    feed = Feed(plan, pin=accelerator.device.type == "cuda")
    saver = Saver(
        checkpoints, journal, background=plan.background, writes=accelerator.is_main_process
    )
    run = Run(engine, plan, checkpoints, journal, validate, feed, watch, saver)
    engine.network.train()
    with StopRequest() as stop, feed.watched(), saver:
        if _owes_validation(plan, progress):  # the run was stopped in the middle of one
            progress = _validate(run, progress, stop)
        window = Window(progress, feed)
        unread: list[Unread] = []
        while progress.step < plan.last and not run.over(progress):
            number, phase, batches = feed.take(progress)  # a pure function of (seed, step)
            learning_rate = plan.learning_rate(progress.step)
            for group in engine.optimizer.param_groups:
                group["lr"] = learning_rate * group.get("scale", 1.0)
            # Seeds dropout, so that a resumed run needs no generator's history.
            key = int(fold(plan.seed, stream("dropout"), progress.step, accelerator.process_index))
            mark = carried.marked()
            try:
                stopping = stop.received is not None
                computed = compute_gradient(
                    engine, phase.examples, batches, plan.clip, key, stopping
                )
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                engine.optimizer.zero_grad()
                carried.rewind(mark)
                progress, _ = _read(run, unread, applied=True) if unread else (progress, None)
                progress = _shrink_micro_batches(run, batches, progress)
                window, unread = Window(progress, feed), []
                continue
            samples, epoch_size = plan.samples(progress.step), len(phase.examples)
            unread.append(Unread(progress, computed, samples, epoch_size, mark))
            saver.look()
            on_device = run.decides_on_device
            if on_device:
                apply_if_finite(engine, computed)
            if on_device and not _must_read(plan, unread):
                progress = progress.ahead(computed, samples, epoch_size)
                journal.tick(progress.step, progress.recent[-1] if progress.recent else None)
                continue
            progress, update = _read(run, unread, applied=on_device)
            unread = []
            if update is None:  # the run went back to a checkpoint
                window = Window(progress, feed)
                continue
            journal.tick(progress.step, update.loss)
            if plan.due(plan.log_every, progress.step):
                speed = window.figures(progress)
                journal.log(record(progress, number, update, learning_rate) | speed)
                feed.advise(speed["data_wait"], journal.warn)
                progress = replace(progress, seconds=speed["time"])
                window = Window(progress, feed)
            with window.paused():
                is_last = progress.step == plan.steps
                if is_last:  # first: if the validation fails, no step is lost
                    _save(run, progress)
                if plan.due(plan.validate_every, progress.step):
                    progress = _validate(run, progress, stop)
                save_due = plan.save_due(progress.step, progress.best)
                if not is_last and (update.stop or run.over(progress) or save_due):
                    _save(run, progress)
            if update.stop:
                raise _preempted(run, progress)
        if run.over(progress):
            _, best_step = progress.judged or (0.0, 0)
            journal.event("enough", step=progress.step, best_step=best_step)
        elif progress.step < plan.steps:  # ``plan.until`` asked to stop
            raise _preempted(run, progress)
        return progress


# --- The gradient of a step over all processes, and its application ---


def compute_gradient(
    engine: Engine,
    examples: Examples,
    batches: list[Batch],
    clip: float | None,
    key: int,
    stopping: bool,
) -> Computed:
    """The clipped gradient of a step, left in the parameters; nothing else is changed.

    On a GPU it waits for no kernel: the losses that it returns are still being computed.

    Args:
        engine: Network and optimizer.
        examples: Computes the summed losses.
        batches: Micro-batches; another process may have another number of them.
        clip: Largest global norm of the gradient.
        key: Seeds dropout.
        stopping: Whether this process was asked to stop; all learn of it in the same reduction.

    Raises:
        MemoryError: A micro-batch did not fit, or as PyTorch reports it (``memory.py``).
    """
    accelerator, network = engine.accelerator, engine.network
    # The number of targets of each loss term, over all processes and micro-batches.
    counts = [batch.counts() for batch in batches]
    facts = [sum(count[term] for count in counts) for term in examples.loss_terms]
    facts += [sum(b.tokens for b in batches), sum(b.cells for b in batches), int(stopping)]
    *targets, tokens, cells, stops = summed_facts(engine, facts)
    num_targets = dict(zip(examples.loss_terms, (max(count, 1) for count in targets), strict=True))
    weights = dict(examples.weights)

    def mean_loss(losses: dict[str, Tensor]) -> Tensor:
        terms = [weights[term] * losses[term] / num_targets[term] for term in examples.loss_terms]
        return sum(terms, torch.zeros(()))

    # All processes bring the weights of a sharded layer together: each needs as many forwards.
    num_forwards = len(batches)
    if is_sharded(network):
        num_forwards = _most_forwards(engine, num_forwards)
    sums = torch.zeros(len(examples.loss_terms), device=accelerator.device)
    for number, batch in enumerate(batches):
        is_last = number == len(batches) - 1
        with nullcontext() if is_last else accelerator.no_sync(network):
            torch.manual_seed(int(fold(key, number)) >> 1)  # PyTorch takes 63 bits on every device
            losses = examples.loss(network, batch.to(accelerator.device))
            # Gradients are averaged over processes: undo that, the divisor is global already.
            accelerator.backward(accelerator.num_processes * mean_loss(losses))
        sums += torch.stack([losses[term].detach().float() for term in examples.loss_terms])
    for _ in range(num_forwards - len(batches)):
        losses = examples.loss(network, batches[-1].to(accelerator.device))
        accelerator.backward(0 * mean_loss(losses))
    norm = accelerator.clip_grad_norm_(network.parameters(), math.inf if clip is None else clip)
    figures = torch.cat([reduce(accelerator, sums), gathered(norm).reshape(1)])
    return Computed(figures, num_targets, weights, tokens, cells, stops > 0)


def _most_forwards(engine: Engine, mine: int) -> int:
    """The largest number of forwards of any process; to be called before the first one."""
    each = [0] * engine.accelerator.num_processes
    each[engine.accelerator.process_index] = mine
    return max(summed_facts(engine, each))


def apply(engine: Engine) -> None:
    """Step the optimizer by the gradient that is there."""
    engine.optimizer.step()
    engine.optimizer.zero_grad()


def apply_if_finite(engine: Engine, computed: Computed) -> None:
    """As ``apply``, but the device leaves out a step that is not finite, and all later ones."""
    assert engine.found_nonfinite is not None
    engine.found_nonfinite.logical_or_(~computed.figures.isfinite().all())
    apply(engine)


def take_step(
    engine: Engine, examples: Examples, batches: list[Batch], clip: float | None, key: int
) -> Update:
    """One step outside a run, whatever its gradient is: for measurements."""
    done = compute_gradient(engine, examples, batches, clip, key, stopping=False).read()
    apply(engine)
    return done


# --- Reading losses: at once on a CPU, when they are needed on a GPU ---


_MOST_UNREAD = 32  # steps in vain after one that is not finite, and marks of carried rows


@dataclass(frozen=True)
class Unread:
    """A step whose losses are not read yet.

    Attributes:
        before: The progress before it; if that is unread as well, without its loss.
        computed: The step.
        samples: Its examples.
        epoch_size: Examples in an epoch.
        mark: The state of a recurrent network's rows before it.
    """

    before: Progress
    computed: Computed
    samples: int
    epoch_size: int
    mark: Tensor | None


def _must_read(plan: Plan, unread: list[Unread]) -> bool:
    """Whether the losses are needed now. The same in all processes."""
    last = unread[-1]
    if last.computed.stop or len(unread) == _MOST_UNREAD:
        return True
    done = last.before.step + 1
    logs, validates = plan.due(plan.log_every, done), plan.due(plan.validate_every, done)
    return logs or validates or plan.save_due(done, last.before.best)


def _read(run: Run, unread: list[Unread], *, applied: bool) -> tuple[Progress, Update | None]:
    """Read the losses of steps, and decide about each in order.

    Args:
        run: What the run consists of.
        unread: The steps.
        applied: Whether their updates were made; otherwise there is one step, and its update is
            made here if it is good.

    Returns:
        The progress after the last step, and what that step did; None if the run went back to a
        checkpoint.

    Raises:
        PlmError: A step went wrong and the run stops; the state before it was saved.
    """
    engine = run.engine
    values = torch.cat([step.computed.figures for step in unread]).tolist()  # one copy
    progress = unread[0].before
    for step in unread:
        size = len(step.computed.figures)
        update, values = step.computed.update(values[:size]), values[size:]
        scaled = engine.accelerator.scaler is not None
        verdict, reason = run.plan.guard.verdict(update, progress, scaled=scaled)
        if verdict != "good":
            engine.optimizer.zero_grad()
            engine.trained().carried.rewind(step.mark)
            _report_failure(run, progress, update, verdict, reason)
            if verdict == "rollback":
                return _roll_back(run, progress), None
            return progress.without(update, step.samples, step.epoch_size), update
        progress = progress.after(update, step.samples, step.epoch_size)
    if not applied:
        apply(engine)
    return progress, update


# --- Validating, resuming, saving ---


def _owes_validation(plan: Plan, progress: Progress) -> bool:
    return 0 < progress.step != progress.validated and plan.due(plan.validate_every, progress.step)


def _validate(run: Run, progress: Progress, stop: StopRequest) -> Progress:
    """The progress after a validation.

    Raises:
        Preempted: A process was asked to stop meanwhile; a checkpoint was saved.
    """
    try:
        scores = run.validate(stop=stop)
    except StopAsked:
        if progress.step < run.plan.steps:  # the last step is saved before it is validated
            _save(run, progress)
        raise _preempted(run, progress) from None
    finally:
        run.engine.network.train()
    if scores:
        run.journal.log({"step": progress.step, **scores})
    progress = progress.scored(scores.get("valid/loss"))
    if run.watch is None:
        return progress
    progress = run.watch.after(progress, scores)
    is_best = progress.judged is not None and progress.judged[1] == progress.step
    if is_best and run.engine.accelerator.is_main_process:
        run.watch.keep(run.engine.trained().network, progress.step)
    return progress


def resume(engine: Engine, checkpoints: Checkpoints, journal: Journal) -> Progress:
    """The state of the newest valid checkpoint, put into the engine; else that of a new run."""
    newest, damaged = checkpoints.newest()
    for fault in damaged:
        journal.event("damaged", checkpoint=fault)
        journal.warn(f"{fault}: passed over, and left where it is")
    if newest is None:
        journal.begin(0)
        journal.event("started")
        return Progress()
    mark = journal_of(newest)
    progress = Progress.restored(restore(newest, engine.trained()))
    journal.begin(progress.step, mark)
    if mark is None:
        journal.warn(f"{newest}: made by an older version: metrics.jsonl is continued unchecked")
    if engine.accelerator.is_main_process:
        checkpoints.tidy(progress.step, progress.best)
    journal.event("resumed", step=progress.step, checkpoint=newest.name)
    return progress


def _save(run: Run, progress: Progress) -> None:
    """Save from the main process; others have the same state, or parts of it, and other rows."""
    trained = run.engine.trained()
    trained.carried.share(lambda rows: reduce(run.engine.accelerator, rows))
    if run.engine.accelerator.is_main_process or is_sharded(trained.network):
        run.saver.save(progress.step, trained, progress.saved())


def _wait_for_save(run: Run) -> None:
    """Wait until the last save is on the disk; all processes do."""
    run.saver.wait()
    run.engine.accelerator.wait_for_everyone()


def _preempted(run: Run, progress: Progress) -> Preempted:
    """Where the run stands; said when every process is done, since a launcher ends the others."""
    _wait_for_save(run)
    return Preempted(
        f"stopped after step {progress.step:,} of {run.plan.steps:,}, checkpoint saved",
        "run the same command again to go on",
    )


# --- Failed steps: out of memory, losses that are not finite, spikes ---


_OUTCOMES: dict[Verdict, tuple[str, str]] = {
    "stop": ("diverged", "stopping before it"),
    "skip": ("skipped", "the update is left out"),
    "rollback": ("rolled_back", "back to the last checkpoint, and on with the data after it"),
}


def _shrink_micro_batches(run: Run, batches: list[Batch], progress: Progress) -> Progress:
    """Continue with micro-batches of half the size after a step that did not fit in memory.

    Raises:
        PlmError: Nothing smaller is possible; or the size was set in the config; or there are
            several processes, which would have to agree in the middle of a step.
    """
    release_memory()
    message, size = f"step {progress.step + 1}: out of memory", most_examples(batches) // 2
    if size == 0:
        raise PlmError(
            f"{message}, with one example at a time",
            "use shorter sequences, a smaller network, or a device with more memory",
        )
    if not run.plan.elastic or run.engine.accelerator.num_processes > 1:
        hint = f"run the same command again with train.micro_batch_size={size}"
        raise PlmError(message, f"{hint}: it resumes from the last checkpoint")
    run.journal.event("smaller", step=progress.step, micro_batch_size=size)
    run.journal.warn(f"{message}; continuing with micro-batches of {size}")
    return smaller(run.plan, progress, size)


def _report_failure(
    run: Run, progress: Progress, done: Update, verdict: Verdict, reason: str
) -> None:
    """Report what went wrong in a step, and which examples it had.

    Raises:
        PlmError: The verdict is to stop; the state before the step was saved.
    """
    number = progress.step + 1
    file = f"divergence/step-{number:06d}.json"
    epochs, samples = run.feed.examples(progress).tolist()
    facts = {"step": number, "verdict": verdict, "reason": reason}
    figures = {"loss": done.loss, "losses": done.losses, "grad_norm": done.grad_norm}
    run.journal.keep(file, {**facts, **figures, "epochs": epochs, "samples": samples})
    event, said = _OUTCOMES[verdict]
    run.journal.event(event, step=number, reason=reason, loss=done.loss, batch=file)
    run.journal.warn(f"step {number:,}: {reason}; {said}")
    if verdict == "stop":
        _save(run, progress)
        _wait_for_save(run)
        key = "nonfinite" if "finite" in reason else "on_spike"
        raise PlmError(
            f"step {number}: {reason}; the state before it is saved",
            f"see its examples with `plmctl preview CONFIG --batch {number}`; go on without them "
            f"by the same command with divergence.{key}=skip, or begin anew with a lower "
            "optim.lr or a longer schedule.warmup",
        )


def _roll_back(run: Run, progress: Progress) -> Progress:
    """The last checkpoint that was due, with the data between it and this step passed over."""
    _wait_for_save(run)
    every = run.plan.save_every
    folder, _ = run.checkpoints.newest(lambda step: step <= progress.step and not step % every)
    if folder is None:
        raise PlmError(
            f"step {progress.step + 1}: no checkpoint to go back to",
            "lower checkpoint.every, or set divergence.on_spike=skip",
        )
    before = Progress.restored(restore(folder, run.engine.trained()))
    passed = sum(map(run.plan.samples, range(before.step, progress.step + 1)))
    if run.engine.accelerator.is_main_process:
        run.checkpoints.abandon(before.step)
    run.journal.begin(before.step, journal_of(folder))
    return replace(
        before,
        shift=progress.shift + passed,
        rollbacks=progress.rollbacks + 1,
        micro=progress.micro,
    )
