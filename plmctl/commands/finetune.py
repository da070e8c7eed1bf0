"""``plmctl finetune``: a pretrained folder and labelled rows in, a finetuned folder out.

From top to bottom: the command, the labelled rows, training, trained parameters, validation,
saving; then ``--seeds`` and ``--grid``: several runs of one config and one table of them.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from plmctl.corpus.labelled import (
    add_example_checks,
    check_rows,
    refuse_empty,
    rows_digest,
    split_rows,
    summarize_checks,
)
from plmctl.errors import ConfigError, DataError, PlmError, Preempted, nearest
from plmctl.evaluation.model import family_of
from plmctl.examples.keys import fold, stream
from plmctl.families.base import get_family
from plmctl.files import is_model
from plmctl.metrics.statistics import spread
from plmctl.run import launch
from plmctl.run.budget import save_at_steps
from plmctl.run.configs import FinetuneConfig
from plmctl.run.display import COMPILE_NOTE, say, show_result
from plmctl.run.folder import (
    AtWork,
    check_inputs,
    check_run,
    is_finished,
    is_trained,
    open_run,
    start_processes,
    write_environment,
    write_results,
)
from plmctl.run.preflight import check_model, failure_handling, retention
from plmctl.tasks.base import Finetuned, ScoredConfig, Task, TaskExamples, make_task
from plmctl.training.trackers import check_trackers

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.optim import Optimizer
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from plmctl.models.base import Examples
    from plmctl.run.stop import StopRequest
    from plmctl.training.checkpoint import Watch
    from plmctl.training.engine import Engine
    from plmctl.training.loop import Plan


_REPORT = "report.html"


def run(
    config: FinetuneConfig,
    *,
    fresh: bool,
    as_json: bool,
    until: int | None = None,
    accept_gap: bool = False,
) -> None:
    """Finetune, or resume an interrupted run; a finished run is left unchanged.

    Args:
        config: The config of the run.
        fresh: Move an existing run folder aside.
        as_json: Print the results as JSON.
        until: Save and stop after this step.
        accept_gap: Resume although lines of metrics.jsonl were lost.
    """
    results = finetuned(config, fresh=fresh, until=until, accept_gap=accept_gap)
    if results is None:
        say(f"{config.run} is finished: its model is in {Path(config.run) / 'model'}")
        return
    from plmctl.reporting.tables import classification_tables

    show_result(results, classification_tables(f"finetuned {config.run}", results), as_json=as_json)


def finetuned(
    config: FinetuneConfig,
    *,
    fresh: bool,
    until: int | None = None,
    accept_gap: bool = False,
) -> dict[str, Any] | None:
    """Finetune, or resume. Returns the results, or None if the run was finished before."""
    folder = Path(config.run)
    check_run(config, config.run, fresh=fresh)
    check_trackers(config.log.trackers)
    if not fresh and is_finished(folder):
        return None
    if not fresh and is_trained(folder):
        say(f"{folder} is trained; writing its report")
        if launch.is_main():
            with AtWork(folder) as work:
                _complete(folder, work)
        results = json.loads((folder / "eval" / "valid.json").read_text(encoding="utf-8"))
        return dict(results["results"])
    check_model(config.model)
    examples = read_examples(config)
    if not fresh:
        check_inputs(folder, examples.hashes)
    if launch.is_main():
        open_run(config, config.run, fresh=fresh)
        write_results(folder, "data", {"kind": "data", **examples.check})
    processes = launch.process_count(config.launch, config.compute.device)
    if processes > 1 and not launch.is_worker():
        options = launch.options(until, accept_gap=accept_gap)
        raise SystemExit(start_processes("finetune", folder, processes, options))
    for line in summarize_checks(examples.check):
        say(line)
    with AtWork(folder) if launch.is_main() else nullcontext() as work:
        return _train(config, examples, work, until=until, accept_gap=accept_gap)


# --- The labelled rows: read, checked, and as examples of the task ---


_FEW = 8


@dataclass(frozen=True)
class LabelledExamples:
    """Labelled rows as examples of a task."""

    task: Task[ScoredConfig]
    tokenizer: PreTrainedTokenizerBase
    labels: tuple[str, ...]
    train: TaskExamples[ScoredConfig]
    valid: dict[str, TaskExamples[ScoredConfig]]
    """By the name of each validation set; the first decides which weights are best."""
    check: dict[str, Any]
    """The results of ``corpus.labelled.check_rows``."""
    few: TaskExamples[ScoredConfig]
    """A few rows of the first validation set: metrics are tried on them before the first step."""
    hashes: dict[str, str]
    """The hashes of all rows and of each validation set, for ``environment.json``."""

    @property
    def first_valid(self) -> TaskExamples[ScoredConfig]:
        """The validation rows that decide which weights are best."""
        return next(iter(self.valid.values()))


def read_examples(config: FinetuneConfig) -> LabelledExamples:
    """The rows of a config, split and tokenized.

    Raises:
        ConfigError: ``train.max_length`` is beyond the network's positions, or a metric of
            ``task.metrics`` cannot be computed.
        DataError: A missing file or column, a row without text, or a label that is not among the
            training rows'.
    """
    from plmctl.models.load import refuse_longer

    task = make_task(config.task)
    tokenizer = task.tokenizer(config.model)
    longest = config.train.max_length
    taken = task.positions(longest)
    further = " and task.max_target_length" if taken > longest else ""
    refuse_longer(config.model, taken, f"train.max_length{further}")
    split = split_rows(config.data, config.seed, task.split_columns(), task.is_labelled)
    columns = task.text_columns()
    for rows in (split.train, *split.valid.values()):
        refuse_empty(rows, columns)
    labels = task.labels(split.train)
    make = partial(task.make, tokenizer=tokenizer, labels=labels, max_length=longest)
    made = make(split.train, use="train")
    scored = {name: make(rows, use="score") for name, rows in split.valid.items()}
    for examples in scored.values():
        examples.check_metrics()
    label = task.label_column if labels else None
    cut = {"train": made.cut, **{name: examples.cut for name, examples in scored.items()}}
    found = add_example_checks(
        check_rows(split.train, split.valid, columns, label), cut, made.dropped, split.unlabelled
    )
    if not len(made):
        raise DataError(
            "; ".join(["no row can be learned from", *made.dropped[:3]]), "see eval/data.json"
        )
    held_out = [row for rows in split.valid.values() for row in rows]
    hashes = {"data": rows_digest([*split.train, *held_out])}
    hashes |= {
        name: rows_digest(rows)
        for name, rows in zip(file_names(split.valid), split.valid.values(), strict=True)
    }
    few = make(next(iter(split.valid.values()))[:_FEW], use="score")
    return LabelledExamples(task, tokenizer, labels, made, scored, found, few, hashes)


def file_names(valid: Iterable[str]) -> list[str]:
    """The names of validation sets in files: the first is ``valid``, whatever its name."""
    return [f"valid-{name}" if number else "valid" for number, name in enumerate(valid)]


# --- Training ---


def _train(
    config: FinetuneConfig,
    examples: LabelledExamples,
    work: AtWork | None,
    *,
    until: int | None,
    accept_gap: bool,
) -> dict[str, Any]:
    """The results of the weights that are kept; empty in all processes except the main one."""
    from plmctl.training import loop
    from plmctl.training.checkpoint import Checkpoints
    from plmctl.training.engine import make_accelerator
    from plmctl.training.journal import Journal
    from plmctl.training.memory import fitted

    folder = Path(config.run)
    accelerator = make_accelerator(config.compute)
    accelerator.wait_for_everyone()
    engine = _engine(config, accelerator, examples)
    if accelerator.unwrap_model(engine.network).compiled:
        say(COMPILE_NOTE)
    plan = replace(
        make_plan(config, examples.train, accelerator), until=until, **failure_handling(config)
    )
    plan = replace(plan, save_at=save_at_steps(config.checkpoint.at, plan.steps))
    check_metric(engine, config, examples.few)
    if accelerator.is_main_process:
        write_environment(folder, examples.hashes)
    with Journal(
        folder,
        title=f"finetuning {config.model} ({config.task.name})",
        total_steps=plan.steps,
        trackers=config.log.trackers,
        quiet=not accelerator.is_main_process,
        accept_gap=accept_gap,
    ) as journal:
        checkpoints = Checkpoints(
            folder / "checkpoints", retention(config.checkpoint, plan.save_at)
        )
        plan = fitted(engine, plan, journal, folder)
        watch = watch_of(config, folder / "best")
        judged = config if watch is not None else None  # if the best weights are kept
        validate = partial(validation_scores, engine, examples.first_valid, plan, judged)
        progress = loop.train(engine, plan, checkpoints, journal, validate, watch)
        journal.event("finished", step=progress.step)
    if work is None:
        return {}
    facts = {
        "rows": len(examples.train),
        "valid_rows": len(examples.first_valid),
        "init": config.init,
        "steps": progress.step,
    }
    results = _save(config, work, engine, examples, facts)
    _complete(folder, work)
    return results


def make_plan(config: FinetuneConfig, examples: Examples, accelerator: Accelerator) -> Plan:
    """The steps of a config, divided among these processes."""
    from plmctl.training.data import Phase, Slicing, auto_micro_batch
    from plmctl.training.loop import Plan
    from plmctl.training.schedule import rate

    batch = config.train.batch_size
    rows = -(-batch // accelerator.num_processes)
    device, length = accelerator.device.type, config.train.max_length
    micro = auto_micro_batch(config.train.micro_batch_size, rows, length, device)
    slicing = Slicing(batch, micro, accelerator.process_index, accelerator.num_processes)
    if config.train.group_by_length:
        slicing = replace(slicing, lengths=examples.lengths())
    total = math.ceil(config.train.epochs * len(examples) / batch)
    return Plan(
        phases=(Phase(examples, total, slicing),),
        seed=config.seed,
        learning_rate=lambda number: config.optim.lr * rate(config.schedule, number, total),
        clip=config.optim.clip,
        log_every=config.log.every,
        validate_every=validation_interval(config, len(examples)),
        save_every=config.checkpoint.every,
    )


def _engine(config: FinetuneConfig, accelerator: Accelerator, examples: LabelledExamples) -> Engine:
    """The network with the task's head, the parameters that are trained, and their optimizer."""
    import torch

    from plmctl.models.load import new_head_message
    from plmctl.models.network import Network
    from plmctl.training.engine import for_finetuning, make_engine

    task = examples.task
    if config.init == "pretrained" and task.label_column is not None:
        message = new_head_message(config.model, examples.labels)
        if message is not None and accelerator.is_main_process:
            say(message)
    torch.manual_seed(int(fold(config.seed, stream("init"))) >> 1)  # the head's fresh weights
    model = task.load(
        config.model,
        examples.labels,
        pretrained=config.init == "pretrained",
        changes=_dropout(config),
        new_heads=say,
    )
    set_trained_layers(config, model)
    compute = for_finetuning(config.compute)
    engine = make_engine(accelerator, Network(model, task.forward), config.optim, compute)
    if config.train.layer_decay < 1:
        set_layer_rates(engine.trained().optimizer, model, config.train.layer_decay)
    return engine


