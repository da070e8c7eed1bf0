"""A budget becomes a number of steps, once per run; words seen, and checkpoints at words.

``train.budget`` is a time, tokens, words or FLOPs. Tokens are sequences times their length, as in
``training/schedule.py``; words are the sequences' share of the words in an epoch; FLOPs are those
of ``plmctl plan``. These three are arithmetic. A time is measured (``training/timing.py``). The
decision is kept in ``budget.json`` of the run folder, which a resumed run reads: the learning rate
depends on the number of steps, so it must never change.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plmctl.config.sections import TrainConfig
from plmctl.config.units import Budget, Mark, StepsOrShare
from plmctl.errors import ConfigError, DataError
from plmctl.files import write_atomically, writing
from plmctl.formatting import format_duration
from plmctl.training.schedule import Course, course, most_steps, nearest_step, split_steps

if TYPE_CHECKING:
    from plmctl.config.sections import ScheduleConfig
    from plmctl.models.base import StoreExamples
    from plmctl.run.configs import PretrainConfig
    from plmctl.training.timing import Timing

FILE = "budget.json"

_BABYLM = [
    *range(10**6, 10**7, 10**6),
    *range(10**7, 10**8, 10**7),
    *range(10**8, 10**9 + 1, 10**8),
]
"""Words at which the BabyLM shared tasks want a checkpoint."""


# --- The costs of a sample of each phase ---


@dataclass(frozen=True)
class SampleCosts:
    """What a sample of each phase costs.

    Attributes:
        tokens: Its length.
        flops: Floating-point operations of its forward and backward pass.
        words: Words of the corpus per sample of an epoch; None: the corpus has no count.
        no_words: Why it has none.
    """

    tokens: tuple[int, ...]
    flops: tuple[float, ...]
    words: tuple[float, ...] | None = None
    no_words: str = ""


def words_per_sample(words: Sequence[int | None], examples: StoreExamples) -> float | None:
    """Words per sample; None: the words of a store are unknown.

    Over an epoch the samples have all words of the corpus, whatever their padding.

    Args:
        examples: The samples of a corpus, or of a mixture.
    """
    from plmctl.training.data import Mixture

    known = [count for count in words if count is not None]
    if len(known) < len(words):
        return None
    if not isinstance(examples, Mixture):
        return known[0] / len(examples)
    parts = zip(known, examples.parts, examples.counts.tolist(), strict=True)
    seen = sum(float(count) * total / len(part) for total, part, count in parts)
    return seen / len(examples)


# --- The decision ---


@dataclass(frozen=True)
class Decision:
    """The steps of a run with a budget.

    Attributes:
        budget: As the config keeps it.
        steps: Steps of each phase.
        reason: How they were computed, in words.
        tokens: Nominal tokens of these steps.
        words: Words of these steps; None: unknown.
        flops: Their floating-point operations.
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

    Args:
        schedule: Its warm-up must fit.
        costs: What the samples cost.
        timing: What was measured, for a time.

    Raises:
        ConfigError: The budget is too small for a step of each phase or for the warm-up; it is in
            words, or there is a cap on words, and the corpus has no count.
    """
    budget = train.budget
    assert budget is not None
    costs_of, reason = _costs_of(train, costs, timing)
    steps = most_steps(costs_of, budget.number)
    if timing is not None and train.max_words is not None:
        cap = most_steps(_spent(train, _words_of(costs, "train.max_words")), train.max_words)
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
        batch = train.batch_size
        per_sample = tuple(seconds / batch for seconds in timing.step_seconds)
        trained = _spent(train, per_sample)
        return lambda steps: trained(steps) + timing.overhead(steps), timing.reason
    if unit == "seconds":
        raise ConfigError(f"train.budget: the steps of {train.budget} are not measured yet")
    if unit == "tokens":
        return _spent(train, costs.tokens), "tokens are sequences times their length"
    if unit == "FLOPs":
        return _spent(train, costs.flops), "FLOPs as `plmctl plan` counts them"
    words = _words_of(costs, "train.budget")
    each = " and ".join(f"{one:.4g}" for one in dict.fromkeys(words))
    return _spent(train, words), f"{each} words per sequence"


def _spent(train: TrainConfig, per_sample: Sequence[float]) -> Callable[[int], float]:
    parts = shares(train)
    return lambda steps: course(train, split_steps(steps, parts)).spent(steps, per_sample)


def _words_of(costs: SampleCosts, key: str) -> tuple[float, ...]:
    if costs.words is None:
        raise ConfigError(
            f"{key}: the words of the corpus are not counted ({costs.no_words})",
            "run `plmctl prepare` with this config, which counts them; or give tokens",
        )
    return costs.words


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


# --- Words seen ---


def check_words(train: TrainConfig, path: Course, costs: SampleCosts) -> None:
    """Refuse a run that sees more words than ``train.max_words``.

    Raises:
        ConfigError: It does, or the words are unknown.
    """
    if train.max_words is None:
        return
    words = path.spent(path.steps, _words_of(costs, "train.max_words"))
    if round(words) > train.max_words:
        raise ConfigError(
            f"train.max_words: the run would see {round(words):,} words in its {path.steps:,} "
            f"steps, more than {train.max_words:,}",
            f"train fewer steps, or set `train.budget: {train.max_words} words` instead of steps",
        )


def words_seen(path: Course, words: Sequence[float] | None) -> Callable[[int], int] | None:
    """Words seen after a number of steps; None: unknown."""
    if words is None:
        return None
    return lambda step: round(path.spent(step, words))


# --- Checkpoints at steps, tokens and words ---


def save_steps(
    at: tuple[Mark, ...] | Literal["log", "babylm"],
    path: Course,
    words: Sequence[float] | None,
    no_words: str = "",
) -> tuple[frozenset[int], list[str]]:
    """The steps at which a checkpoint is saved and kept, and the marks after the end.

    Args:
        at: ``checkpoint.at``.
        words: Words per sample of each phase; None: unknown.
        no_words: Why they are unknown.

    Raises:
        ConfigError: A mark is in words, and they are unknown.
    """
    if at == "log":
        return log_steps(path.steps), []
    marks = [Mark(f"{count} words") for count in _BABYLM] if at == "babylm" else list(at)
    steps, late = set(), []
    for mark in marks:
        if mark.unit == "words" and words is None:
            _words_of(SampleCosts((), (), None, no_words), "checkpoint.at")
        seen: dict[str, Callable[[int], float]] = {
            "steps": float,
            "tokens": path.seen,
            "words": lambda step: path.spent(step, words or ()),
        }
        step = nearest_step(seen[mark.unit], mark.number, path.steps)
        if step is None:
            late.append(str(mark))
        else:
            steps.add(step)
    return frozenset(steps), [] if at == "babylm" else late


def save_at_steps(at: tuple[Mark, ...] | Literal["log", "babylm"], steps: int) -> frozenset[int]:
    """As ``save_steps``, for a run without a count of tokens and words.

    Args:
        at: Marks in steps only, or log.
    """
    if isinstance(at, str):
        return log_steps(steps)
    return frozenset(int(mark.number) for mark in at if mark.number <= steps)


def log_steps(steps: int) -> frozenset[int]:
    """Steps 1, 2, 4, 8 and so on."""
    return frozenset(2**power for power in range(steps.bit_length()))


# --- A config with its steps ---


def decided(config: PretrainConfig, steps: Sequence[int]) -> PretrainConfig:
    """The config with the steps of each phase in place of its budget."""
    return config.model_copy(update={"train": config.train.with_steps(steps)})


def difference(decision: Decision, seconds: float | None) -> str:
    """How far a finished run is from its budget.

    Args:
        decision: Its steps.
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
