"""``plmctl scaling``: train a ladder of sizes, fit their losses, and predict the next size.

A ladder has a few sizes of one family, and for each size two or three lengths. Every combination,
a rung, is an ordinary pretraining run. All sizes see about the same number of tokens per parameter,
so that compute grows with the square of the size: the largest run is as large as the budget allows,
and the prediction beyond it as short as possible.

Two lengths of a size whose learning rates begin in the same way share these steps: the longer run
starts from a checkpoint of the shorter one, and is the run that it would be alone, bit for bit.
With a warmup-stable-decay schedule they share all but the decay.

N is the number of all parameters, embeddings included. FLOPs are those of ``plmctl plan``.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from plmctl.arrays import Floats
from plmctl.commands.plan import costs, measured
from plmctl.commands.prepare import PreparedText, prepare
from plmctl.commands.pretrain import run as pretrain
from plmctl.config.base import Model, Text
from plmctl.config.load import difference, dump, parse
from plmctl.config.units import StepsOrShare
from plmctl.errors import ConfigError, DataError, PlmError, Preempted, nearest
from plmctl.families.base import get_family
from plmctl.files import new_folder, write_atomically, writing
from plmctl.metrics.scaling_law import (
    Law,
    PowerLaw,
    enough,
    fit,
    fit_power,
    noise_of,
    on_frontier,
    redrawn,
)
from plmctl.objectives.base import get_objective
from plmctl.reporting.html import save_page
from plmctl.reporting.scaling_report import ladder_table, scaling_page, scaling_tables
from plmctl.run.configs import PretrainConfig, load
from plmctl.run.display import say, show_result
from plmctl.run.folder import FREE_KEYS, check_run, is_finished, locked
from plmctl.run.preflight import check_network, preflight
from plmctl.tokenization.load import Vocab
from plmctl.training.schedule import Course, course, factor

if TYPE_CHECKING:
    from plmctl.families.base import Family

# Lengths as shares of the longest; the first that the budget pays for.
_SHARES: tuple[tuple[float, ...], ...] = ((0.125, 0.35, 1.0), (0.25, 0.5, 1.0), (0.5, 1.0))
_MIN_STEPS = 20
_FLOOR = 1 / 20  # FLOPs of a size, as a share of those of the largest, at least
_TRAINING = 0.9  # share of a budget of time; the rest is for validation, saving and reports
_TOKENS_PER_PARAMETER = 20  # of the ladder's sizes, if they are chosen here (Hoffmann et al. 2022)
_FACTORS = (2, 4, 10)  # compute of the predictions, as multiples of the largest run's
_DRAWS = 100
_SEED = 0  # of the draws
_POINTS = 40  # of a curve
_LARGEST = 60  # sizes that are tried for predictions, as a multiple of the largest rung

# Layers and hidden size: 64 per layer, as BERT-base and GPT-2 small have; heads of 64.
_SHAPES = (
    *((1, 64), (2, 128), (3, 192), (4, 256), (5, 320), (6, 384), (8, 512), (10, 640), (12, 768)),
    *((16, 1024), (20, 1280), (24, 1536), (32, 2048), (40, 2560), (48, 3072)),
)


@dataclass(frozen=True)
class Request:
    """The options of the command.

    Attributes:
        sizes: Each a size of the family, or the overrides that make one; empty: chosen here.
        budget: Of the whole ladder: a time, FLOPs or tokens.
        rungs: How many sizes are chosen; None: 4.
        out: The folder of the ladder; None: beside the config's run folder.
        plan_only: Show the ladder and train nothing.
    """

    sizes: tuple[str, ...]
    budget: str
    rungs: int | None
    out: str | None
    plan_only: bool


class ScalingConfig(Model):
    """What decides a ladder, as ``scaling.yaml`` keeps it."""

    budget: Text
    """Of the whole ladder."""
    sizes: tuple[Text, ...] = ()
    """The requested sizes; empty: chosen by the budget."""
    rungs: int | None = None
    """How many sizes are chosen."""
    pretrain: PretrainConfig
    """The pretraining that is scaled."""


def run(path: Path, overrides: Sequence[str], request: Request, *, as_json: bool) -> None:
    """Train what is missing of a ladder, fit it, and write ``scaling.json`` and ``scaling.html``.

    Args:
        path: The config of a pretraining.
        overrides: ``KEY=VALUE`` each.
        request: The options.
        as_json: Print one JSON document.

    Raises:
        ConfigError: The config, the sizes or the budget cannot make a ladder; or the folder is of
            another one.
        DataError: No document is held out.
    """
    config = load("pretrain", path, overrides)
    _check_config(config)
    budget = Budget.of(request.budget)
    settings = ScalingConfig(
        budget=request.budget, sizes=request.sizes, rungs=request.rungs, pretrain=config
    )
    out = Path(request.out or f"{config.run}-scaling")
    _check_out(out, settings)
    prepared = preflight(config)
    maker = SizeMaker(path, tuple(overrides), config, prepared.vocab)
    sizes = requested_sizes(maker, request)
    text = prepare(config, prepared.encoder)
    if text.valid is None:
        raise DataError(
            "data.valid: no document is held out, so there is no loss to fit",
            "increase data.valid, or name validation files",
        )
    plan = _kept_plan(out, maker)
    if plan is None:
        plan = make_plan(maker, sizes, budget, request.rungs or 4)
    rungs = plan.rungs(out)
    shown = [_as_row(rung) for rung in rungs]
    if request.plan_only:
        show_result({"rungs": shown}, [ladder_table(shown)], as_json=as_json)
        return
    _write_settings(out, settings, plan)
    with locked(out):
        train_ladder(rungs)
        document = analyse(plan, rungs, maker, text)
        with writing(out / "scaling.json") as file:
            write_atomically(file, json.dumps(document, indent=1, ensure_ascii=False))
        save_page(out / "scaling.html", scaling_page(document))
    show_result(document, scaling_tables(document), as_json=as_json)
    say(f"the plots are in {out / 'scaling.html'}")


def _check_config(config: PretrainConfig) -> None:
    """Refuse a config that has nothing to scale, or no loss to fit.

    Raises:
        ConfigError: It starts from a model, or validates nothing.
    """
    if config.model.init_from is not None:
        raise ConfigError(
            f"model.init_from: {config.model.init_from} has one size, and a ladder needs several",
            "leave it out",
        )
    if not config.data.valid:
        raise ConfigError(
            "data.valid: a ladder is fitted to the validation loss, and nothing is validated",
            "set data.valid=5%, or name validation files",
        )


# --- The budget ---


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_TIME = re.compile(r"(?:\d+(?:\.\d+)?\s*[smhd]\s*)+")
_FLOPS = re.compile(r"(\d+(?:\.\d+)?(?:e\+?\d+)?)\s*flops?")


@dataclass(frozen=True)
class Budget:
    """What a whole ladder may cost.

    Attributes:
        kind: The unit.
        amount: Seconds, FLOPs or tokens.
    """

    kind: Literal["seconds", "flops", "tokens"]
    amount: float

    @classmethod
    def of(cls, text: str) -> Budget:
        """A budget as written: ``1h30m``, ``1e15 FLOPs``, ``20M tokens``.

        Raises:
            ConfigError: It is none of these.
        """
        plain = text.strip().lower()
        amount, kind = 0.0, "seconds"
        if _TIME.fullmatch(plain):
            parts = re.findall(r"([\d.]+)\s*([smhd])", plain)
            amount = sum(float(number) * _UNITS[unit] for number, unit in parts)
        elif match := _FLOPS.fullmatch(plain):
            amount, kind = float(match[1]), "flops"
        elif plain.endswith("tokens"):
            try:
                amount, kind = float(StepsOrShare(text.strip()).tokens or 0), "tokens"
            except ValueError:
                amount = 0.0
        if not 0 < amount < math.inf:
            raise ConfigError(
                f"--budget: {text!r} is no budget",
                "write a time (30m, 1h, 2d), FLOPs ('1e15 FLOPs') or tokens ('20M tokens')",
            )
        return cls(kind, amount)  # type: ignore[arg-type]  # one of the three

    def written(self, amount: float) -> str:
        """An amount, rounded up, as a user would write it."""
        if self.kind == "flops":
            exponent = math.floor(math.log10(amount))
            return f"{math.ceil(amount / 10.0 ** (exponent - 1)) / 10:g}e{exponent} FLOPs"
        if self.kind == "tokens":
            return f"{math.ceil(amount / 1000)}k tokens"
        unit = next(u for u in ("d", "h", "m", "s") if amount >= 2 * _UNITS[u] or u == "s")
        return f"{math.ceil(amount / _UNITS[unit])}{unit}"


# --- Sizes ---


@dataclass(frozen=True)
class Size:
    """A network of the ladder.

    Attributes:
        name: A size of the family, or what makes it.
        changes: The overrides that make it.
        config: The pretraining with them, as long as its config says.
        parameters: All of them.
        flops: Per token.
    """

    name: str
    changes: tuple[str, ...]
    config: PretrainConfig
    parameters: int
    flops: float


@dataclass(frozen=True)
class SizeMaker:
    """Makes networks of other sizes than the config's.

    Attributes:
        path: The config's file.
        overrides: Of the command line.
        config: The pretraining.
        vocab: The vocabulary of its tokenizer.
    """

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
            network = check_network(config, self.vocab)
        except ConfigError as error:
            raise ConfigError(f"--sizes: {name}: {error.message}", error.hint) from error
        cost = costs(config, self.vocab, network, encoder=None)
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

    def _without_shape(self) -> tuple[str, ...]:
        """Overrides that leave the shape of the network to its size."""
        fields = self.family.Config.model_fields
        names = dict.fromkeys([*self.family.SIZE_FIELDS, *self.family.WIDTH])
        return tuple(
            f"model.{name}=null"
            for name in names
            if name in fields and fields[name].default is None
        )


def requested_sizes(maker: SizeMaker, request: Request) -> list[Size]:
    """The sizes of ``--sizes``, from small to large; empty if they are left to the budget.

    Raises:
        ConfigError: One of them is wrong, two are the same, or there is only one.
    """
    if not request.sizes:
        return []
    if request.rungs is not None:
        raise ConfigError("--rungs cannot be used with --sizes", "leave one of them out")
    found = []
    for value in request.sizes:
        if "=" not in value:
            found += [maker.named(name.strip()) for name in value.split(",") if name.strip()]
            continue
        changes = tuple(shlex.split(value))
        for change in changes:
            key = change.partition("=")[0]
            if key.partition(".")[0] not in ("model", "optim", "compute"):
                raise ConfigError(
                    f"--sizes: {key}: all sizes have the same text, batch and schedule",
                    "a size may set keys of model, optim and compute",
                )
        shape = [c.partition("=")[2] for c in changes if c.startswith("model.")]
        found.append(maker.make("x".join(shape) or value, changes))
    found.sort(key=lambda size: size.parameters)
    for one, two in pairwise(found):
        if one.parameters == two.parameters:
            raise ConfigError(
                f"--sizes: {one.name} and {two.name} have the same {one.parameters:,} parameters",
                "leave one of them out",
            )
    if len(found) < 2:
        raise ConfigError("--sizes: a ladder needs two sizes or more", "name three or four")
    return found


def choose_sizes(maker: SizeMaker, largest: float, count: int) -> list[Size]:
    """Sizes around ``largest``, half of it, a quarter ...; the nearest that there are.

    Args:
        maker: Makes them.
        largest: Parameters that the budget is best spent on.
        count: How many.

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
        size: Its network.
        level: Which of the lengths, from 0, the shortest.
        config: Its config.
        parameters: All of them.
        tokens: Sequences times their length.
        flops: Of the whole run.
        shared: Steps at its beginning that are those of the rung before.
    """

    size: Size
    level: int
    config: PretrainConfig
    parameters: int
    tokens: int
    flops: float
    shared: int

    @property
    def name(self) -> str:
        """The folder's name."""
        return Path(self.config.run).name

    @property
    def new(self) -> float:
        """Share of its steps that are not those of the rung before."""
        return 1 - self.shared / self.config.train.steps


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
        made: list[Rung] = []
        for size, steps in zip(self.sizes, self.steps, strict=True):
            lengths = [max(1, round(steps * share)) for share in self.shares]
            own = [rung_config(size, length, lengths[0], out) for length in lengths]
            for level, config in enumerate(own):
                tokens = course(config.train).tokens[-1]
                shared = shared_steps(own[level - 1], config) if level else 0
                flops = size.flops * tokens
                made.append(Rung(size, level, config, size.parameters, tokens, flops, shared))
        return made

    @property
    def shortest(self) -> list[int]:
        """Steps of the shortest run of each size."""
        return [round(steps * self.shares[0]) for steps in self.steps]


