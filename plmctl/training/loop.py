"""The training loop, for pretraining and finetuning, any objective, any number of processes.

Read it from top to bottom: what is to be done (``Plan``), the loop itself (``train``), one step
(compute its gradient, read its losses, judge them, apply it), and what happens when a step fails.

The loss of a step is, for each loss term, the sum over its targets divided by the count of its
targets over the whole step: all processes and all micro-batches. How the step was cut up cannot
change it.

On a GPU several steps may be applied before their losses are read, because reading waits for the
device. The optimizer's kernel leaves out a step whose loss or gradient is not finite, and every
step after it (``Engine.halted``). When the host reads them, it finds the state before that step and
continues as if it had read each step at once.
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
from plmctl.modeling.batch import Batch
from plmctl.modeling.network import Network
from plmctl.shaping.keys import fold, stream
from plmctl.training.checkpoint import Checkpoints, Saver, Watch, journal_of, restore
from plmctl.training.data import Feed, Phase, Step, weight
from plmctl.training.distributed import gathered, is_sharded, reduce, summed_facts
from plmctl.training.engine import Engine
from plmctl.training.journal import Computed, Journal, Progress, Update, Window, record
from plmctl.training.memory import is_out_of_memory, most_examples, release_memory, smaller
from plmctl.training.stop import StopAsked, StopRequest

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
        PlmError: A loss or gradient that is not finite; the state before it was saved.
        DataError: Lines of metrics.jsonl that belong to the checkpoint are missing or changed.
    """
    engine = replace(engine, guarded=plan.elastic)
    progress = resume(engine, checkpoints, journal)
    if not plan.elastic:  # the size was given: what an earlier start had to do is no matter
        progress = replace(progress, micro=())
    feed = Feed(plan, pin=engine.accelerator.device.type == "cuda")
    writes = engine.accelerator.is_main_process
    saver = Saver(checkpoints, journal, background=plan.background, writes=writes)
    run = Run(engine, plan, checkpoints, journal, validate, feed, watch, saver)
    engine.network.train()
    with StopRequest() as stop, feed.watched(), saver:
        if _owes_validation(plan, progress):  # it was stopped in the middle of one
            progress = _validated(run, progress, stop)
        return _ended(run, _steps(run, progress, stop))


def _steps(run: Run, progress: Progress, stop: StopRequest) -> Progress:
    """Take steps until the plan, or the patience, is at its end."""
    engine, plan, feed, journal = run.engine, run.plan, run.feed, run.journal
    window = Window(progress, feed)
    unread: tuple[Pending, ...] = ()
    while progress.step < plan.last and not run.over(progress):
        number, phase, batches = feed.take(progress)
        rate = plan.learning_rate(progress.step)
        for group in engine.optimizer.param_groups:
            group["lr"] = rate * group.get("scale", 1.0)
        unread += (pending := _compute(run, phase.step, batches, progress, stop),)
        run.saver.look()
        if not _must_read(run, unread):
            assert pending.computed is not None
            apply_unread(engine, pending.computed)
            progress = pending.after()
            journal.tick(progress.step, progress.recent[-1] if progress.recent else None)
            continue
        progress, done = read(run, unread, batches)
        unread = ()
        if done is None:  # it did not fit in memory and is tried again, or the run went back
            window = Window(progress, feed)
            continue
        journal.tick(progress.step, done.loss)
        if plan.due(plan.log_every, progress.step):
            learned, speed = record(progress, number, done, rate), window.figures(progress)
            journal.log(learned | speed)
            feed.advise(speed["data_wait"], journal.warn)
            progress = replace(progress, seconds=speed["time"])
            window = Window(progress, feed)
        with window.paused():
            is_last = progress.step == plan.steps
            if is_last:  # first: whatever goes wrong in the validation, no step is lost
                _save(run, progress)
            if plan.due(plan.validate_every, progress.step):
                progress = _validated(run, progress, stop)
            save_due = plan.save_due(progress.step, progress.best)
            if not is_last and (done.stop or run.over(progress) or save_due):
                _save(run, progress)
        if done.stop:
            raise _preempted(run, progress)
    return progress


def _owes_validation(plan: Plan, progress: Progress) -> bool:
    return 0 < progress.step != progress.validated and plan.due(plan.validate_every, progress.step)


def _validated(run: Run, progress: Progress, stop: StopRequest) -> Progress:
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


def _ended(run: Run, progress: Progress) -> Progress:
    """The progress at the end of the plan, or where waiting for better scores was given up.

    Raises:
        Preempted: It is neither: ``plan.until`` asked to stop.
    """
    if run.over(progress):
        _, best_step = progress.judged or (0.0, 0)
        run.journal.event("enough", step=progress.step, best_step=best_step)
    elif progress.step < run.plan.steps:
        raise _preempted(run, progress)
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


# --- A step: compute its gradient, read its losses, judge and apply it ---


_MOST_UNREAD = 32  # steps in vain after one that is not finite, and marks of carried rows


@dataclass(frozen=True)
class Pending:
    """A step that was computed and is not read yet.

    Attributes:
        before: The progress before it; of steps that are unread as well, without their losses.
        computed: The step; None: it did not fit in memory.
        samples: Its examples.
        epoch_size: Examples in an epoch.
        mark: The state of a recurrent network's rows before it.
        states: For how many parameters the optimizer had a state before it.
    """

    before: Progress
    computed: Computed | None
    samples: int
    epoch_size: int
    mark: Tensor | None
    states: int

    def after(self) -> Progress:
        """The progress after it, without its loss."""
        assert self.computed is not None
        return self.before.ahead(self.computed, self.samples, self.epoch_size)


