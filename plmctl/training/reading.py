"""Reading the losses of steps, which waits for the device, and judging the steps by them.

A step that is applied before it is read is left out by the optimizer's kernel if its loss or its
gradient is not finite, and so is every step after it (``Engine.halted``). Whenever the host looks,
it finds the state before that step, and goes on as if it had read every one of them at once.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from plmctl.modeling.batch import Batch
from plmctl.shaping.keys import fold, stream
from plmctl.training.engine import Engine
from plmctl.training.memory import is_out_of_memory
from plmctl.training.mishaps import make_smaller, rolled_back, write_down
from plmctl.training.running import Run
from plmctl.training.step import Step
from plmctl.training.stop import StopRequest
from plmctl.training.telemetry import Computed, Progress, Update
from plmctl.training.update import apply, gradient

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


def begin(
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


def must_read(run: Run, unread: tuple[Pending, ...]) -> bool:
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
    for pending, done in zip(unread, _figures(unread), strict=True):
        if done is None:
            _undo(run.engine, pending)
            return make_smaller(run, batches, progress), None
        scaled = run.engine.accelerator.scaler is not None
        verdict, reason = run.plan.guard.verdict(done, progress, scaled=scaled)
        if verdict != "good":
            _undo(run.engine, pending)
            write_down(run, progress, done, verdict, reason)
            if verdict == "rollback":
                return rolled_back(run, progress), None
            return progress.without(done, pending.samples, pending.epoch_size), done
        progress = progress.after(done, pending.samples, pending.epoch_size)
    apply(run.engine)
    return progress, done


def _alone(run: Run) -> bool:
    """Whether the other processes do not know that this one is out of memory.

    Then the run ends here, and a step that they would have to judge together stays unread.
    """
    return run.engine.accelerator.num_processes > 1 and not run.plan.elastic


def _figures(unread: tuple[Pending, ...]) -> list[Update | None]:
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