def rung_config(size: Size, steps: int, shortest: int, out: Path) -> PretrainConfig:
    """The config of a size for another number of steps, with a schedule of the same shape.

    Phases, warmup and decay keep their shares of the run. With a warmup-stable-decay schedule all
    lengths of a size have the warmup of the shortest, so that they begin in the same way.

    Args:
        size: The network.
        steps: Of this run.
        shortest: Steps of the shortest run of this size.
        out: The folder of the ladder.
    """
    config = size.config
    whole = course(config.train)
    begun = shortest if config.schedule.name == "wsd" else steps

    def scaled(mark: StepsOrShare, of: int) -> StepsOrShare:
        if mark.tokens is not None:
            share = mark.tokens / whole.tokens[-1]
        else:
            share = mark.root if isinstance(mark.root, float) else mark.of(1) / whole.steps
        return StepsOrShare(max(1, round(share * of)) if share else 0)

    lengths = {"warmup": begun, "decay": steps, "decay_until": steps, "plateau": steps}
    marks = {name: scaled(dict(config.schedule)[name], of) for name, of in lengths.items()}
    ends = [round(end * steps / whole.steps) for end in whole.begins]
    phases = tuple(
        phase.model_copy(update={"steps": last - first})
        for phase, (first, last) in zip(config.train.phases, pairwise(ends), strict=True)
        if last > first
    )
    changes: dict[str, Any] = {"phases": phases}
    if config.train.batch_ramp is not None:
        tokens = max(1, round(config.train.batch_ramp.tokens * begun / whole.steps))
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


