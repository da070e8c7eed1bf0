"""``plmctl scaling``: train a ladder of sizes, fit their losses, and predict the next size.

A ladder (``scaling_ladder``) has a few sizes of one family, and for each size two or three lengths.
Every combination, a rung, is an ordinary pretraining run, from its own first step.

N is the number of all parameters, embeddings included. FLOPs are those of ``plmctl plan``.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from plmctl.arrays import Floats
from plmctl.commands.prepare import prepare
from plmctl.commands.scaling_ladder import (
    LadderBudget,
    LadderPlan,
    Rung,
    SizeMaker,
    make_plan,
    requested_sizes,
)
from plmctl.config.base import Model, Text
from plmctl.config.load import difference, dump, parse
from plmctl.corpus.prepared import PreparedText
from plmctl.errors import ConfigError, DataError, PlmError
from plmctl.files import read_json, write_atomically, writing
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
from plmctl.objectives.base import make_objective
from plmctl.reporting.html import save_page
from plmctl.reporting.scaling_report import ladder_table, scaling_page, scaling_tables
from plmctl.run.configs import PretrainConfig, load
from plmctl.run.display import say, show_result
from plmctl.run.folder import (
    FREE_KEYS,
    check_run,
    is_unstarted,
    locked,
    read_results,
    start_over,
)
from plmctl.run.launch import StartOptions
from plmctl.run.preflight import preflight
from plmctl.run.several import finish_all, refuse_changed

_FACTORS = (2, 4, 10)  # compute of the predictions, as multiples of the largest run's
_DRAWS = 100
_SEED = 0  # of the draws
_POINTS = 40  # of a curve
_LARGEST = 60  # sizes that are tried for predictions, as a multiple of the largest rung


@dataclass(frozen=True)
class ScalingRequest:
    """The options of the command.

    Attributes:
        sizes: Each a size of the family, or the overrides that make one; empty: chosen here.
        budget: Of the whole ladder: a time, FLOPs or tokens.
        rungs: How many sizes are chosen; None: 4.
        out: The folder of the ladder; None: beside the config's run folder.
    """

    sizes: tuple[str, ...]
    budget: str
    rungs: int | None
    out: str | None
    plan_only: bool


class ScalingConfig(Model):
    """What decides a ladder, as ``scaling.yaml`` keeps it."""

    budget: Text
    """The budget of the whole ladder."""
    sizes: tuple[Text, ...] = ()
    """The requested sizes; empty: chosen by the budget."""
    rungs: int | None = None
    """How many sizes are chosen."""
    pretrain: PretrainConfig
    """The pretraining that is scaled."""


def run(path: Path, overrides: Sequence[str], request: ScalingRequest, *, as_json: bool) -> None:
    """Train what is missing of a ladder, fit it, and write ``scaling.json`` and ``scaling.html``.

    Raises:
        ConfigError: The config, the sizes or the budget cannot make a ladder; or the folder is of
            another one.
        DataError: No document is held out; or as ``train_ladder``.
    """
    if request.sizes and request.rungs is not None:
        raise ConfigError("--rungs cannot be used with --sizes", "leave one of them out")
    config = load("pretrain", path, overrides)
    _check_config(config)
    budget = LadderBudget.of(request.budget, "--budget")
    settings = ScalingConfig(
        budget=request.budget, sizes=request.sizes, rungs=request.rungs, pretrain=config
    )
    out = Path(request.out or f"{config.run}-scaling")
    replaces = _check_out(out, settings)
    prepared = preflight(config)
    maker = SizeMaker(path, tuple(overrides), config, prepared.vocab)
    sizes = requested_sizes(maker, request.sizes)
    for size in sizes:  # a size that cannot be trained is refused now, not after the smaller ones
        preflight(size.config)
    text = prepare(config, prepared.encoder)
    if text.valid is None:
        raise DataError(
            "data.valid: no document is held out, so there is no loss to fit",
            "increase data.valid, or name validation files",
        )
    # A ladder that was started keeps its plan, so that its finished rungs still belong to it.
    plan = None if replaces else _kept_plan(out, maker)
    if plan is None:
        plan = make_plan(maker, sizes, budget, request.rungs or 4)
    rungs = plan.rungs(out)
    shown = [_as_row(rung) for rung in rungs]
    if request.plan_only:
        show_result({"rungs": shown}, [ladder_table(shown)], as_json=as_json)
        return
    if replaces:
        start_over(out)
    _write_settings(out, settings, plan)
    with locked(out):
        train_ladder(rungs, text.hashes)
        document = analyse(plan, rungs, maker, text)
        with writing(out / "scaling.json") as file:
            write_atomically(file, json.dumps(document, indent=1, ensure_ascii=False))
        save_page(out / "scaling.html", scaling_page(document))
    show_result(document, scaling_tables(document), as_json=as_json)
    say(f"the plots are in {out / 'scaling.html'}")


def _check_config(config: PretrainConfig) -> None:
    """Refuse a config that has nothing to scale, or no loss to fit.

    Raises:
        ConfigError: It starts from a model, has a budget of its own, or validates nothing.
    """
    if config.model.init_from is not None:
        raise ConfigError(
            f"model.init_from: {config.model.init_from} has one size, and a ladder needs several",
            "leave it out",
        )
    if config.train.budget is not None:
        raise ConfigError(
            "train.budget: the runs of a ladder have steps, which --budget decides",
            "leave it out, and give each phase steps: their shares of the run are kept",
        )
    if not config.data.valid:
        raise ConfigError(
            "data.valid: a ladder is fitted to the validation loss, and nothing is validated",
            "set data.valid=5%, or name validation files",
        )


# --- The folder of a ladder ---


_SETTINGS, _PLAN = "scaling.yaml", "ladder.json"


def _check_out(out: Path, settings: ScalingConfig) -> bool:
    """Refuse a folder that has another ladder, or something else.

    Returns:
        Whether it has another ladder without a step of training, which this one replaces.

    Raises:
        ConfigError: With what differs.
    """
    kept = out / _SETTINGS
    hint = "name another folder with --out, or remove this one"
    if not kept.is_file():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(f"{out} exists already and is not the folder of a ladder", hint)
        return False
    unstarted = is_unstarted(out, (_SETTINGS, _PLAN))
    try:
        before = parse(ScalingConfig, kept)
    except ConfigError as error:
        if unstarted:
            return True
        raise ConfigError(error.message, hint) from error
    free = tuple(f"pretrain.{key}" for key in (*FREE_KEYS, "run:"))
    changed = [line for line in difference(before, settings) if not line.startswith(free)]
    if changed and not unstarted:
        shown = "\n  ".join(changed)
        raise ConfigError(f"{out}: a ladder of another config:\n  {shown}", hint)
    return bool(changed)


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
    document = read_json(path, "sizes")
    sizes = document["sizes"]
    return LadderPlan(
        tuple(maker.make(one["name"], tuple(one["changes"])) for one in sizes),
        tuple(one["steps"] for one in sizes),
        tuple(document["shares"]),
    )


# --- Training: every rung is an ordinary run ---


def train_ladder(rungs: Sequence[Rung], hashes: Mapping[str, str | None]) -> None:
    """Finish every rung; without one of them there is nothing to fit, so the first error ends it.

    Args:
        hashes: Of the text and the tokenizer as they are now.

    Raises:
        Preempted: A signal stopped a run, which has saved a checkpoint.
        PlmError: A run failed, or its folder belongs to another config.
        DataError: A run was trained on other text, or with another tokenizer.
    """
    from plmctl.commands.pretrain import made_from

    configs = [rung.config for rung in rungs]
    for config in configs:
        check_run(config, config.run, fresh=False)
    refuse_changed(
        configs,
        lambda config: {**hashes, **made_from(config)},
        "or start a new ladder with --out",
    )
    finish_all(configs, _train, stop=True)


def _train(config: PretrainConfig) -> None:
    """Pretrain; its result goes to stderr with its messages."""
    from plmctl.commands.pretrain import run as pretrain

    try:
        with redirect_stdout(sys.stderr):
            pretrain(config, StartOptions(), as_json=False)
    except SystemExit as end:  # of several processes
        if end.code:
            raise


# --- From the finished runs to the law and its predictions ---


def analyse(
    plan: LadderPlan, rungs: Sequence[Rung], maker: SizeMaker, text: PreparedText
) -> dict[str, Any]:
    """The document of ``scaling.json``: runs, law, uncertainty, predictions, warnings.

    Args:
        text: Its number of tokens says how often it is repeated.
    """
    term = make_objective(maker.config.objective).first_term
    losses = np.array([_held_out_loss(rung, term) for rung in rungs])
    runs = Runs(
        np.array([float(rung.parameters) for rung in rungs]),
        np.array([float(rung.tokens) for rung in rungs]),
        np.array([rung.flops for rung in rungs]),
        losses,
    )
    fitted = Fitted.of(runs)
    # Predictions may choose sizes that were not trained; too far from those the law says nothing.
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
    # The largest rung gives the speed: small networks use the machine less well.
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
    results = read_results(path)["results"]
    loss = results.get(f"valid/loss/{term}")
    if not isinstance(loss, float) or not math.isfinite(loss):
        raise PlmError(f"{path}: the validation loss is {loss}", "increase data.valid")
    return loss


def _seconds(rung: Rung) -> float:
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
    rows = []
    for size in plan.sizes:
        others = runs.parameters != size.parameters
        kept = runs.where(others)
        if not enough(kept.parameters, kept.tokens):
            continue
        law = fit(kept.parameters, kept.tokens, kept.losses)
        place = max(n for n, rung in enumerate(rungs) if rung.size is size)
        predicted = float(law.loss(runs.parameters[place], runs.tokens[place]))
        measured_loss = float(runs.losses[place])
        rows.append(
            {
                "size": size.name,
                "rung": rungs[place].name,
                "loss": measured_loss,
                "predicted": predicted,
                "error": predicted / measured_loss - 1,
            }
        )
    return rows


# --- When a fit is not to be trusted ---


_USUAL = 0.05, 1.0  # exponents
_WIDE = 0.1  # width of the prediction's interval, as a share of the loss
_NOISY = 0.02  # largest residual, as a share of the loss
_WRONG = 0.03  # error of a size that is predicted by the others
_PASSES = 4  # repetitions of the text that are about as good as new text (Muennighoff et al. 2023)


def _warnings(
    document: Mapping[str, Any], runs: Runs, fitted: Fitted, sizes: SizesTried
) -> list[str]:
    warnings = []
    rungs, next_one = document["rungs"], document["predictions"][0]
    count = len(np.unique(runs.parameters))
    if fitted.law is None:
        warnings.append(
            f"{count} sizes are too few for L(N, D), which needs three: only L(C) is fitted, and "
            "the best size is unknown"
        )
    else:
        for name in ("alpha", "beta"):
            value = document["law"][name]
            if not _USUAL[0] <= value["value"] <= _USUAL[1]:
                warnings.append(
                    f"{name} = {value['value']:.2f} is outside of {_USUAL[0]} to {_USUAL[1]}: the "
                    "runs do not decide it"
                )
            elif value["low"] is not None and value["high"] - value["low"] > value["value"]:
                warnings.append(
                    f"{name} is uncertain: {value['low']:.2f} to {value['high']:.2f}; use more "
                    "sizes, or a larger budget"
                )
        edges = (sizes.names[0], sizes.names[-1])
        at_edge = [p["factor"] for p in document["predictions"] if p["size"] in edges]
        if at_edge:
            warnings.append(
                f"the best size for {', '.join(f'{k}x' for k in at_edge)} the compute is the "
                "smallest or the largest that was tried: the runs do not decide it"
            )
    if next_one["low"] is None:
        warnings.append("as many constants as runs: the uncertainty is unknown")
    elif next_one["high"] - next_one["low"] > _WIDE * next_one["loss"]:
        warnings.append(
            f"the interval of the next loss is wide: {next_one['low']:.3f} to "
            f"{next_one['high']:.3f}"
        )
    off = [row for row in rungs if abs(row["residual"]) > _NOISY * row["loss"]]
    if off and fitted.law is not None:
        names = ", ".join(row["rung"] for row in off)
        warnings.append(f"the law misses runs by more than {_NOISY:.0%}: {names}")
    wrong = [one for one in document["held_out_sizes"] if abs(one["error"]) > _WRONG]
    for one in wrong:
        warnings.append(
            f"without {one['size']} the law predicts its loss {one['error']:+.1%} wrong: "
            f"{one['predicted']:.3f}, measured {one['loss']:.3f}"
        )
    for one, two in pairwise(rungs):
        if one["size"] == two["size"] and two["loss"] > one["loss"]:
            warnings.append(f"{two['rung']} has a higher loss than the shorter {one['rung']}")
    if document["passes"] is not None and document["passes"] > _PASSES:
        warnings.append(
            f"the longest run reads the text {document['passes']:.1f} times: repeated text teaches "
            "less than new text, and the law does not know that"
        )
    return warnings


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
        part = "all" if share == 1 else f"{share:g}"
        curve: dict[str, Any] = {"name": f"{part} of the tokens", **_points(own.parameters, own)}
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
