"""``plmctl finetune``: a pretrained folder and labelled rows in, a finetuned folder out.

The parts of a finetuning in their order: preflight, the labelled rows, the plan of the steps, the
network and which of its parameters are trained, training, validation, and what a finished run
leaves (results, model folder, report). ``--seeds`` and ``--grid`` are in ``finetune_grid.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl.corpus.labelled import (
    add_example_checks,
    check_rows,
    refuse_empty,
    rows_digest,
    split_rows,
    summarize_checks,
)
from plmctl.corpus.source import content_hash
from plmctl.errors import ConfigError, DataError
from plmctl.examples.keys import fold, stream
from plmctl.files import is_model
from plmctl.hashing import digest_of_present, model_hashes
from plmctl.metrics.deciding import counted_metric, larger_is_better, metric_of
from plmctl.run import launch
from plmctl.run.agreement import agree_on_start, check_ready, connected
from plmctl.run.configs import FinetuneConfig
from plmctl.run.costs import network_facts
from plmctl.run.display import say, show_result
from plmctl.run.folder import (
    AtWork,
    read_results,
    run_progress,
    say_what_changed,
    start_on_machine,
    write_environment,
    write_results,
)
from plmctl.run.launch import StartOptions
from plmctl.run.machine import failure_handling, retention, say_notes
from plmctl.run.preflight import PreparedFinetuning, finetune_preflight
from plmctl.run.sample_costs import save_at_steps
from plmctl.run.yardstick import beside_network, keep_yardstick, kept_methods
from plmctl.tasks._elmo import reads_characters
from plmctl.tasks.base import Answer, Finetuned, ScoredConfig, TaskExamples, make_task
from plmctl.tokenization.unknown import UnknownCounter, sampled
from plmctl.training.judge import (
    BUILDING,
    COUNTING,
    FINISHING,
    PREPARING,
    SCORING,
    VALIDATING,
)
from plmctl.training.peers import Peers

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.optim import Optimizer
    from transformers import PreTrainedModel

    from plmctl.corpus.labelled import Row, Split
    from plmctl.models.base import Examples
    from plmctl.models.network import Network
    from plmctl.run.stop import StopRequest
    from plmctl.training.checkpoint import Watch
    from plmctl.training.engine import Engine
    from plmctl.training.journal import Journal
    from plmctl.training.plan import Plan


def run(config: FinetuneConfig, options: StartOptions, *, as_json: bool) -> None:
    """Finetune, or resume an interrupted run; a finished run is left unchanged."""
    results = finetune(config, options)
    if results is None:
        say(f"{config.run} is finished: its model is in {Path(config.run) / 'model'}")
        with suppress(DataError):  # of an older version: it has no such file
            say_what_changed(Path(config.run), made_from(config))
        return
    from plmctl.reporting.run_files import yardstick_sentence
    from plmctl.reporting.tables import classification_tables

    show_result(results, classification_tables(f"finetuned {config.run}", results), as_json=as_json)
    if results and (line := yardstick_sentence(results)):
        say(line)


def finetune(config: FinetuneConfig, options: StartOptions) -> dict[str, Any] | None:
    """Finetune, or resume. Returns the results, or None if the run was finished before."""
    with Peers.meet(config.launch) as peers:
        progress = run_progress(config, fresh=options.fresh)
        progress = agree_on_start(peers, config, progress, options.flags)
        if progress == "finished":
            return None
        if progress != "trained":
            return _finetune(config, peers, options)
        folder = Path(config.run)
        say(f"{folder} is trained; writing its report")
        if not launch.owns_run(config.launch):
            return {}
        with AtWork(folder) as work:
            _complete(folder, work)
        return dict(read_results(folder / _RESULTS)["results"])


_FILES = ("data files", "metric files")


def made_from(config: FinetuneConfig) -> dict[str, str | None]:
    """The hashes of the model that a finetuning starts from, and of the files that it reads.

    No row is read: ``read_examples`` has the hashes of the rows themselves, which decide whether a
    run resumes. What is no longer there has no hash, and is not compared.
    """
    hashes: dict[str, str | None] = {**model_hashes(config.model)}
    if config.init != "pretrained":  # the architecture and the tokenizer alone
        hashes.pop("model weights", None)
    valid = config.data.valid
    sets = (
        valid.values() if isinstance(valid, dict) else [] if isinstance(valid, float) else [valid]
    )
    names = (*config.data.train, *(name for files in sets for name in files))
    with suppress(DataError):
        hashes["data files"] = content_hash(names)
    if metrics := digest_of_present(config.task.model_dump().get("metrics", ())):
        hashes["metric files"] = metrics
    return hashes


def _finetune(config: FinetuneConfig, peers: Peers, options: StartOptions) -> dict[str, Any]:
    """Everything from the preflight to the report; the results, empty in further processes."""
    folder, prepared = Path(config.run), finetune_preflight(config)
    start_on_machine("finetune", config, options)
    peers.doing(PREPARING)
    examples = read_examples(prepared)
    base = {name: value for name, value in made_from(config).items() if name not in _FILES}
    examples = replace(examples, hashes={**examples.hashes, **base})
    processes = connected("finetune", config, prepared.family, examples.hashes, options, peers)
    with processes as (accelerator, work):
        if work is not None:
            write_results(folder, "data", {"kind": "data", **examples.check})
        for line in summarize_checks(examples.check):
            say(line)
        for name, valid in examples.valid.items():
            for line in valid.notices:
                say(f"{name}: {line}")
        if prepared.task.config.baseline == "auto":
            _keep_yardstick(prepared, examples, peers, makes=work is not None)
        network, facts = _train(prepared, peers, examples, accelerator, options)
        if work is None or network is None:
            return {}
        results = _save(prepared, examples, work, network, facts)
        _complete(folder, work)
    return results


def _keep_yardstick(
    prepared: PreparedFinetuning, examples: LabelledExamples, peers: Peers, *, makes: bool
) -> None:
    """What counting gives; processes other than the main one, which makes it, wait for it."""
    peers.doing(COUNTING)
    if makes:
        rows = examples.rows.train, next(iter(examples.rows.valid.values()))
        keep_yardstick(
            Path(prepared.config.run),
            prepared.task,
            examples.labels,
            rows,
            examples.first_valid,
            examples.hashes,
            prepared.config.train.metric,
        )
    peers.compare("yardstick", {})
    peers.doing(BUILDING)


# --- The labelled rows: read, checked, and as examples of the task ---


_FEW = 8

_SAMPLES, _NO_ANSWER = 8, "(no answer)"


@dataclass(frozen=True)
class LabelledExamples:
    """Labelled rows as examples of a task."""

    labels: tuple[str, ...]
    train: TaskExamples[ScoredConfig]
    valid: dict[str, TaskExamples[ScoredConfig]]
    """The validation sets by name; the first decides which weights are best."""
    check: dict[str, Any]
    """The results of ``corpus.labelled.check_rows``."""
    few: TaskExamples[ScoredConfig]
    """A few rows of the first validation set: metrics are tried on them before the first step."""
    hashes: Mapping[str, str | None]
    """The hashes of all rows and of each validation set, and of the model that is finetuned."""
    prompts: dict[int, str]
    """The questions or texts of some rows of the first validation set, by number: for samples."""
    rows: Split
    """The rows themselves."""

    @property
    def first_valid(self) -> TaskExamples[ScoredConfig]:
        """The validation rows that decide which weights are best."""
        return next(iter(self.valid.values()))

    def counts(self) -> dict[str, int]:
        """Rows that are learned from and scored; windows, where they are more than the rows."""
        first = next(iter(self.valid))
        rows = self.check["train"]["rows"] - self.check["dropped"]["rows"]
        counts = {"rows": rows, "valid_rows": self.check[first]["rows"]}
        windows = {"windows": len(self.train), "valid_windows": len(self.first_valid)}
        return counts | (windows if list(windows.values()) != list(counts.values()) else {})


def read_examples(prepared: PreparedFinetuning) -> LabelledExamples:
    """The rows of a config, split and tokenized.

    Raises:
        ConfigError: A metric of ``task.metrics`` cannot be computed.
        DataError: A missing file or column, a row without text, or a label that is not among the
            training rows'.
    """
    config, task = prepared.config, prepared.task
    split = split_rows(config.data, config.seed, task.split_columns(), task.is_labelled)
    columns = task.text_columns()
    for rows in (split.train, *split.valid.values()):
        refuse_empty(rows, columns)
    labels = task.labels(split.train)
    make = partial(
        task.make, tokenizer=prepared.tokenizer, labels=labels, max_length=config.train.max_length
    )
    for line in task.warnings(left_to_right=prepared.left_to_right):
        say(line)
    if prepared.could_see_both_sides:
        say(
            f"{config.model} has a mask token and reads from left to right; if it was pretrained "
            "with mntp, both_sides=true lets it see both sides, as it did then"
        )
    _report_unknown(prepared, {"the training rows": split.train, **split.valid})
    train = make(split.train, use="train")
    valid = {name: make(rows, use="score") for name, rows in split.valid.items()}
    few = make(next(iter(split.valid.values()))[:_FEW], use="score")
    for line in dict.fromkeys(line for one in valid.values() for line in one.check_metrics()):
        say(line)
    labels_of = partial(task.labels_of, labels=labels) if labels else None
    cut = {"train": train.cut, **{name: examples.cut for name, examples in valid.items()}}
    check = add_example_checks(
        check_rows(split.train, split.valid, columns, labels_of),
        cut,
        train.dropped,
        split.unlabelled,
    )
    held_out = [row for rows in split.valid.values() for row in rows]
    files = zip(file_names(split.valid), split.valid.values(), strict=True)
    hashes: dict[str, str | None] = {"data": rows_digest([*split.train, *held_out])}
    hashes |= {name: rows_digest(rows) for name, rows in files}
    first = next(iter(split.valid.values()))
    shown = range(0, len(first), max(1, len(first) // _SAMPLES))[:_SAMPLES]
    prompts = {number: text for number in shown if (text := task.prompt(first[number]))}
    return LabelledExamples(labels, train, valid, check, few, hashes, prompts, split)


def _report_unknown(prepared: PreparedFinetuning, rows: Mapping[str, Sequence[Row]]) -> None:
    """Say how much of labelled rows the tokenizer does not know.

    Raises:
        DataError: It knows hardly anything of them.
    """
    if reads_characters(prepared.tokenizer):
        return
    counter = UnknownCounter.of(prepared.tokenizer)
    for name, some in rows.items():
        texts = [text for row in some for text in prepared.task.all_texts(row)]
        line = counter.count(sampled(texts)).report(name, prepared.config.model)
        if line is not None:
            say(line)


def file_names(valid: Iterable[str]) -> list[str]:
    """The names of validation sets in files: the first is ``valid``, whatever its name."""
    return [f"valid-{name}" if number else "valid" for number, name in enumerate(valid)]


# --- The plan of the steps ---


def make_plan(config: FinetuneConfig, examples: Examples, accelerator: Accelerator) -> Plan:
    """The steps of a config, divided among these processes."""
    from plmctl.training.data import auto_micro_batch
    from plmctl.training.plan import Phase, Plan, Slicing
    from plmctl.training.schedule import rate

    batch = config.train.batch_size
    rows = -(-batch // accelerator.num_processes)
    device, length = accelerator.device.type, config.train.max_length
    micro = auto_micro_batch(config.train.micro_batch_size, rows, length, device)
    place = accelerator.process_index, accelerator.num_processes
    slicing = Slicing(batch, micro, *place, unpadded=config.compute.attention == "unpadded")
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
        **failure_handling(config),
    )


# --- The network: its head, the parameters that are trained, their optimizer ---


def make_network(
    prepared: PreparedFinetuning, labels: tuple[str, ...], report: Callable[[str], None]
) -> Network:
    """The network with the task's head, and with the parameters that are trained marked.

    Args:
        report: Called with what the user should know about the weights.
    """
    import torch

    from plmctl.models.load import HeadSource
    from plmctl.models.network import Network

    config, task = prepared.config, prepared.task
    pretrained = config.init == "pretrained"
    torch.manual_seed(int(fold(config.seed, stream("init"))) >> 1)  # the head's fresh weights
    start = HeadSource(
        config.model, prepared.tokenizer, labels, pretrained, _changes(prepared), report
    )
    model = task.load(start)
    set_trained_layers(config, model)
    return Network(model, task.forward)


def make_trained_network(
    prepared: PreparedFinetuning,
    labels: tuple[str, ...],
    accelerator: Accelerator,
    peers: Peers | None = None,
) -> Engine:
    """The network, the parameters that are trained, and their optimizer, on these processes."""
    from plmctl.models.load import new_head_message
    from plmctl.training.engine import make_engine

    config, task = prepared.config, prepared.task
    labelled = config.init == "pretrained" and task.has_labels
    if labelled and accelerator.is_main_process:
        message = new_head_message(config.model, labels)
        if message is not None:
            say(message)
    network = make_network(prepared, labels, say)
    engine = make_engine(
        accelerator,
        network,
        config.optim,
        config.compute,
        compile_by_default=False,
        sharded=config.launch.shards(accelerator.num_processes),
        peers=peers,
    )
    head = (config.train.head_lr or config.optim.lr) / config.optim.lr
    if config.train.layer_decay < 1 or head != 1:
        set_layer_rates(engine.trained().optimizer, network.model, config.train.layer_decay, head)
    return engine


def _changes(prepared: PreparedFinetuning) -> dict[str, Any]:
    """The fields of the model's config that set its dropout and what it sees, if they change."""
    config = prepared.config
    changes: dict[str, Any] = {"is_causal": False} if config.both_sides else {}
    if config.train.dropout is None:
        return changes
    family = prepared.family.listed(config.model, prepared.network)
    return changes | dict.fromkeys(family.DROPOUT, config.train.dropout)