def shared_steps(one: PretrainConfig, two: PretrainConfig) -> int:
    """How many steps at the beginning are the same in two runs of one network.

    Which examples a step has is a function of the seed and the step, so two runs are the same until
    a step has another learning rate, length or batch.
    """
    first, second = course(one.train), course(two.train)
    rates = factor(one.schedule, first), factor(two.schedule, second)
    for step in range(min(first.steps, second.steps)):
        if _step(first, step) != _step(second, step) or rates[0](step) != rates[1](step):
            return step
    return min(first.steps, second.steps)


def _step(steps: Course, number: int) -> tuple[int, int, int]:
    """Phase, sequence length and batch of a step."""
    phase = sum(begin <= number for begin in steps.begins[1:])
    within = number - steps.begins[phase]
    return phase, steps.seq_lens[phase], steps.sizes[phase].of(within)


def make_plan(maker: SizeMaker, sizes: list[Size], budget: Budget, count: int) -> LadderPlan:
    """The longest ladder that a budget pays for.

    Args:
        maker: Makes sizes.
        sizes: The requested ones; empty: chosen here.
        budget: Of the whole ladder.
        count: How many sizes are chosen.

    Raises:
        ConfigError: A run would be too short; the message says which fit.
    """
    if not sizes:
        sizes = choose_sizes(maker, _best_spent(maker, budget), count)
    if budget.kind == "seconds":
        say(f"measuring {len(sizes)} sizes on this machine")
        prices = [seconds_per_token(size) for size in sizes]
    else:
        prices = [size.flops if budget.kind == "flops" else 1.0 for size in sizes]
    amount = budget.amount * (_TRAINING if budget.kind == "seconds" else 1.0)
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
        needed = 1.1 * budget.amount * _MIN_STEPS / max(min(plan.shortest), 1)
        raise ConfigError(
            "--budget: too small for this ladder\n  " + "\n  ".join(lines),
            f"set --budget '{budget.written(needed)}' or more, or use smaller or fewer sizes, or a "
            "smaller train.batch_size",
        )
    return plan