def _dropout(config: FinetuneConfig) -> dict[str, float]:
    """The fields of the model's config that set its dropout, if the config has one."""
    if config.train.dropout is None:
        return {}
    return dict.fromkeys(get_family(family_of(config.model)).DROPOUT, config.train.dropout)


# --- Which parameters are trained, and how fast ---


def set_trained_layers(config: FinetuneConfig, model: PreTrainedModel) -> None:
    """New top layers, frozen layers or adapters, as the config says, in place.

    Raises:
        ConfigError: More layers than the network has, or no such layers.
        PlmError: peft is not installed.
    """
    import torch

    from plmctl.models.parameters import add_lora, freeze, reinit

    torch.manual_seed(int(fold(config.seed, stream("reinit"))) >> 1)
    if config.train.reinit_layers:
        reinit(model, config.train.reinit_layers)
    if config.train.freeze is not None:
        freeze(model, config.train.freeze)
    if config.lora is not None:
        add_lora(config.lora, model)


def set_layer_rates(optimizer: Optimizer, model: PreTrainedModel, decay: float) -> None:
    """Divide the optimizer's groups by layer; ``scale`` is each layer's share of the learning rate.

    The loop sets the learning rate of every group to the schedule's times its scale.
    """
    from plmctl.models.parameters import depths, layer_rates

    shares = layer_rates(depths(model), decay)
    by_id = {id(parameter): shares[name] for name, parameter in model.named_parameters()}
    made: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        parts: dict[float, list[Any]] = {}
        for parameter in group["params"]:
            parts.setdefault(by_id[id(parameter)], []).append(parameter)
        made += [{**group, "params": of, "scale": share} for share, of in parts.items()]
    optimizer.param_groups[:] = made