def _compute(
    run: Run, step: Step, batches: list[Batch], progress: Progress, stop: StopRequest
) -> Pending:
    """Compute the gradient of a step; nothing is applied."""
    engine, plan = run.engine, run.plan
    trained, rank = engine.trained(), engine.accelerator.process_index
    mark, states = trained.carried.marked(), len(trained.optimizer.state)
    key = int(fold(plan.seed, stream("dropout"), progress.step, rank))
    try:
        asked = stop.received is not None
        computed = gradient(engine, step, batches, plan.clip, key, asked)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        computed = None
    return Pending(progress, computed, plan.samples(progress.step), len(step), mark, states)


def _must_read(run: Run, unread: tuple[Pending, ...]) -> bool:
    """Whether the last of the steps is to be read before it is applied, and those before it.

    All processes agree: it depends on nothing but the step and what they have told each other.
    """
    plan, last = run.plan, unread[-1]
    if run.engine.halted is None or plan.guard.spike is not None:
        return True  # a spike is judged by the losses before it
    if last.computed is None or last.computed.stop or len(unread) == _MOST_UNREAD:
        return True
    done = last.before.step + 1
    logs, validates = plan.due(plan.log_every, done), plan.due(plan.validate_every, done)
    return logs or validates or plan.save_due(done, last.before.best)


def read(
    run: Run, unread: tuple[Pending, ...], batches: list[Batch]
) -> tuple[Progress, Update | None]:
    """Read steps and judge them in order; the last is applied if all are good.

    Args:
        run: What the run consists of.
        unread: The steps, all but the last applied.
        batches: The micro-batches of the last.

    Returns:
        The progress after the last step, and what it did; where one went wrong, the same of that
        one, with nothing left of it and of later ones. None: a step is to be done again.
    """
    if unread[-1].computed is None and _alone(run):
        unread = unread[-1:]
    progress = unread[0].before
    for pending, done in zip(unread, _read_updates(unread), strict=True):
        if done is None:
            _undo(run.engine, pending)
            return _shrink_micro_batches(run, batches, progress), None
        scaled = run.engine.accelerator.scaler is not None
        verdict, reason = run.plan.guard.verdict(done, progress, scaled=scaled)
        if verdict != "good":
            _undo(run.engine, pending)
            _report_failure(run, progress, done, verdict, reason)
            if verdict == "rollback":
                return _roll_back(run, progress), None
            return progress.without(done, pending.samples, pending.epoch_size), done
        progress = progress.after(done, pending.samples, pending.epoch_size)
    apply(run.engine)
    return progress, done


def _alone(run: Run) -> bool:
    """Whether the other processes do not know that this one is out of memory.

    Then the run ends here, and a step that they would have to judge together stays unread.
    """
    return run.engine.accelerator.num_processes > 1 and not run.plan.elastic


def _read_updates(unread: tuple[Pending, ...]) -> list[Update | None]:
    """What each step did, in one copy from the device; None where one did not fit in memory."""
    steps = [pending.computed for pending in unread]
    there = [step.figures for step in steps if step is not None]
    values = iter(torch.cat(there).tolist() if there else ())
    return [
        None if step is None else step.update([next(values) for _ in step.figures])
        for step in steps
    ]


def _undo(engine: Engine, pending: Pending) -> None:
    """Drop a step that was not applied, and all after it."""
    engine.optimizer.zero_grad()
    trained = engine.trained()
    trained.carried.rewind(pending.mark)
    for parameter in list(trained.optimizer.state)[pending.states :]:
        del trained.optimizer.state[parameter]  # its zeros came with an update that was left out
    if engine.halted is not None:
        engine.halted.zero_()


# --- The gradient of a step over all processes, and its application ---


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


# --- Failed steps: out of memory, losses that are not finite, spikes ---


_OUTCOMES: dict[Verdict, tuple[str, str]] = {
    "stop": ("diverged", "stopping before it"),
    "skip": ("skipped", "the update is left out"),
    "rollback": ("rolled_back", "back to the last checkpoint, and on with the data after it"),
}


def _shrink_micro_batches(run: Run, batches: list[Batch], progress: Progress) -> Progress:
    """Continue with smaller micro-batches after a step that did not fit in memory.

    Raises:
        PlmError: Nothing smaller is allowed, or possible.
    """
    release_memory()
    message, again = f"step {progress.step + 1}: out of memory", progress
    if run.plan.elastic:  # then all processes are here
        again, size = smaller(run.engine, run.plan, progress, batches)
    else:
        size = most_examples(batches) // 2
    if size == 0:
        raise PlmError(
            f"{message}, with one example at a time",
            "use shorter sequences, a smaller network, or a device with more memory",
        )
    if not run.plan.elastic:
        hint = f"run the same command again with train.micro_batch_size={size}"
        raise PlmError(message, f"{hint}: it goes on from the last checkpoint")
    run.journal.event("smaller", step=progress.step, micro_batch_size=size)
    run.journal.warn(f"{message}; going on with micro-batches of {size}")
    return again


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