def _filled(
    sizes: Sequence[Size], prices: Sequence[float], amount: float, shares: tuple[float, ...]
) -> LadderPlan:
    """As many tokens per parameter as the amount pays for, the same for all sizes.

    The smallest sizes get more, so that none has less than a twentieth of the largest one's FLOPs.

    Args:
        sizes: From small to large.
        prices: What a token costs in each.
        amount: What the ladder may cost.
        shares: The lengths.
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
        cost = sum(r.tokens * r.new * price_of[r.size.name] for r in plan.rungs(Path()))
        if 0.98 * amount <= cost <= amount:
            break
        scale *= 0.99 * amount / cost
    return plan


def _best_spent(maker: SizeMaker, budget: Budget) -> float:
    """Parameters of a network that the largest run of a ladder trains on 20 tokens each."""
    share = 0.6 / sum(_SHARES[0])  # of the largest size, of its longest run
    if budget.kind == "tokens":
        return share * budget.amount / _TOKENS_PER_PARAMETER
    flops = budget.amount
    if budget.kind == "seconds":
        one = next(size for size in maker.candidates() if size.name != "1x64")
        flops *= _TRAINING * one.flops / seconds_per_token(one)
    return math.sqrt(share * flops / (6 * _TOKENS_PER_PARAMETER))


def seconds_per_token(size: Size) -> float:
    """The time of a training token on this machine, from a few micro-batches."""
    seconds: float = measured(preflight(size.config))["seconds"]
    return seconds / course(size.config.train).tokens[-1]


# --- The folder of a ladder ---


_SETTINGS, _PLAN = "scaling.yaml", "ladder.json"


def _check_out(out: Path, settings: ScalingConfig) -> None:
    """Refuse a folder that has another ladder, or something else.

    Raises:
        ConfigError: With what differs.
    """
    kept = out / _SETTINGS
    hint = "name another folder with --out, or remove this one"
    if not kept.is_file():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(f"{out} exists already and is not the folder of a ladder", hint)
        return
    try:
        before = parse(ScalingConfig, kept)
    except ConfigError as error:
        raise ConfigError(error.message, hint) from error
    free = tuple(f"pretrain.{key}" for key in (*FREE_KEYS, "run:"))
    changed = [line for line in difference(before, settings) if not line.startswith(free)]
    if changed:
        shown = "\n  ".join(changed)
        raise ConfigError(f"{out}: a ladder of another config:\n  {shown}", hint)


def _write_settings(out: Path, settings: ScalingConfig, plan: LadderPlan) -> None:
    """Write what decides the ladder, once: a measured time is another one the next time."""
    document = {
        "shares": plan.shares,
        "sizes": [
            {"name": size.name, "changes": size.changes, "steps": steps}
            for size, steps in zip(plan.sizes, plan.steps, strict=True)
        ],
    }
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        if not (out / _PLAN).is_file():
            write_atomically(out / _PLAN, json.dumps(document, indent=1))
        if not (out / _SETTINGS).is_file():
            write_atomically(out / _SETTINGS, dump(settings))


def _kept_plan(out: Path, maker: SizeMaker) -> LadderPlan | None:
    """The ladder that a folder was started with; None without one."""
    path = out / _PLAN
    if not path.is_file():
        return None
    document = json.loads(path.read_text(encoding="utf-8"))
    sizes = document["sizes"]
    return LadderPlan(
        tuple(maker.make(one["name"], tuple(one["changes"])) for one in sizes),
        tuple(one["steps"] for one in sizes),
        tuple(document["shares"]),
    )


# --- Training: every rung is an ordinary run ---


def train_ladder(rungs: Sequence[Rung]) -> None:
    """Finish every rung: a finished one is left alone, an interrupted one resumes.

    Raises:
        Preempted: A signal stopped a run, which has saved a checkpoint.
        PlmError: A run failed.
    """
    for number, rung in enumerate(rungs):
        check_run(rung.config, rung.config.run, fresh=False)
        following = rungs[number + 1] if number + 1 < len(rungs) else None
        if is_finished(Path(rung.config.run)):
            continue
        steps = rung.config.train.steps
        say(f"rung {number + 1} of {len(rungs)}: {rung.name} ({steps:,} steps)")
        if following is not None and following.size is rung.size and following.shared:
            _train_shared(rung, following)
        _train(rung.config)


def _train_shared(rung: Rung, following: Rung) -> None:
    """Train the steps that the following rung shares, and start it with their checkpoint."""
    target = Path(following.config.run)
    if target.exists() or _newest(Path(rung.config.run)) > following.shared:
        return
    if following.shared < rung.config.train.steps:
        _train(rung.config, until=following.shared)
    else:
        _train(rung.config)
    _branch(Path(rung.config.run), following)


def _train(config: PretrainConfig, until: int | None = None) -> None:
    """Pretrain to the end, or up to a step; its result goes to stderr with its messages."""
    try:
        with redirect_stdout(sys.stderr):
            pretrain(config, fresh=False, as_json=False, until=until)
    except Preempted:
        if until is None or _newest(Path(config.run)) != until:
            raise
    except SystemExit as stop:  # of several processes
        if stop.code == Preempted.exit_code and _newest(Path(config.run)) == until:
            return
        if stop.code:
            raise


def _branch(source: Path, rung: Rung) -> None:
    """A run folder that continues from a checkpoint of another run, with its own config."""
    target, step = Path(rung.config.run), f"step-{rung.shared:06d}"
    with writing(target), new_folder(target) as beside:
        (beside / "checkpoints").mkdir(parents=True)
        shutil.copytree(source / "checkpoints" / step, beside / "checkpoints" / step)
        for name in ("metrics.jsonl", "environment.json"):
            shutil.copyfile(source / name, beside / name)
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        event = {"time": now, "event": "branched", "from": source.name, "step": rung.shared}
        (beside / "events").write_text(json.dumps(event) + "\n", encoding="utf-8")
        (beside / "config.yaml").write_text(dump(rung.config), encoding="utf-8")


def _newest(folder: Path) -> int:
    """The step of the newest checkpoint; 0 without one."""
    saved = (folder / "checkpoints").glob("step-*")
    return max((int(path.name.removeprefix("step-")) for path in saved), default=0)


# --- From the finished runs to the law and its predictions ---


def analyse(
    plan: LadderPlan, rungs: Sequence[Rung], maker: SizeMaker, text: PreparedText
) -> dict[str, Any]:
    """The document of ``scaling.json``: runs, law, uncertainty, predictions, warnings.

    Args:
        plan: The ladder.
        rungs: Its runs, all finished.
        maker: Makes the sizes that are tried for predictions.
        text: Its number of tokens says how often it is repeated.
    """
    term = get_objective(maker.config.objective.name).LOSS_TERMS[0]
    losses = np.array([_held_out_loss(rung, term) for rung in rungs])
    runs = Runs(
        np.array([float(rung.parameters) for rung in rungs]),
        np.array([float(rung.tokens) for rung in rungs]),
        np.array([rung.flops for rung in rungs]),
        losses,
    )
    fitted = Fitted.of(runs)
    tried = list(plan.sizes)
    for size in maker.candidates():
        if size.parameters > _LARGEST * runs.parameters.max():
            break
        tried.append(size)
    tried.sort(key=lambda size: size.parameters)
    sizes = SizesTried(
        [size.name for size in tried],
        np.array([float(size.parameters) for size in tried]),
        np.array([size.flops for size in tried]),
    )
    passes = None if maker.config.data.mixture else runs.tokens.max() / text.train.num_tokens
    largest = rungs[-1]
    seconds = [_seconds(rung) for rung in rungs]
    per_step = largest.tokens / largest.config.train.steps
    predictions = [
        _prediction(k, runs, fitted, sizes, largest.flops / seconds[-1], per_step) for k in _FACTORS
    ]
    held_out = [] if fitted.law is None else _leave_one_out(plan, rungs, runs)
    document: dict[str, Any] = {
        "family": maker.config.model.family,
        "objective": maker.config.objective.name,
        "loss": f"valid/loss/{term}",
        "parameters": "all, embeddings included",
        "rungs": [
            {
                **_as_row(rung),
                "loss": float(losses[place]),
                "fitted": float(fitted.losses[place]),
                "residual": float(losses[place] - fitted.losses[place]),
                "seconds": seconds[place],
                "run": rung.config.run,
            }
            for place, rung in enumerate(rungs)
        ],
        "passes": passes,
        **fitted.document(),
        "held_out_sizes": held_out,
        "predictions": predictions,
    }
    document["warnings"] = _warnings(document, runs, fitted, sizes)
    document["plots"] = _plot_data(plan, rungs, runs, fitted, sizes, predictions)
    return document


@dataclass(frozen=True)
class Runs:
    """The numbers of all runs, each [R]."""

    parameters: Floats
    tokens: Floats
    compute: Floats
    losses: Floats

    def where(self, chosen: Any) -> Runs:
        """Some of them."""
        return Runs(
            self.parameters[chosen], self.tokens[chosen], self.compute[chosen], self.losses[chosen]
        )


@dataclass(frozen=True)
class SizesTried:
    """The sizes among which the best one is looked for, from small to large.

    Attributes:
        names: [S].
        parameters: [S].
        flops: [S] per token.
    """

    names: list[str]
    parameters: Floats
    flops: Floats


@dataclass(frozen=True)
class Fitted:
    """The laws of the runs, and those of runs that might have been.

    Attributes:
        law: L(N, D); None: too few runs.
        power: L(C).
        losses: [R] of the runs by the law, or by the power law without one.
        laws: Of each draw; empty without a law.
        powers: Of each draw.
        factors: [draws] noise of one more run.
    """

    law: Law | None
    power: PowerLaw
    losses: Floats
    laws: list[Law]
    powers: list[PowerLaw]
    factors: Floats

    @classmethod
    def of(cls, runs: Runs) -> Fitted:
        """Fit runs, and the draws of the bootstrap.

        Raises:
            PlmError: No run with more compute has a lower loss.
        """
        best = on_frontier(runs.compute, runs.losses)
        if best.sum() < 2:
            raise PlmError(
                "no run with more compute has a lower loss: there is nothing to fit",
                "lower optim.lr, or set a larger --budget",
            )
        power = fit_power(runs.compute[best], runs.losses[best])
        law = None
        if enough(runs.parameters, runs.tokens):
            law = fit(runs.parameters, runs.tokens, runs.losses)
            losses = law.loss(runs.parameters, runs.tokens)
            noise = noise_of(losses, runs.losses)
        else:
            losses = power.loss(runs.compute)
            noise = noise_of(losses[best], runs.losses[best], constants=2)
        if not np.isfinite(noise).all():
            return cls(law, power, losses, [], [], np.ones(0))
        drawn, factors = redrawn(losses, noise, _DRAWS, _SEED)
        laws = [] if law is None else [fit(runs.parameters, runs.tokens, one, law) for one in drawn]
        powers = [fit_power(runs.compute[best], one[best]) for one in drawn]
        return cls(law, power, losses, laws, powers, factors)

    def document(self) -> dict[str, Any]:
        """The constants with their intervals."""
        result: dict[str, Any] = {"law": None, "power_law": {}}
        for name, value in vars(self.power).items():
            draws = [vars(one)[name] for one in self.powers]
            result["power_law"][name] = _with_interval(value, draws)
        if self.law is not None:
            result["law"] = {
                name: _with_interval(value, [vars(one)[name] for one in self.laws])
                for name, value in vars(self.law).items()
            }
            exponents = [one.beta / (one.alpha + one.beta) for one in (self.law, *self.laws)]
            result["best_size_exponent"] = _with_interval(exponents[0], exponents[1:])
        return result


def _with_interval(value: float, draws: Sequence[float]) -> dict[str, float | None]:
    low, high = np.percentile(draws, [2.5, 97.5]) if len(draws) else (math.nan, math.nan)
    ends = {"low": float(low), "high": float(high)}
    return {"value": float(value), **(ends if len(draws) else {"low": None, "high": None})}


def _held_out_loss(rung: Rung, term: str) -> float:
    path = Path(rung.config.run) / "eval" / "valid.json"
    results = json.loads(path.read_text(encoding="utf-8"))["results"]
    loss = results.get(f"valid/loss/{term}")
    if not isinstance(loss, float) or not math.isfinite(loss):
        raise PlmError(f"{path}: the validation loss is {loss}", "increase data.valid")
    return loss


def _seconds(rung: Rung) -> float:
    """The time of all steps of a run, those that it shares included."""
    lines = (Path(rung.config.run) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    times = [record["time"] for record in map(json.loads, lines) if "time" in record]
    return float(times[-1])


def _as_row(rung: Rung) -> dict[str, Any]:
    return {
        "rung": rung.name,
        "size": rung.size.name,
        "level": rung.level,
        "parameters": rung.parameters,
        "tokens": rung.tokens,
        "steps": rung.config.train.steps,
        "shared_steps": rung.shared,
        "flops": rung.flops,
    }


def _prediction(
    factor: int,
    runs: Runs,
    fitted: Fitted,
    sizes: SizesTried,
    flops_per_second: float,
    tokens_per_step: float,
) -> dict[str, Any]:
    """What a run with a multiple of the largest run's compute should be, and its loss."""
    compute = factor * float(runs.compute.max())
    row: dict[str, Any] = {"factor": factor, "flops": compute}
    if fitted.law is None:
        row |= {"size": None, "parameters": None, "tokens": None, "steps": None}
        loss = float(fitted.power.loss(np.array(compute)))
        draws = [float(one.loss(np.array(compute))) for one in fitted.powers]
    else:
        best = fitted.law.best(compute, sizes.parameters, sizes.flops)
        size, tokens = sizes.parameters[best], compute / sizes.flops[best]
        steps = max(1, round(tokens / tokens_per_step))
        row |= {"size": sizes.names[best], "parameters": int(size)}
        row |= {"tokens": round(steps * tokens_per_step), "steps": steps}
        loss = float(fitted.law.loss(size, tokens))
        draws = [float(one.loss(size, tokens)) for one in fitted.laws]
    interval = _with_interval(loss, list(np.array(draws) * fitted.factors[: len(draws)]))
    return {
        **row,
        "loss": loss,
        "low": interval["low"],
        "high": interval["high"],
        "seconds": compute / flops_per_second,
    }


