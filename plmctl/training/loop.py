"""The loop: one for pretraining and finetuning, any objective, any number of processes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from torch.optim import Optimizer

from plmctl.errors import PlmError, Preempted
from plmctl.modeling.batch import Batch
from plmctl.shaping.keys import fold, stream
from plmctl.training.best import Watch
from plmctl.training.checkpoint import Checkpoints, restore
from plmctl.training.engine import Engine as Engine
from plmctl.training.feed import Feed
from plmctl.training.guard import Verdict
from plmctl.training.journal import Journal
from plmctl.training.plan import Phase as Phase
from plmctl.training.plan import Plan as Plan
from plmctl.training.step import Step
from plmctl.training.stop import StopAsked, StopRequest
from plmctl.training.telemetry import Progress, Update, Window, record
from plmctl.training.update import apply, gradient, is_out_of_memory, reduce, release_memory
from plmctl.training.update import update as update

_SAID: dict[Verdict, tuple[str, str]] = {
    "stop": ("diverged", "stopping before it"),
    "skip": ("skipped", "the update is left out"),
    "rollback": ("rolled_back", "back to the last checkpoint, and on with the data after it"),
}


class Validate(Protocol):
    """Scores the held-out examples; of all processes, or of none."""

    def __call__(self, *, stop: StopRequest | None = None) -> Mapping[str, float]:
        """The log keys of a validation, empty where there is nothing to validate on.

        Raises:
            StopAsked: Some process was asked to stop meanwhile.
        """


@dataclass(frozen=True)
class _Run:
    """What a run consists of."""

    engine: Engine
    plan: Plan
    checkpoints: Checkpoints
    journal: Journal
    validate: Validate
    feed: Feed
    watch: Watch | None

    def over(self, progress: Progress) -> bool:
        """Whether it has waited long enough for better scores."""
        return self.watch is not None and self.watch.over(progress)


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
    """
    progress = resume(engine, checkpoints, journal)
    feed = Feed(plan, pin=engine.accelerator.device.type == "cuda")
    run = _Run(engine, plan, checkpoints, journal, validate, feed, watch)
    window = Window(progress, feed)
    engine.network.train()
    with StopRequest() as stop, feed.watched():
        if _owes_validation(plan, progress):  # it was stopped in the middle of one
            progress = _validated(run, progress, stop)
        while progress.step < plan.last and not run.over(progress):
            number, phase, batches = feed.take(progress)
            _set_rate(engine.optimizer, rate := plan.learning_rate(progress.step))
            progress, done = _attempt(run, phase.step, batches, progress, stop)
            if done is None:  # it did not fit in memory and is tried again, or the run went back
                window = Window(progress, feed)
                continue
            journal.tick(progress.step, done.loss)
            if plan.due(plan.log_every, progress.step):
                figures = window.figures(progress)
                journal.log(record(progress, number, done, rate) | figures)
                feed.advise(figures["data_wait"], journal.warn)
                progress = replace(progress, seconds=figures["time"])
                window = Window(progress, feed)
            with window.paused():
                progress = _secure(run, progress, done, stop)
            if done.stop:
                raise _stopped(run, progress)
    return _ended(run, progress)


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
    progress = Progress.restored(restore(newest, engine.trained()))
    journal.begin(progress.step)
    journal.event("resumed", step=progress.step, checkpoint=newest.name)
    return progress


def save(engine: Engine, checkpoints: Checkpoints, journal: Journal, progress: Progress) -> None:
    """Write a checkpoint from the main process; every process has the same state."""
    engine.trained().carried.share(lambda rows: reduce(engine.accelerator, rows))
    if engine.accelerator.is_main_process:
        journal.flush()  # a checkpoint that outlives a power cut must not outlive its log
        folder = checkpoints.save(progress.step, engine.trained(), progress.saved())
        journal.event("saved", step=progress.step, checkpoint=folder.name)


def _attempt(
    run: _Run, step: Step, batches: list[Batch], progress: Progress, stop: StopRequest
) -> tuple[Progress, Update | None]:
    """The progress after a step, and what it did; None where it is to be done again."""
    engine, plan = run.engine, run.plan
    mark = engine.trained().carried.marked()
    rank = engine.accelerator.process_index
    key = int(fold(plan.seed, stream("dropout"), progress.step, rank))
    try:
        done = gradient(engine, step, batches, plan.clip, key, stop.received is not None)
        verdict, reason = plan.guard.verdict(done, progress, scaled=_scaled(engine))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        done, verdict, reason = None, "skip", "out of memory"
    if done is not None and verdict == "good":
        apply(engine)
        return progress.after(done, plan.samples(progress.step), len(step)), done
    engine.optimizer.zero_grad()
    engine.trained().carried.rewind(mark)
    if done is None:
        _make_smaller(run, batches, progress)
        return progress, None
    _write_down(run, progress, done, verdict, reason)
    if verdict == "rollback":
        return _rolled_back(run, progress), None
    return progress.without(done, plan.samples(progress.step), len(step)), done