# --- Validation: the metric that decides, and when it is computed ---


# The metric that decides if the config names none: the first of these that the task has.
_DEFAULT_METRICS = ("accuracy", "f1", "spearman", "bleu", "exact_match", "f1_micro", "f1_macro")


_SMALLER_IS_BETTER = ("loss", "perplexity", "mse", "mae", "mean_squared_error")


def metric_of(asked: str | None, metrics: Mapping[str, Any]) -> str:
    """The name of the metric that decides.

    Args:
        asked: In the config; None: the task's usual one.
        metrics: The metrics of the task.

    Raises:
        ConfigError: There is no such metric.
    """
    numbers = [name for name, value in metrics.items() if isinstance(value, int | float)]
    if asked is None:
        return next((name for name in _DEFAULT_METRICS if name in numbers), numbers[0])
    if asked not in numbers:
        raise ConfigError(
            f"train.metric: no metric {asked!r}{nearest(asked, numbers)}",
            f"the task has: {', '.join(numbers)}",
        )
    return asked


def with_further_metrics(
    results: Mapping[str, Any], name: str, metrics: Mapping[str, Any]
) -> dict[str, Any]:
    """Results with the numbers of a further validation set, as ``mismatched/accuracy``."""
    numbers = {key: value for key, value in metrics.items() if isinstance(value, int | float)}
    return {**results, **{f"{name}/{key}": value for key, value in numbers.items()}}