def _leave_one_out(plan: LadderPlan, rungs: Sequence[Rung], runs: Runs) -> list[dict[str, Any]]:
    """Each size predicted by the others: its longest run."""
    found = []
    for size in plan.sizes:
        others = runs.parameters != size.parameters
        kept = runs.where(others)
        if not enough(kept.parameters, kept.tokens):
            continue
        law = fit(kept.parameters, kept.tokens, kept.losses)
        place = max(n for n, rung in enumerate(rungs) if rung.size is size)
        predicted = float(law.loss(runs.parameters[place], runs.tokens[place]))
        measured_loss = float(runs.losses[place])
        found.append(
            {
                "size": size.name,
                "rung": rungs[place].name,
                "loss": measured_loss,
                "predicted": predicted,
                "error": predicted / measured_loss - 1,
            }
        )
    return found


# --- When a fit is not to be trusted ---


_USUAL = 0.05, 1.0  # exponents
_WIDE = 0.1  # width of the prediction's interval, as a share of the loss
_NOISY = 0.02  # largest residual, as a share of the loss
_WRONG = 0.03  # error of a size that is predicted by the others
_PASSES = 4  # repetitions of the text that are about as good as new text (Muennighoff et al. 2023)


def _warnings(
    document: Mapping[str, Any], runs: Runs, fitted: Fitted, sizes: SizesTried
) -> list[str]:
    found = []
    rungs, next_one = document["rungs"], document["predictions"][0]
    count = len(np.unique(runs.parameters))
    if fitted.law is None:
        found.append(
            f"{count} sizes are too few for L(N, D), which needs three: only L(C) is fitted, and "
            "the best size is unknown"
        )
    else:
        for name in ("alpha", "beta"):
            value = document["law"][name]
            if not _USUAL[0] <= value["value"] <= _USUAL[1]:
                found.append(
                    f"{name} = {value['value']:.2f} is outside of {_USUAL[0]} to {_USUAL[1]}: the "
                    "runs do not decide it"
                )
            elif value["low"] is not None and value["high"] - value["low"] > value["value"]:
                found.append(
                    f"{name} is uncertain: {value['low']:.2f} to {value['high']:.2f}; use more "
                    "sizes, or a larger budget"
                )
        edges = (sizes.names[0], sizes.names[-1])
        at_edge = [p["factor"] for p in document["predictions"] if p["size"] in edges]
        if at_edge:
            found.append(
                f"the best size for {', '.join(f'{k}x' for k in at_edge)} the compute is the "
                "smallest or the largest that was tried: the runs do not decide it"
            )
    if next_one["low"] is None:
        found.append("as many constants as runs: the uncertainty is unknown")
    elif next_one["high"] - next_one["low"] > _WIDE * next_one["loss"]:
        found.append(
            f"the interval of the next loss is wide: {next_one['low']:.3f} to "
            f"{next_one['high']:.3f}"
        )
    off = [row for row in rungs if abs(row["residual"]) > _NOISY * row["loss"]]
    if off and fitted.law is not None:
        names = ", ".join(row["rung"] for row in off)
        found.append(f"the law misses runs by more than {_NOISY:.0%}: {names}")
    wrong = [one for one in document["held_out_sizes"] if abs(one["error"]) > _WRONG]
    for one in wrong:
        found.append(
            f"without {one['size']} the law predicts its loss {one['error']:+.1%} wrong: "
            f"{one['predicted']:.3f}, measured {one['loss']:.3f}"
        )
    for one, two in pairwise(rungs):
        if one["size"] == two["size"] and two["loss"] > one["loss"]:
            found.append(f"{two['rung']} has a higher loss than the shorter {one['rung']}")
    if document["passes"] is not None and document["passes"] > _PASSES:
        found.append(
            f"the longest run reads the text {document['passes']:.1f} times: repeated text teaches "
            "less than new text, and the law does not know that"
        )
    return found