def set_trained_layers(config: FinetuneConfig, model: PreTrainedModel) -> None:
    """New top layers, frozen layers or adapters, as the config says, in place.

    Raises:
        ConfigError: More layers than the network has, or no such layers.
        PlmError: peft is not installed.
    """
    import torch

    from plmctl.families.base import family_of
    from plmctl.models.parameters import add_lora, freeze, reinit

    torch.manual_seed(int(fold(config.seed, stream("reinit"))) >> 1)
    if config.train.reinit_layers:
        reinit(model, config.train.reinit_layers)
    if config.train.freeze is not None:
        freeze(model, config.train.freeze)
    if config.lora is not None:
        add_lora(config.lora, model, family_of(model.config).LORA_TARGETS)


def set_layer_rates(
    optimizer: Optimizer, model: PreTrainedModel, decay: float, head: float = 1.0
) -> None:
    """Divide the optimizer's groups by layer; ``scale`` is each layer's share of the learning rate.

    The loop sets the learning rate of every group to the schedule's times its scale.

    Args:
        head: The share of the head.

    Raises:
        ConfigError: The network has no head besides its layers.
    """
    from plmctl.models.parameters import depths, layer_rates

    shares = layer_rates(depths(model), decay) if decay < 1 else {}
    below = "" if model.base_model is model else f"{model.base_model_prefix}."
    of_head = {name: head for name, _ in model.named_parameters() if not name.startswith(below)}
    if head != 1 and not of_head:
        raise ConfigError(f"train.head_lr: {type(model).__name__} has no head", "leave it out")
    by_id = {
        id(parameter): of_head.get(name, shares.get(name, 1.0))
        for name, parameter in model.named_parameters()
    }
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        by_share: dict[float, list[Any]] = {}
        for parameter in group["params"]:
            by_share.setdefault(by_id[id(parameter)], []).append(parameter)
        groups += [{**group, "params": of, "scale": share} for share, of in by_share.items()]
    optimizer.param_groups[:] = groups