def larger_is_better(metric: str) -> bool:
    """Whether a larger value of a metric is better."""
    return metric not in _SMALLER_IS_BETTER


def watch_of(config: FinetuneConfig, folder: Path) -> Watch | None:
    """How the best weights are kept and training stops early; None: neither."""
    from plmctl.training.checkpoint import Watch

    train = config.train
    if train.keep == "last" and train.patience is None:
        return None
    kept = folder if train.keep == "best" else None
    smaller = train.metric is not None and not larger_is_better(train.metric)
    return Watch("valid/judged", larger=not smaller, patience=train.patience, folder=kept)


def validation_interval(config: FinetuneConfig, rows: int) -> int | None:
    """Steps between validations: ``train.validate_every`` if the best weights are kept."""
    if config.train.keep == "last" and config.train.patience is None:
        return config.log.validate_every
    return config.train.validate_every or math.ceil(rows / config.train.batch_size)


def check_metric(engine: Engine, config: FinetuneConfig, few: TaskExamples[ScoredConfig]) -> None:
    """Refuse a ``train.metric`` that the task does not have, before the first step.

    Args:
        engine: Network and processes.
        config: The run's.
        few: A few validation rows: their metrics have the same names.

    Raises:
        ConfigError: With the metrics that there are.
    """
    if config.train.metric is not None:
        metric_of(config.train.metric, {**_task_metrics(engine, few), "loss": 0.0})


