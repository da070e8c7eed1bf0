"""The ladder of ``plmctl scaling``: sizes, the lengths of each, and what a budget pays for.

All sizes see about the same number of tokens per parameter, so that compute grows with the square
of the size: the largest run is as large as the budget allows, and the prediction beyond it as short
as possible.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl.commands.plan import costs, measured
from plmctl.config.units import Budget, StepsOrShare, Unit
from plmctl.errors import ConfigError, nearest
from plmctl.families.base import get_family
from plmctl.run.configs import PretrainConfig, load
from plmctl.run.display import say
from plmctl.run.preflight import check_network, preflight
from plmctl.tokenization.load import Vocab
from plmctl.training.schedule import course

if TYPE_CHECKING:
    from plmctl.families.base import Family

# Lengths as shares of the longest; the first that the budget pays for.
_SHARES: tuple[tuple[float, ...], ...] = ((0.125, 0.35, 1.0), (0.25, 0.5, 1.0), (0.5, 1.0))
_MIN_STEPS = 20
_FLOOR = 1 / 20  # FLOPs of a size, as a share of those of the largest, at least
_TRAINING = 0.9  # share of a budget of time; the rest is for validation, saving and reports
_TOKENS_PER_PARAMETER = 20  # of the ladder's sizes, if they are chosen here (Hoffmann et al. 2022)

# Layers and hidden size: 64 per layer, as BERT-base and GPT-2 small have; heads of 64.
_SHAPES = (
    *((1, 64), (2, 128), (3, 192), (4, 256), (5, 320), (6, 384), (8, 512), (10, 640), (12, 768)),
    *((16, 1024), (20, 1280), (24, 1536), (32, 2048), (40, 2560), (48, 3072)),
)


# --- The budget ---


class LadderBudget(Budget):
    """What a whole ladder may cost."""

    UNITS = ("seconds", "tokens", "FLOPs")
    EXAMPLE = "a time such as 30m, 1h or 2d, or 20M tokens, 1e15 FLOPs"


def rounded_up(amount: float, unit: Unit) -> str:
    """A budget of at least this amount, as a user would write it: ``3h``, ``1.2e15 FLOPs``."""
    if unit == "FLOPs":
        exponent = math.floor(math.log10(amount))
        return f"{math.ceil(amount / 10.0 ** (exponent - 1)) / 10:g}e{exponent} FLOPs"
    if unit == "tokens":
        return f"{math.ceil(amount / 1000)}k tokens"
    units = {"d": 86_400, "h": 3600, "m": 60}
    name = next((name for name, size in units.items() if amount >= 2 * size), "s")
    return f"{math.ceil(amount / units.get(name, 1))}{name}"


# --- Sizes ---


@dataclass(frozen=True)
class Size:
    """A network of the ladder.

    Attributes:
        name: A size of the family, or what makes it.
        changes: The overrides that make it.
        config: The pretraining with them, as long as its config says.
        flops: Per token.
    """

    name: str
    changes: tuple[str, ...]
    config: PretrainConfig
    parameters: int
    flops: float


@dataclass(frozen=True)
class SizeMaker:
    """Makes networks of other sizes than the config's."""

    path: Path
    overrides: tuple[str, ...]
    config: PretrainConfig
    vocab: Vocab

    @property
    def family(self) -> type[Family]:
        """The family of all sizes."""
        return get_family(self.config.model.family)

    def make(self, name: str, changes: tuple[str, ...]) -> Size:
        """The size that some overrides make; it is built without weights.

        Raises:
            ConfigError: The overrides are wrong, or the family cannot build the network.
        """
        try:
            config = load("pretrain", self.path, [*self.overrides, *changes])
            outline = check_network(config, self.vocab)
        except ConfigError as error:
            raise ConfigError(f"--sizes: {name}: {error.message}", error.hint) from error
        cost = costs(outline)
        return Size(name, changes, config, cost["parameters"], cost["flops_per_token"])

    def named(self, size: str) -> Size:
        """A size of the family; what the config sets of the network's shape is left out.

        Raises:
            ConfigError: The family has no such size.
        """
        sizes = self.family.SIZES
        if size not in sizes:
            family = self.config.model.family
            raise ConfigError(f"--sizes: {family} has no size {size!r}{nearest(size, sizes)}")
        return self.make(size, (*self._without_shape(), f"model.size={size}"))

    def candidates(self) -> Iterator[Size]:
        """Sizes from small to large: of one shape where the family has any, else its own."""
        width, *_ = self.family.WIDTH
        if not width or self.family.SIZE_FIELDS[1] != width:
            yield from sorted(
                (self.named(size) for size in self.family.SIZES), key=lambda size: size.parameters
            )
            return
        layers = self.family.SIZE_FIELDS[0]
        for depth, hidden in _SHAPES:
            shape = f"model.{layers}={depth}", f"model.{width}={hidden}"
            yield self.make(f"{depth}x{hidden}", (*self._without_shape(), *shape))

    def name_of(self, changes: Sequence[str]) -> str:
        """A short name for overrides: layers and hidden size if both are set, else all values."""
        values = {key: value for key, _, value in (change.partition("=") for change in changes)}
        shape = f"model.{self.family.SIZE_FIELDS[0]}", f"model.{self.family.WIDTH[0]}"
        named = [values[key] for key in shape if key in values]
        return "x".join(named if len(named) == 2 else values.values()).replace("/", "_")

    def _without_shape(self) -> tuple[str, ...]:
        """Overrides that leave the shape of the network to its size."""
        fields = self.family.Config.model_fields
        names = dict.fromkeys([*self.family.SIZE_FIELDS, *self.family.WIDTH])
        return tuple(
            f"model.{name}=null"
            for name in names
            if name in fields and fields[name].default is None
        )


