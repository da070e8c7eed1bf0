"""A budget becomes a number of steps, once per run.

``train.budget`` is a time, tokens, words or FLOPs. Tokens are sequences times their length, as in
``training/schedule.py``; words are the sequences' share of the words in an epoch; FLOPs are those
of ``plmctl plan``. These three are arithmetic. A time is measured (``training/timing.py``). The
decision is kept in ``budget.json`` of the run folder, which a resumed run reads: the learning rate
depends on the number of steps, so it must never change.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl.config.sections import TrainConfig
from plmctl.config.units import Budget, StepsOrShare
from plmctl.errors import ConfigError, DataError
from plmctl.files import write_atomically, writing
from plmctl.formatting import format_duration
from plmctl.run import launch
from plmctl.run.configs import PretrainConfig
from plmctl.run.display import say
from plmctl.run.sample_costs import SampleCosts, check_words, words_of
from plmctl.training.schedule import Course, course, most_steps, split_steps

if TYPE_CHECKING:
    from accelerate import Accelerator

    from plmctl.config.sections import ScheduleConfig
    from plmctl.run.pretraining import Pretraining
    from plmctl.training.timing import Timing

FILE = "budget.json"

# --- The decision ---


@dataclass(frozen=True)
class Decision:
    """The steps of a run with a budget.

    Attributes:
        budget: As the config keeps it.
        words: Words of these steps; None: unknown.
        step_seconds: Measured seconds of a step of each phase at its full batch; empty: not
            measured.
    """

    budget: str
    steps: tuple[int, ...]
    reason: str
    tokens: int
    words: int | None
    flops: float
    step_seconds: tuple[float, ...] = ()

    @property
    def message(self) -> str:
        """The decision in one line."""
        phases = " + ".join(f"{steps:,}" for steps in self.steps)
        total = f" = {sum(self.steps):,}" if len(self.steps) > 1 else ""
        words = "" if self.words is None else f", {self.words:,} words"
        amounts = f"{self.tokens:,} tokens{words}, {self.flops:.3g} FLOPs"
        return (
            f"train.budget: {Budget(self.budget)} = {phases}{total} steps ({amounts}); "
            f"{self.reason}"
        )

    def used(self, unit: str) -> float:
        """What the steps use of a budget of this unit, except of a time."""
        return {"tokens": self.tokens, "words": self.words or 0, "FLOPs": self.flops}[unit]

    def save(self, folder: Path) -> None:
        """Write ``budget.json`` of a run folder."""
        with writing(folder / FILE) as path:
            write_atomically(path, json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, folder: Path, train: TrainConfig, *, resumes: bool = False) -> Decision | None:
        """The decision of a run; None: there is none yet, or it is of another budget.

        Args:
            folder: The run folder; it need not exist.
            resumes: The run continues from its checkpoints, which need the decision.

        Raises:
            DataError: It resumes, has checkpoints, and no readable decision.
        """
        if train.budget is None:
            return None
        path = folder / FILE
        try:
            saved: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            saved |= {key: tuple(saved[key]) for key in ("steps", "step_seconds")}
            decision = cls(**saved)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            if resumes and any(folder.glob("checkpoints/step-*")):
                raise DataError(
                    f"{path}: missing or damaged, and the run has checkpoints: its number of steps "
                    "is unknown",
                    "restore the file, or start from scratch with --fresh",
                ) from error
            return None
        same = decision.budget == train.budget.root
        return decision if same and len(decision.steps) == len(train.phases) else None


def copy_decision(source: Path, target: Path) -> None:
    """Give a new run folder the steps of another run, so that a measured time is the same."""
    if (source / FILE).is_file():
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / FILE, target / FILE)


# --- Steps by arithmetic ---


def decide(
    train: TrainConfig, schedule: ScheduleConfig, costs: SampleCosts, timing: Timing | None = None
) -> Decision:
    """The steps that fit into a budget: the most that do not exceed it.

    Raises:
        ConfigError: The budget is too small for a step of each phase or for the warm-up; it is in
            words, or there is a cap on words, and the corpus has no count.
    """
    budget = train.budget
    assert budget is not None
    costs_of, reason = _costs_of(train, costs, timing)
    steps = most_steps(costs_of, budget.number)
    if timing is not None and train.max_words is not None:
        cap = most_steps(_spent(train, words_of(costs, "train.max_words")), train.max_words)
        if cap < steps:
            steps, reason = cap, f"{reason}; cut by train.max_words: {train.max_words:,}"
    split = split_steps(steps, shares(train))
    if not all(split):
        raise ConfigError(_too_small(train, costs_of, timing), "increase the budget")
    path = course(train, split)
    decision = Decision(
        str(budget.root),
        split,
        reason,
        path.tokens[-1],
        None if costs.words is None else round(path.spent(path.steps, costs.words)),
        path.spent(path.steps, costs.flops),
        () if timing is None else timing.step_seconds,
    )
    _check_warmup(budget, schedule, path)
    check_words(train, path, costs)
    return decision


def shares(train: TrainConfig) -> tuple[float, ...]:
    """The share of the steps of each phase."""
    return tuple(1.0 if phase.share is None else phase.share for phase in train.phases)


def _costs_of(
    train: TrainConfig, costs: SampleCosts, timing: Timing | None
) -> tuple[Callable[[int], float], str]:
    """What a number of steps costs in the unit of the budget, and how it is computed."""
    assert train.budget is not None
    unit = train.budget.unit
    if timing is not None:
        steps = zip(timing.step_seconds, train.batch_sizes, strict=True)
        per_sample = tuple(seconds / batch for seconds, batch in steps)
        trained = _spent(train, per_sample)
        return lambda steps: trained(steps) + timing.overhead(steps), timing.reason
    if unit == "seconds":
        raise ConfigError(f"train.budget: the steps of {train.budget} are not measured yet")
    if unit == "tokens":
        return _spent(train, costs.tokens), "tokens are sequences times their length"
    if unit == "FLOPs":
        return _spent(train, costs.flops), "FLOPs as `plmctl plan` counts them"
    words = words_of(costs, "train.budget")
    each = " and ".join(f"{one:.4g}" for one in dict.fromkeys(words))
    return _spent(train, words), f"{each} words per sequence"


def _spent(train: TrainConfig, per_sample: Sequence[float]) -> Callable[[int], float]:
    parts = shares(train)
    return lambda steps: course(train, split_steps(steps, parts)).spent(steps, per_sample)


def _too_small(train: TrainConfig, costs_of: Callable[[int], float], timing: Timing | None) -> str:
    least = next(n for n in range(1, 10**6) if all(split_steps(n, shares(train))))
    one = "one step" if least == 1 else f"a step of each phase ({least:,} steps)"
    needed = costs_of(least)
    if timing is not None:
        return (
            f"train.budget: {train.budget} is too short for {one} with what comes around it: "
            f"{timing.parts}; that is {format_duration(needed)}"
        )
    unit = train.budget.unit if train.budget else ""
    return f"train.budget: {train.budget} is less than {one}, which is {needed:,.6g} {unit}"


def _check_warmup(budget: Budget, schedule: ScheduleConfig, path: Course) -> None:
    """Refuse a warm-up that is as long as the run.

    Raises:
        ConfigError: It is.
    """
    warmup: StepsOrShare = schedule.warmup
    if warmup.tokens is not None:
        late, length = warmup.tokens >= path.tokens[-1], f"{warmup.tokens:,} tokens"
    else:
        late = isinstance(warmup.root, int) and warmup.of(path.steps) >= path.steps
        length = f"{warmup.root:,} steps"
    if late:
        raise ConfigError(
            f"train.budget: {budget} is {path.steps:,} steps, {path.tokens[-1]:,} tokens: no more "
            f"than schedule.warmup, {length}",
            "increase the budget, or write the warm-up as a share, such as `warmup: 6%`",
        )


# --- The steps of a run ---


def known_decision(run: Pretraining, *, fresh: bool) -> Decision | None:
    """The steps of a budget, before the run folder is touched; None: a time is not measured yet.

    Args:
        fresh: The run starts from scratch, whatever its folder has.

    Raises:
        ConfigError: The budget is too small, the words are unknown, or more than the config allows.
        DataError: As ``Decision.read``.
    """
    train = run.config.train
    if train.budget is None:
        if launch.is_main():
            check_words(train, course(train), run.costs)
        return None
    decision = None if fresh else Decision.read(run.folder, train, resumes=True)
    if decision is not None or train.budget.unit == "seconds" or not launch.is_main():
        return decision
    return decide(train, run.config.schedule, run.costs)


def with_steps(config: PretrainConfig, costs: Callable[[], SampleCosts]) -> PretrainConfig:
    """The config with the number of its steps: of its run, or computed.

    Raises:
        ConfigError: The budget is a time, and no run has measured it yet.
    """
    if config.train.budget is None:
        return config
    decision = Decision.read(Path(config.run), config.train)
    if decision is None and config.train.budget.unit != "seconds":
        decision = decide(config.train, config.schedule, costs())
    if decision is None:
        raise ConfigError(
            f"train.budget: the steps of {config.train.budget} are measured when the run starts",
            "start the run first (`plmctl pretrain CONFIG --until 1`), or set steps",
        )
    return config.with_steps(decision.steps)


def resolved(
    run: Pretraining, decision: Decision | None, accelerator: Accelerator, began: float
) -> Pretraining:
    """The run with steps in place of its budget; called by all processes, in the run folder.

    Args:
        decision: What ``known_decision`` gave.
        began: When the work in the folder began, by the monotonic clock.
    """
    if run.config.train.budget is None:
        return run
    own = list(decision.steps) if decision is not None and launch.is_main() else None
    steps = run.peers.compare("budget", {"steps": own})[0]["steps"]
    if steps is None:
        decision = _measured(run, accelerator, began)
        accelerator.free_memory()  # it knows the network and the optimizer that were thrown away
        steps = decision.steps
    if decision is not None and launch.is_main():
        _keep(decision, run)
    return run.with_steps(steps)


def _keep(decision: Decision, run: Pretraining) -> None:
    """Print, log and save the steps of a budget, once per run."""
    from plmctl.training.journal import append_event

    if Decision.read(run.folder, run.config.train) == decision:
        return
    say(decision.message)
    facts = {"budget": decision.budget, "reason": decision.reason}
    append_event(run.folder, "budget", **facts, steps=sum(decision.steps), tokens=decision.tokens)
    decision.save(run.folder)


_MANY_SAVES = 28  # of `checkpoint.at: babylm`, and about as many of `log`


def _measured(run: Pretraining, accelerator: Accelerator, began: float) -> Decision:
    """The steps that fit into a time, measured with a network and an optimizer to throw away.

    The same in all processes. The run then begins as if nothing had been measured. The plan has one
    step per phase: what is timed does not depend on their number.
    """
    from plmctl.models.sharding import is_sharded
    from plmctl.run.pretraining import Validation, make_plan
    from plmctl.training.checkpoint import Checkpoints, snapshot
    from plmctl.training.memory import with_found_sizes
    from plmctl.training.timing import Timing, agreed, time_steps, timed

    config, budget = run.config, run.config.train.budget
    assert budget is not None
    say("measuring a few steps, a validation and a checkpoint, for train.budget")
    scaler = None if accelerator.scaler is None else accelerator.scaler.state_dict()
    trial, building = run.with_steps([1] * len(run.train)), time.monotonic()
    engine = trial.engine(accelerator)
    again = time.monotonic() - building  # the run itself makes its network once more
    plan = with_found_sizes(engine, make_plan(trial.config, run.train, accelerator), run.folder)
    steps = time_steps(engine, plan, budget.number)
    trained, main = engine.trained(), accelerator.is_main_process
    checkpoints = Checkpoints(run.folder / "checkpoints", 1)
    validation, sample = Validation(trial, engine, plan), trial.sampler(engine)

    def save() -> None:
        if main or is_sharded(trained.network):
            state = snapshot(trained, 0, {}, kept=main)
            if main:
                checkpoints.trial(state)

    def validate() -> None:
        validation(plan.steps)
        if sample is not None:
            sample()

    saving, validating = timed(engine, save), timed(engine, validate)
    if scaler is not None:
        accelerator.scaler.load_state_dict(scaler)
    at = config.checkpoint.at
    timing = Timing(
        steps,
        agreed(engine, time.monotonic() - began + again),
        validating,
        saving,
        config.log.validate_every,
        config.checkpoint.every,
        extra_saves=_MANY_SAVES if isinstance(at, str) else len(at),
    )
    return decide(config.train, config.schedule, run.costs, timing)


# --- The end of a run ---


def difference(decision: Decision, seconds: float | None) -> str:
    """How far a finished run is from its budget.

    Args:
        seconds: How long it took; None for a run that was interrupted.
    """
    budget = Budget(decision.budget)
    if budget.unit != "seconds":
        used = decision.used(budget.unit)
        amount = f"{used:.6g} FLOPs" if budget.unit == "FLOPs" else f"{used:,} {budget.unit}"
    elif seconds is None:
        return f"train.budget: {budget}; the run was interrupted, so its time is not compared"
    else:
        used, amount = seconds, format_duration(seconds)
    share = used / budget.number - 1
    return f"train.budget: {amount} of {budget} used ({share:+.2%})"
