"""Steps that went wrong, and what the loop does about them."""

from dataclasses import replace

from plmctl.errors import PlmError
from plmctl.modeling.batch import Batch
from plmctl.training.checkpoint import journal_of, restore
from plmctl.training.fitting import most_examples, smaller
from plmctl.training.guard import Verdict
from plmctl.training.memory import release_memory
from plmctl.training.running import Run, save, saved
from plmctl.training.telemetry import Progress, Update

_SAID: dict[Verdict, tuple[str, str]] = {
    "stop": ("diverged", "stopping before it"),
    "skip": ("skipped", "the update is left out"),
    "rollback": ("rolled_back", "back to the last checkpoint, and on with the data after it"),
}


def make_smaller(run: Run, batches: list[Batch], progress: Progress) -> Progress:
    """Go on with smaller micro-batches after a step that did not fit in memory.

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


def write_down(run: Run, progress: Progress, done: Update, verdict: Verdict, reason: str) -> None:
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
        save(run, progress)
        saved(run)
        key = "nonfinite" if "finite" in reason else "on_spike"
        raise PlmError(
            f"step {number}: {reason}; the state before it is saved",
            f"see its examples with `plmctl preview CONFIG --batch {number}`; go on without them "
            f"by the same command with divergence.{key}=skip, or begin anew with a lower "
            "optim.lr or a longer schedule.warmup",
        )


def rolled_back(run: Run, progress: Progress) -> Progress:
    """The last checkpoint that was due, with the data between it and this step passed over."""
    saved(run)
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