def validation_scores(
    engine: Engine,
    examples: TaskExamples[ScoredConfig],
    plan: Plan,
    judged: FinetuneConfig | None,
    *,
    stop: StopRequest | None = None,
) -> dict[str, float]:
    """Losses over all processes; if the best weights are kept, also the metric that decides.

    Args:
        engine: Network and processes.
        examples: The validation rows.
        plan: How they are divided.
        judged: The run's config, if the best weights are kept.
        stop: A request to stop, which ends it.

    Raises:
        StopAsked: A process was asked to stop.
    """
    from plmctl.evaluation.scoring import score
    from plmctl.training.data import scoring_batches

    batches = scoring_batches(examples, plan.phases[0].slicing)
    bare = engine.accelerator.unwrap_model(engine.network)
    scores = score(engine.accelerator, bare, examples, batches, stop)
    if judged is not None:
        metrics = {**_task_metrics(engine, examples), "loss": scores["loss"]}
        name = metric_of(judged.train.metric, metrics)
        scores |= {name: metrics[name], "judged": metrics[name]}
    return {f"valid/{name}": value for name, value in scores.items()}


def _task_metrics(engine: Engine, examples: TaskExamples[ScoredConfig]) -> dict[str, Any]:
    """The task's metrics, computed by the main process and broadcast to the others."""
    from accelerate.utils import broadcast_object_list

    from plmctl.evaluation.scoring import answers

    accelerator = engine.accelerator
    shared: list[Any] = [None]
    if accelerator.is_main_process:
        bare = accelerator.unwrap_model(engine.network)
        shared = [examples.compute_metrics(answers(bare, examples, accelerator.device))]
    return dict(broadcast_object_list(shared)[0])


# --- Saving: results, model folder and report ---


def _save(
    config: FinetuneConfig,
    work: AtWork,
    engine: Engine,
    examples: LabelledExamples,
    facts: dict[str, Any],
) -> dict[str, Any]:
    """Write the results of the weights that are kept, and the model folder unless it exists."""
    from plmctl.evaluation.scoring import answers
    from plmctl.reporting.card import model_card
    from plmctl.run.folder import save_model

    folder = Path(config.run)
    bare = engine.accelerator.unwrap_model(engine.network)
    model: Any = bare.model
    if config.train.keep == "best":
        from plmctl.training.checkpoint import take_best

        facts |= {"best_step": take_best(folder / "best", model)}
    if config.lora is not None:
        from plmctl.models.parameters import merge_lora

        merge_lora(model)
    results: dict[str, Any] = {}
    uncertainty: dict[str, Any] = {}
    sets = zip(file_names(examples.valid), examples.valid.items(), strict=True)
    for file, (name, valid) in sets:
        found = answers(bare, valid, engine.accelerator.device)
        metrics = valid.compute_metrics(found)
        errors = {k: spread for k, spread in valid.uncertainty(found).items() if k in metrics}
        uncertainty |= {f"{name}/{k}": at for k, at in errors.items()} if results else errors
        results = with_further_metrics(results, name, metrics) if results else metrics | facts
        credit, values = valid.credits(found)
        credits = {"rows": examples.hashes[file], "credit": credit, "values": values}
        write_results(folder, f"rows/{file}", credits)
    document = {"kind": "finetune", "model": config.model, "results": results}
    write_results(folder, "valid", {**document, "uncertainty": uncertainty})
    rows = [f"eval/rows/{file}.json" for file in file_names(examples.valid)]
    work.promise(["model", "eval/data.json", "eval/valid.json", *rows, _REPORT])
    if not is_model(folder / "model"):
        task = make_task(examples.task.settled(results))
        made = Finetuned(task, examples.labels, config.train.max_length)
        card = model_card(folder, type(model).__name__)
        save_model(folder, model, examples.tokenizer, card, made)
    return results


def _complete(folder: Path, work: AtWork) -> None:
    """Write the report, which follows the model."""
    from plmctl.reporting.report import write_report

    write_report([folder], folder / _REPORT)
    work.finish()


# --- ``--seeds`` and ``--grid``: several runs of one config, and one table of them ---


@dataclass(frozen=True)
class ProtocolRun:
    """One run of a protocol.

    Attributes:
        setting: The values of the grid that it has, by key.
        config: With its own run folder and seed.
    """

    setting: Mapping[str, Any]
    config: FinetuneConfig