# --- Data of the plots ---


def _plot_data(
    plan: LadderPlan,
    rungs: Sequence[Rung],
    runs: Runs,
    fitted: Fitted,
    sizes: SizesTried,
    predictions: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Curves of the law: by parameters for each length, by compute for each size and the best."""
    law, levels = fitted.law, np.array([rung.level for rung in rungs])
    by_parameters = []
    for level, share in enumerate(plan.shares):
        own = runs.where(levels == level)
        curve: dict[str, Any] = {"name": f"{share:g} of the tokens", **_points(own.parameters, own)}
        if law is not None:
            n = np.geomspace(own.parameters.min(), own.parameters.max(), _POINTS)
            d = np.exp(np.interp(np.log(n), np.log(own.parameters), np.log(own.tokens)))
            curve |= {"curve_x": n.tolist(), "curve_y": law.loss(n, d).tolist()}
        by_parameters.append(curve)
    by_compute = []
    for size in plan.sizes:
        own = runs.where(runs.parameters == size.parameters)
        curve = {"name": size.name, **_points(own.compute, own)}
        if law is not None:
            c = np.geomspace(own.compute.min(), own.compute.max(), _POINTS)
            n = np.full(_POINTS, float(size.parameters))
            curve |= {"curve_x": c.tolist(), "curve_y": law.loss(n, c / size.flops).tolist()}
        by_compute.append(curve)
    c = np.geomspace(runs.compute.min(), _FACTORS[-1] * runs.compute.max(), _POINTS)
    if law is None:
        best, draws = fitted.power.loss(c), [one.loss(c) for one in fitted.powers]
    else:
        tried = np.geomspace(sizes.parameters[0], sizes.parameters[-1], 400)
        cost = np.exp(np.interp(np.log(tried), np.log(sizes.parameters), np.log(sizes.flops)))
        chosen = [law.best(one, tried, cost) for one in c]
        n, d = tried[chosen], c / cost[chosen]
        best, draws = law.loss(n, d), [one.loss(n, d) for one in fitted.laws]
    frontier: dict[str, Any] = {"x": c.tolist(), "y": best.tolist(), "low": None, "high": None}
    if draws:
        low, high = np.percentile(draws, [2.5, 97.5], axis=0)
        frontier |= {"low": low.tolist(), "high": high.tolist()}
    return {
        "by_parameters": by_parameters,
        "by_compute": by_compute,
        "frontier": frontier,
        "power_law": fitted.power.loss(c).tolist(),
    }


def _points(x: Floats, runs: Runs) -> dict[str, list[float]]:
    return {"x": x.tolist(), "y": runs.losses.tolist()}