def requested_sizes(maker: SizeMaker, requested: Sequence[str]) -> list[Size]:
    """The sizes of ``--sizes``, from small to large; empty if they are left to the budget.

    Raises:
        ConfigError: One of them is wrong, two are the same, or there is only one.
    """
    sizes: list[Size] = []
    if not requested:
        return sizes
    for value in requested:
        if "=" not in value:
            sizes += [maker.named(name.strip()) for name in value.split(",") if name.strip()]
            continue
        changes = tuple(shlex.split(value))
        for change in changes:
            key = change.partition("=")[0]
            if key.partition(".")[0] not in ("model", "optim", "compute"):
                raise ConfigError(
                    f"--sizes: {key}: all sizes have the same text, batch and schedule",
                    "a size may set keys of model, optim and compute",
                )
        sizes.append(maker.make(maker.name_of(changes), changes))
    sizes.sort(key=lambda size: size.parameters)
    for one, two in pairwise(sizes):
        if one.parameters == two.parameters:
            raise ConfigError(
                f"--sizes: {one.name} and {two.name} have the same {one.parameters:,} parameters",
                "leave one of them out",
            )
    if len(sizes) < 2:
        raise ConfigError("--sizes: a ladder needs two sizes or more", "name three or four")
    return sizes


def choose_sizes(maker: SizeMaker, largest: float, count: int) -> list[Size]:
    """Sizes around ``largest``, half of it, a quarter ...; the nearest that there are.

    Args:
        largest: Parameters that the budget is best spent on.

    Raises:
        ConfigError: The family has fewer sizes.
    """
    known: list[Size] = []
    for size in maker.candidates():
        if not known or size.parameters > known[-1].parameters:
            known.append(size)
        if len(known) > count and size.parameters > 2 * largest:
            break
    if len(known) < count:
        family = maker.config.model.family
        raise ConfigError(
            f"--rungs: {family} has {len(known)} sizes, not {count}", "name sizes with --sizes"
        )
    chosen: list[int] = []
    for number in range(count):
        target = largest / 2.0 ** (count - 1 - number)
        first = chosen[-1] + 1 if chosen else 0
        places = range(first, len(known) - (count - 1 - number))
        chosen.append(min(places, key=lambda n: abs(math.log(known[n].parameters / target))))
    return [known[place] for place in chosen]


# --- The ladder: which run has how many steps ---


@dataclass(frozen=True)
class Rung:
    """A run of the ladder.

    Attributes:
        level: Which of the lengths, from 0, the shortest.
        tokens: Sequences times their length.
        flops: Of the whole run.
    """

    size: Size
    level: int
    config: PretrainConfig
    parameters: int
    tokens: int
    flops: float

    @property
    def name(self) -> str:
        """The folder's name."""
        return Path(self.config.run).name


@dataclass(frozen=True)
class LadderPlan:
    """The lengths of every size.

    Attributes:
        sizes: From small to large.
        steps: Of the longest run of each size.
        shares: The lengths, as shares of the longest; the last is 1.
    """

    sizes: tuple[Size, ...]
    steps: tuple[int, ...]
    shares: tuple[float, ...]

    def rungs(self, out: Path) -> list[Rung]:
        """All runs: size by size, short before long."""
        rungs: list[Rung] = []
        for size, steps in zip(self.sizes, self.steps, strict=True):
            for level, share in enumerate(self.shares):
                config = rung_config(size, max(1, round(steps * share)), out)
                tokens = course(config.train).tokens[-1]
                flops = size.flops * tokens
                rungs.append(Rung(size, level, config, size.parameters, tokens, flops))
        return rungs

    @property
    def shortest(self) -> list[int]:
        """Steps of the shortest run of each size."""
        return [round(steps * self.shares[0]) for steps in self.steps]