# --- Training ---


def _train(
    prepared: PreparedFinetuning,
    peers: Peers,
    examples: LabelledExamples,
    accelerator: Accelerator,
    options: StartOptions,
) -> tuple[Network | None, dict[str, Any]]:
    """The network of the last step, and the facts of the training for the results.

    Processes other than the main one get no network.
    """
    from plmctl.models.sharding import is_sharded
    from plmctl.training import loop
    from plmctl.training.checkpoint import Checkpoints, load_last_weights, take_best
    from plmctl.training.memory import with_found_sizes

    config, folder = prepared.config, Path(prepared.config.run)
    plan = replace(make_plan(config, examples.train, accelerator), until=options.until)
    plan = replace(plan, save_at=save_at_steps(config.checkpoint.at, plan.steps))
    engine = make_trained_network(prepared, examples.labels, accelerator, peers)
    check_metric(engine, config, examples.few)
    journal = _journal(config, examples, engine, plan, options)
    plan = with_found_sizes(engine, plan, folder)
    check_ready(peers, engine, plan, folder)
    checkpoints = Checkpoints(folder / "checkpoints", retention(config.checkpoint, plan.save_at))
    watch = watch_of(config, folder / "best")
    judged = config if watch is not None else None  # if the best weights are kept
    validate = partial(validation_scores, engine, examples.first_valid, plan, judged)
    with journal:
        progress = loop.train(engine, plan, checkpoints, journal, validate, watch)
        peers.doing(FINISHING)
        journal.event("finished", step=progress.step)
    facts = {**examples.counts(), "init": config.init, "steps": progress.step}
    if not accelerator.is_main_process:
        return None, facts
    network = engine.unwrapped
    if is_sharded(network):
        gathered_weights = make_network(prepared, examples.labels, lambda message: None)
        load_last_weights(checkpoints, gathered_weights.model)
        network = accelerator.prepare_model(gathered_weights, evaluation_mode=True)
    if config.train.keep == "best":
        facts["best_step"] = take_best(folder / "best", network.model, progress)
    return network, facts