def run_protocol(
    config: FinetuneConfig,
    seeds: int,
    *,
    grid: bool,
    jobs: int | None,
    as_json: bool,
    accept_gap: bool = False,
) -> None:
    """Run every combination and seed that is not finished yet, then compare all of them.

    Args:
        config: What the runs share.
        seeds: Runs of each combination, with the seeds ``config.seed``, that plus 1, and so on.
        grid: Try the combinations of ``config.grid``.
        jobs: Runs at the same time; None: one per CUDA device, or one.
        as_json: Print the results as JSON.
        accept_gap: Resume runs although lines of their metrics.jsonl were lost.

    Raises:
        ConfigError: No grid, or an unknown key or value in it.
        PlmError: Some of the runs failed; the others are finished, and are kept.
    """
    planned = protocol_runs(config, seeds, grid=grid)
    check_run(config, config.run, fresh=False)
    folder = open_run(config, config.run, fresh=False)
    from plmctl.reporting.report import write_report
    from plmctl.reporting.tables import protocol_table

    with AtWork(folder) as work:
        failed = finish_all([member.config for member in planned], jobs, accept_gap=accept_gap)
        document = compare_settings(config, planned)
        work.promise(["eval/protocol.json", "report.html"])
        write_results(folder, "protocol", {"kind": "protocol", **document})
        title = f"{config.run}: {document['metric']}"
        show_result(document, [protocol_table(title, document)], as_json=as_json)
        if failed:
            several = "\n  ".join(f"{name}: {said}" for name, said in failed.items())
            raise PlmError(
                f"{len(failed)} of {len(planned)} runs failed:\n  {several}",
                "the others are kept; the same command tries these again",
            )
        write_report([folder], folder / "report.html")
        work.finish()


def protocol_runs(config: FinetuneConfig, seeds: int, *, grid: bool) -> list[ProtocolRun]:
    """The runs of a protocol, in the order of the grid, each in a folder named by its setting.

    Raises:
        ConfigError: As ``run_protocol``.
    """
    if grid and not config.grid:
        raise ConfigError(
            "--grid: the config has no grid", "write one: grid: {optim.lr: [5e-5, 3e-5, 2e-5]}"
        )
    axes = config.grid if grid else {}
    made = []
    for values in product(*axes.values()):
        setting = dict(zip(axes, values, strict=True))
        for seed in range(config.seed, config.seed + seeds):
            name = ",".join(f"{_short_key(key, axes)}={value}" for key, value in setting.items())
            folder = Path(config.run) / (name.replace("/", "_") or "seeds") / f"seed={seed}"
            made.append(
                ProtocolRun(setting, _with_setting(config, {**setting, "seed": seed}, str(folder)))
            )
    return made


def _with_setting(config: FinetuneConfig, values: Mapping[str, Any], run: str) -> FinetuneConfig:
    document = config.model_dump(mode="json")
    for key, value in values.items():
        *path, last = key.split(".")
        at: Any = document
        for part in path:
            at = at.get(part) if isinstance(at, dict) else None
        if not isinstance(at, dict) or last not in at or key in ("run", "grid"):
            known = [f"{'.'.join(path)}.{name}" if path else name for name in at or ()]
            raise ConfigError(f"grid: unknown key {key!r}{nearest(key, known)}")
        at[last] = value
    # Each run has one device: several runs in parallel are faster than one on several devices.
    document |= {"run": run, "grid": {}}
    document["launch"]["processes"] = 1
    try:
        return FinetuneConfig.model_validate_json(json.dumps(document), strict=True)
    except ValueError as error:
        shown = ", ".join(f"{key}={value}" for key, value in values.items())
        said = str(error).splitlines()[2].strip()
        raise ConfigError(f"grid: {shown}: {said}") from error


def _short_key(key: str, axes: Mapping[str, Any]) -> str:
    """The last part of a key, or all of it where two axes end alike."""
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in axes) == 1 else key


