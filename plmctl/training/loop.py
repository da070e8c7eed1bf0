"""The loop: one for pretraining and finetuning, any objective, any number of processes."""

from dataclasses import replace

from torch.optim import Optimizer

from plmctl.training.best import Watch
from plmctl.training.checkpoint import Checkpoints, journal_of, restore
from plmctl.training.engine import Engine as Engine
from plmctl.training.feed import Feed
from plmctl.training.journal import Journal
from plmctl.training.plan import Phase as Phase
from plmctl.training.plan import Plan as Plan
from plmctl.training.reading import Pending, begin, must_read, read
from plmctl.training.running import Run, Validate, save, stopped
from plmctl.training.saving import Saver
from plmctl.training.stop import StopAsked, StopRequest
from plmctl.training.telemetry import Progress, Update, Window, record
from plmctl.training.update import apply_unread


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
        return _ended(run, _stepped(run, progress, stop))


def _stepped(run: Run, progress: Progress, stop: StopRequest) -> Progress:
    """Take steps until the plan, or the patience, is at its end."""
    plan, feed = run.plan, run.feed
    window = Window(progress, feed)
    unread: tuple[Pending, ...] = ()
    while progress.step < plan.last and not run.over(progress):
        number, phase, batches = feed.take(progress)
        _set_rate(run.engine.optimizer, rate := plan.learning_rate(progress.step))
        unread += (begin(run, phase.step, batches, progress, stop),)
        run.saver.look()
        if not must_read(run, unread):
            progress = _ahead(run, unread[-1])
            continue
        progress, done = read(run, unread, batches)
        unread = ()
        if done is None:  # it did not fit in memory and is tried again, or the run went back
            window = Window(progress, feed)
            continue
        run.journal.tick(progress.step, done.loss)
        if plan.due(plan.log_every, progress.step):
            progress = _logged(run, window, progress, record(progress, number, done, rate))
            window = Window(progress, feed)
        with window.paused():
            progress = _secure(run, progress, done, stop)
        if done.stop:
            raise stopped(run, progress)
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


def _ahead(run: Run, pending: Pending) -> Progress:
    """The progress after a step that is applied unread, its loss not in it."""
    assert pending.computed is not None
    apply_unread(run.engine, pending.computed)
    progress = pending.after()
    run.journal.tick(progress.step, progress.recent[-1] if progress.recent else None)
    return progress


def _logged(run: Run, window: Window, progress: Progress, learned: dict[str, float]) -> Progress:
    """Write down what was learned, and how fast; the progress has the time."""
    figures = window.figures(progress)
    run.journal.log(learned | figures)
    run.feed.advise(figures["data_wait"], run.journal.warn)
    return replace(progress, seconds=figures["time"])


def _secure(run: Run, progress: Progress, done: Update, stop: StopRequest) -> Progress:
    """Validate and save where it is due."""
    plan = run.plan
    is_last = progress.step == plan.steps
    if is_last:  # first: whatever goes wrong in the validation, no step is lost
        save(run, progress)
    if plan.due(plan.validate_every, progress.step):
        progress = _validated(run, progress, stop)
    if is_last:
        return progress
    if done.stop or run.over(progress) or plan.save_due(progress.step, progress.best):
        save(run, progress)
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
            save(run, progress)
        raise stopped(run, progress) from None
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
        raise stopped(run, progress)
    return progress


def _set_rate(optimizer: Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("scale", 1.0)