def rung_config(size: Size, steps: int, out: Path) -> PretrainConfig:
    """The config of a size for another number of steps, with a schedule of the same shape.

    Phases, warmup and decay keep their shares of the run.
    """
    config = size.config
    whole = course(config.train)

    def scaled(mark: StepsOrShare) -> StepsOrShare:
        if mark.tokens is not None:
            share = mark.tokens / whole.tokens[-1]
        else:
            share = mark.root if isinstance(mark.root, float) else mark.of(1) / whole.steps
        return StepsOrShare(max(1, round(share * steps)) if share else 0)

    names = ("warmup", "decay", "decay_until", "plateau")
    marks = {name: scaled(dict(config.schedule)[name]) for name in names}
    ends = [round(end * steps / whole.steps) for end in whole.begins]
    phases = tuple(
        phase.model_copy(update={"steps": last - first})
        for phase, (first, last) in zip(config.train.phases, pairwise(ends), strict=True)
        if last > first
    )
    changes: dict[str, Any] = {"phases": phases}
    if config.train.batch_ramp is not None:
        tokens = max(1, round(config.train.batch_ramp.tokens * steps / whole.steps))
        changes["batch_ramp"] = config.train.batch_ramp.model_copy(update={"tokens": tokens})
    log = {"validate_every": None, "every": max(1, min(config.log.every, steps // 20))}
    return config.model_copy(
        update={
            "run": str(out / f"rung-{size.name}-{steps}"),
            "train": config.train.model_copy(update=changes),
            "schedule": config.schedule.model_copy(update=marks),
            "checkpoint": config.checkpoint.model_copy(update={"keep": 1, "keep_best": False}),
            "log": config.log.model_copy(update=log),
        }
    )


def make_plan(maker: SizeMaker, sizes: list[Size], budget: LadderBudget, count: int) -> LadderPlan:
    """The longest ladder that a budget pays for.

    Args:
        sizes: The requested ones; empty: chosen here.

    Raises:
        ConfigError: A run would be too short; the message says which fit.
    """
    if not sizes:
        sizes = choose_sizes(maker, _best_spent(maker, budget), count)
    if budget.unit == "seconds":
        say(f"measuring {len(sizes)} sizes on this machine")
        prices = [seconds_per_token(size) for size in sizes]
    else:
        prices = [size.flops if budget.unit == "FLOPs" else 1.0 for size in sizes]
    amount = budget.number * (_TRAINING if budget.unit == "seconds" else 1.0)
    plan = _filled(sizes, prices, amount, _SHARES[0])
    for shares in _SHARES[1:]:
        if min(plan.shortest) < _MIN_STEPS:
            plan = _filled(sizes, prices, amount, shares)
    if min(plan.shortest) < _MIN_STEPS:
        lines = [
            f"{size.name}: {steps} steps in the shortest run"
            + (", fits" if steps >= _MIN_STEPS else f", needs {_MIN_STEPS}")
            for size, steps in zip(sizes, plan.shortest, strict=True)
        ]
        needed = 1.1 * budget.number * _MIN_STEPS / max(min(plan.shortest), 1)
        raise ConfigError(
            "--budget: too small for this ladder\n  " + "\n  ".join(lines),
            f"set --budget '{rounded_up(needed, budget.unit)}' or more, or use smaller or fewer "
            "sizes, or a smaller train.batch_size",
        )
    return plan


def _filled(
    sizes: Sequence[Size], prices: Sequence[float], amount: float, shares: tuple[float, ...]
) -> LadderPlan:
    """Spend the amount on equally many tokens per parameter for all sizes.

    The smallest sizes get more, so that none has less than a twentieth of the largest one's FLOPs.

    Args:
        sizes: From small to large.
        prices: What a token costs in each.
    """
    most = max(size.parameters * size.flops for size in sizes)
    wanted = [max(size.parameters, _FLOOR * most / size.flops) for size in sizes]
    per_step = [course(s.config.train).tokens[-1] / s.config.train.steps for s in sizes]
    scale = amount / sum(tokens * price for tokens, price in zip(wanted, prices, strict=True))
    scale /= sum(shares)
    for _ in range(5):
        steps = [int(scale * w / tokens) for w, tokens in zip(wanted, per_step, strict=True)]
        plan = LadderPlan(tuple(sizes), tuple(max(1, s) for s in steps), shares)
        price_of = {size.name: price for size, price in zip(sizes, prices, strict=True)}
        cost = sum(r.tokens * price_of[r.size.name] for r in plan.rungs(Path()))
        if 0.98 * amount <= cost <= amount:
            break
        scale *= 0.99 * amount / cost
    return plan


def _best_spent(maker: SizeMaker, budget: LadderBudget) -> float:
    """Parameters of a network that the largest run of a ladder trains on 20 tokens each."""
    share = 0.6 / sum(_SHARES[0])  # of the largest size, of its longest run
    if budget.unit == "tokens":
        return share * budget.number / _TOKENS_PER_PARAMETER
    flops = budget.number
    if budget.unit == "seconds":
        one = next(size for size in maker.candidates() if size.name != "1x64")
        flops *= _TRAINING * one.flops / seconds_per_token(one)
    return math.sqrt(share * flops / (6 * _TOKENS_PER_PARAMETER))


def seconds_per_token(size: Size) -> float:
    """The time of a training token on this machine, from a few micro-batches."""
    seconds: float = measured(preflight(size.config))["seconds"]
    return seconds / course(size.config.train).tokens[-1]