def _journal(
    config: FinetuneConfig,
    examples: LabelledExamples,
    engine: Engine,
    plan: Plan,
    options: StartOptions,
) -> Journal:
    """The log of the run, which begins with what it computes on; see ``Journal``."""
    from plmctl.training.engine import precision_of
    from plmctl.training.journal import Journal

    accelerator, folder = engine.accelerator, Path(config.run)
    say_notes(config, engine)
    if accelerator.is_main_process:
        write_environment(
            folder,
            {**examples.hashes, **made_from(config)},
            accelerator.num_processes,
            precision=precision_of(accelerator),
            more={"network": network_facts(engine.unwrapped.model)},
        )
    return Journal(
        folder,
        title=f"finetuning {config.model} ({config.task.name})",
        total_steps=plan.steps,
        trackers=config.log.trackers,
        quiet=not accelerator.is_main_process,
        accept_gap=options.accept_gap,
    )


# --- Validation: the metric that decides, and when it is computed ---


def with_further_metrics(
    results: Mapping[str, Any], name: str, metrics: Mapping[str, Any]
) -> dict[str, Any]:
    """Results with the numbers of a further validation set, as ``mismatched/accuracy``."""
    numbers = {key: value for key, value in metrics.items() if isinstance(value, int | float)}
    return {**results, **{f"{name}/{key}": value for key, value in numbers.items()}}


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
        few: A few validation rows: their metrics have the same names.

    Raises:
        ConfigError: With the metrics that there are.
    """
    import numpy as np
    import torch

    from plmctl.models.sharding import is_sharded
    from plmctl.training.distributed import gathered_weights

    if config.train.metric is not None:
        sharded = is_sharded(engine.unwrapped)
        with gathered_weights(engine.unwrapped):
            if sharded:  # FSDP wants the whole network to be called before one of its layers is
                row = np.zeros(1, np.int64)
                with torch.inference_mode():
                    few.score(engine.unwrapped, few.collate(row, row).to(engine.accelerator.device))
            metrics = _task_metrics(engine, few)
        metric_of(config.train.metric, {**metrics, "loss": 0.0})


def validation_scores(
    engine: Engine,
    examples: TaskExamples[ScoredConfig],
    plan: Plan,
    judged: FinetuneConfig | None,
    _step: int,
    *,
    stop: StopRequest | None = None,
) -> dict[str, float]:
    """Losses over all processes; if the best weights are kept, also the metric that decides.

    Args:
        judged: The run's config, if the best weights are kept.
        _step: Updates that are done; the rows are always the same.

    Raises:
        StopAsked: A process was asked to stop.
    """
    from plmctl.evaluation.scoring import score
    from plmctl.training.data import scoring_batches
    from plmctl.training.distributed import gathered_weights

    slicing = plan.phases[0].slicing
    batches = scoring_batches(examples, slicing, lengths=examples.lengths())
    batches = engine.peers.doing_each(VALIDATING, batches)
    bare = engine.unwrapped
    with gathered_weights(bare):
        scores = score(engine.accelerator, bare, examples, batches, stop)
        if judged is not None:
            metrics = {**_task_metrics(engine, examples), "loss": scores["loss"]}
            name = metric_of(judged.train.metric, metrics)
            scores |= {name: metrics[name], "judged": metrics[name]}
    return {f"valid/{name}": value for name, value in scores.items()}


def _task_metrics(engine: Engine, examples: TaskExamples[ScoredConfig]) -> dict[str, Any]:
    """The task's metrics, computed by the main process and broadcast to the others.

    Sharded weights must be whole meanwhile.
    """
    from accelerate.utils import broadcast_object_list

    from plmctl.evaluation.scoring import answers

    accelerator = engine.accelerator
    shared: list[Any] = [None]
    engine.peers.doing(SCORING if accelerator.is_main_process else VALIDATING)
    if accelerator.is_main_process:
        bare = engine.unwrapped
        shared = [examples.compute_metrics(answers(bare, examples, accelerator.device))]
    return dict(broadcast_object_list(shared)[0])


# --- What a finished run leaves: results, model folder and report ---


_RESULTS = "eval/valid.json"

_REPORT = "report.html"


def _save(
    prepared: PreparedFinetuning,
    examples: LabelledExamples,
    work: AtWork,
    network: Network,
    facts: dict[str, Any],
) -> dict[str, Any]:
    """Write the results of the weights that are kept, and the model folder unless it exists."""
    from plmctl.reporting.card import model_card
    from plmctl.run.folder import save_model
    from plmctl.training.checkpoint import drop_earlier_best

    config, folder, model = prepared.config, Path(prepared.config.run), network.model
    if config.lora is not None:
        from plmctl.models.parameters import merge_lora

        merge_lora(model)
    results = _write_scores(config, examples, network, facts)
    rows = [f"eval/rows/{file}.json" for file in file_names(examples.valid)]
    work.promise(["model", "eval/data.json", _RESULTS, *rows, _REPORT])
    if not is_model(folder / "model"):
        task = make_task(prepared.task.with_tuned_values(results))
        finetuned = Finetuned(task, examples.labels, config.train.max_length)
        card = model_card(folder, type(model).__name__)
        save_model(folder, model, prepared.tokenizer, card, finetuned)
    drop_earlier_best(folder / "best")
    return results


def _write_scores(
    config: FinetuneConfig, examples: LabelledExamples, network: Network, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """The metrics of every validation set; written with their uncertainty and the rows' scores."""
    from plmctl.evaluation.scoring import answers

    folder = Path(config.run)
    results: dict[str, Any] = {}
    uncertainty: dict[str, Any] = {}
    sets = zip(file_names(examples.valid), examples.valid.items(), strict=True)
    for file, (name, valid) in sets:
        predictions = answers(network, valid, network.model.device)
        metrics = valid.compute_metrics(predictions)
        if examples.labels and (only := single_answer(predictions, valid.references())):
            say(f"{name}: every row is answered {only!r}; nothing else was learned so far")
        errors = {
            k: error
            for k, error in valid.uncertainty(predictions).items()
            if k in metrics and error
        }
        uncertainty |= {f"{name}/{k}": at for k, at in errors.items()} if results else errors
        credit, values = valid.per_example_scores(predictions)
        if results:
            results = with_further_metrics(results, name, metrics)
        else:
            results = {**metrics, **facts, **_beside(config, examples.hashes, metrics, values)}
        scores = {"rows": examples.hashes[file], "credit": credit, "values": values}
        write_results(folder, f"rows/{file}", scores)
        if valid is examples.first_valid and examples.prompts:
            right = valid.references()
            items = [
                {
                    "prompt": prompt,
                    "text": f" {predictions[number]['prediction'] or _NO_ANSWER}",
                    "answer": next(iter(right[number]), _NO_ANSWER),
                }
                for number, prompt in examples.prompts.items()
            ]
            write_results(folder, "samples", {"kind": "answers", "items": items})
    document = {"kind": "finetune", "model": config.model, "results": results}
    write_results(folder, "valid", {**document, "uncertainty": uncertainty})
    return results


def _beside(
    config: FinetuneConfig,
    hashes: Mapping[str, str | None],
    metrics: Mapping[str, Any],
    values: Sequence[float],
) -> dict[str, Any]:
    """What counting gives on the rows, if it is known and asked for, for the results."""
    task = make_task(config.task)
    if task.config.baseline == "none":
        return {}
    metric = counted_metric(config.train.metric, metrics)
    kept = kept_methods(Path(config.run), task, hashes)
    methods = beside_network(kept, metric, larger=larger_is_better(metric), values=values)
    return {"yardsticks": methods} if methods else {}


def single_answer(answers: Sequence[Answer], references: Sequence[Any]) -> str | None:
    """The label that all rows are given though their right ones differ; None: there is none."""
    given = {one["prediction"] for one in answers if isinstance(one["prediction"], str)}
    right = {str(reference) for reference in references}
    every = all(isinstance(one["prediction"], str) for one in answers)
    return given.pop() if every and len(given) == 1 and len(right) > 1 else None


def _complete(folder: Path, work: AtWork) -> None:
    """Write the report, which follows the model."""
    from plmctl.reporting.report import write_report

    write_report([folder], folder / _REPORT)
    work.finish()