def _secure(run: _Run, progress: Progress, done: Update, stop: StopRequest) -> Progress:
    """Validate and save where it is due."""
    plan = run.plan
    if plan.due(plan.validate_every, progress.step):
        progress = _validated(run, progress, stop)
    if done.stop or run.over(progress) or plan.save_due(progress.step, progress.best):
        save(run.engine, run.checkpoints, run.journal, progress)
    return progress


def _make_smaller(run: _Run, batches: list[Batch], progress: Progress) -> None:
    """Go on with smaller micro-batches after a step that did not fit in memory.

    Raises:
        PlmError: Nothing smaller is allowed, or possible.
    """
    release_memory()
    message, smaller = f"step {progress.step + 1}: out of memory", run.feed.smaller(batches)
    if smaller is None:
        raise PlmError(
            f"{message}, with one example at a time",
            "use shorter sequences, a smaller network, or a device with more memory",
        )
    # With several processes the others wait for this one's gradient: they cannot try again.
    if not run.plan.elastic or run.engine.accelerator.num_processes > 1:
        hint = f"run the same command again with train.micro_batch_size={smaller}"
        raise PlmError(message, f"{hint}: it goes on from the last checkpoint")
    run.journal.event("smaller", step=progress.step, micro_batch_size=smaller)
    run.journal.warn(f"{message}; going on with micro-batches of {smaller}")


def _write_down(run: _Run, progress: Progress, done: Update, verdict: Verdict, reason: str) -> None:
    """Say what went wrong in a step, and which examples it had.

    Raises:
        PlmError: The verdict is to stop; the state before the step was saved.
    """
    number = progress.step + 1
    file = f"divergence/step-{number:06d}.json"
    epochs, samples = run.feed.examples(progress).tolist()
    facts = {"step": number, "verdict": verdict, "reason": reason}
    figures = {"loss": done.loss, "losses": done.losses, "grad_norm": done.grad_norm}
    run.journal.keep(file, {**facts, **figures, "epochs": epochs, "samples": samples})
    event, said = _SAID[verdict]
    run.journal.event(event, step=number, reason=reason, loss=done.loss, batch=file)
    run.journal.warn(f"step {number:,}: {reason}; {said}")
    if verdict == "stop":
        save(run.engine, run.checkpoints, run.journal, progress)
        run.engine.accelerator.wait_for_everyone()
        key = "nonfinite" if "finite" in reason else "on_spike"
        raise PlmError(
            f"step {number}: {reason}; the state before it is saved",
            f"see its examples with `plmctl preview CONFIG --batch {number}`; go on without them "
            f"by the same command with divergence.{key}=skip, or begin anew with a lower "
            "optim.lr or a longer schedule.warmup",
        )


def _rolled_back(run: _Run, progress: Progress) -> Progress:
    """The last checkpoint that was due, with the data between it and this step passed over."""
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
    run.journal.begin(before.step)
    return replace(before, shift=progress.shift + passed, rollbacks=progress.rollbacks + 1)


def _owes_validation(plan: Plan, progress: Progress) -> bool:
    return 0 < progress.step != progress.validated and plan.due(plan.validate_every, progress.step)


def _validated(run: _Run, progress: Progress, stop: StopRequest) -> Progress:
    """The progress after a validation.

    Raises:
        Preempted: A process was asked to stop meanwhile; a checkpoint was saved.
    """
    try:
        scores = run.validate(stop=stop)
    except StopAsked:
        save(run.engine, run.checkpoints, run.journal, progress)
        raise _stopped(run, progress) from None
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


def _ended(run: _Run, progress: Progress) -> Progress:
    """The progress at the end of the plan, or where waiting for better scores was given up.

    Raises:
        Preempted: It is neither: ``plan.until`` asked to stop.
    """
    if run.over(progress):
        _, best_step = progress.judged or (0.0, 0)
        run.journal.event("enough", step=progress.step, best_step=best_step)
    elif progress.step < run.plan.steps:
        raise _stopped(run, progress)
    return progress


def _stopped(run: _Run, progress: Progress) -> Preempted:
    """Where the run stands; said when every process is done, since a launcher ends the others."""
    run.engine.accelerator.wait_for_everyone()
    return Preempted(
        f"stopped after step {progress.step:,} of {run.plan.steps:,}, checkpoint saved",
        "run the same command again to go on",
    )


def _set_rate(optimizer: Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("scale", 1.0)


def _scaled(engine: Engine) -> bool:
    return engine.accelerator.scaler is not None