def compare_settings(config: FinetuneConfig, planned: Sequence[ProtocolRun]) -> dict[str, Any]:
    """Every setting's median, spread and best over its seeds, by the runs' results on disk.

    Returns:
        metric, settings (in the order of the grid), and the best setting: that with the best
        median, where several seeds were run, and its best run.
    """
    known = [
        (member, found) for member in planned if (found := _finished_results(member.config.run))
    ]
    if not known:
        raise PlmError("no run was finished", "see the messages above")
    metric = metric_of(config.train.metric, known[0][1])
    sign = 1 if larger_is_better(metric) else -1
    settings: dict[str, dict[str, Any]] = {}
    for member, found in known:
        label = json.dumps(member.setting)
        at = settings.setdefault(label, {"setting": dict(member.setting), "runs": {}})
        at["runs"][member.config.run] = found[metric]
    rows = []
    for at in settings.values():
        values = list(at["runs"].values())
        best = max(at["runs"], key=lambda run: sign * at["runs"][run])
        rows.append({**at, **spread(values), "best": at["runs"][best], "best_run": best})
    chosen = max(rows, key=lambda row: sign * row["median"])
    return {"metric": metric, "settings": rows, "chosen": chosen}


def _finished_results(run: str) -> dict[str, Any] | None:
    path = Path(run) / "eval" / "valid.json"
    if not is_finished(Path(run)) or not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["results"]
    return found


# --- Running several, one after another or in parallel ---


def finish_all(
    configs: Sequence[FinetuneConfig], jobs: int | None, *, accept_gap: bool = False
) -> dict[str, str]:
    """Run what is not finished.

    Args:
        configs: Each with its own run folder.
        jobs: As ``run_protocol``.
        accept_gap: As ``run_protocol``.

    Returns:
        The runs that failed, with their messages.
    """
    left = [config for config in configs if _finished_results(config.run) is None]
    if len(left) < len(configs):
        say(f"{len(configs) - len(left)} of {len(configs)} runs are finished")
    if not left:
        return {}
    devices = _device_count(left[0].compute.device)
    at_once = min(len(left), jobs or max(1, devices))
    attempt = partial(_attempt, accept_gap=accept_gap)
    if at_once == 1 >= devices:
        tried = _one_by_one(attempt, left)
    else:
        tried = _in_parallel(attempt, left, at_once, devices)
    failed = {}
    for number, (name, said) in enumerate(tried, 1):
        say(f"{number} of {len(left)}: {name}: {said or 'finished'}")
        if said:
            failed[name] = said
    return failed


def _one_by_one(
    attempt: Callable[[FinetuneConfig], str | None], configs: Sequence[FinetuneConfig]
) -> Iterator[tuple[str, str | None]]:
    for config in configs:
        yield config.run, attempt(config)


def _in_parallel(
    attempt: Callable[[FinetuneConfig], str | None],
    configs: Sequence[FinetuneConfig],
    count: int,
    devices: int,
) -> Iterator[tuple[str, str | None]]:
    """Run several in separate processes, each with one device."""
    context = multiprocessing.get_context("spawn")
    queue: Any = context.Queue()
    for number in range(count):
        queue.put(number % devices if devices else None)
    pool = ProcessPoolExecutor(count, context, _take_device, (queue,))
    with _passing_signals_on() as stopped, pool:
        running = {pool.submit(attempt, config): config.run for config in configs}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        except BrokenProcessPool as error:
            if stopped:  # a run that had not started yet, and had nothing to save
                raise Preempted("stopped", "the same command continues") from error
            raise PlmError(
                "a run's process was killed; was there too little memory?",
                "the same command continues; fewer --jobs need less memory",
            ) from error
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _attempt(config: FinetuneConfig, *, accept_gap: bool) -> str | None:
    """Finish a run. Returns None, or the error; a stop by a signal stops the protocol."""
    try:
        finetuned(config, fresh=False, accept_gap=accept_gap)
    except Preempted:
        raise
    except PlmError as error:
        return error.message
    return None


def _take_device(queue: Any) -> None:
    """Take a device, before CUDA is initialised."""
    import os

    device = queue.get()
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(device)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def _device_count(device: str) -> int:
    import torch

    return torch.cuda.device_count() if device in ("auto", "cuda") else 0


@contextmanager
def _passing_signals_on() -> Iterator[list[int]]:
    """Pass a signal to this process on to the runs, which save a checkpoint and end.

    Yields:
        The signals so far.
    """
    seen: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        for child in multiprocessing.active_children():
            child.terminate()

    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGTERM, before)
