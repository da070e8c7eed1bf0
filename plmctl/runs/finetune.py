"""``plmctl finetune``: a pretrained folder and labelled rows in, a finetuned folder out."""

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl import families, tasks
from plmctl.config.finetune import FinetuneConfig
from plmctl.corpus.tables import rows_digest, split_rows
from plmctl.errors import ConfigError
from plmctl.evaluation.language import family_of
from plmctl.runs import launch
from plmctl.runs.folder import (
    check_inputs,
    check_run,
    locked,
    open_run,
    write_environment,
    write_results,
)
from plmctl.runs.safety import retention, safety
from plmctl.runs.say import say, show
from plmctl.shaping.keys import fold, stream

if TYPE_CHECKING:
    from accelerate import Accelerator

    from plmctl.training.loop import Engine, Plan
    from plmctl.training.stop import StopRequest


def run(config: FinetuneConfig, *, fresh: bool, as_json: bool, until: int | None = None) -> None:
    """Finetune, or go on with a run that was cut short; a finished run is left alone."""
    folder = Path(config.run)
    check_run(config, config.run, fresh=fresh)
    if (folder / "model").is_dir() and not fresh:
        say(f"{folder} is finished: its model is in {folder / 'model'}")
        return
    check_model(config.model)
    examples = read_examples(config)
    if not fresh:
        check_inputs(folder, examples.hashes)
    if launch.is_main():
        open_run(config, config.run, fresh=fresh)
    processes = launch.process_count(config.launch, config.compute.device)
    if processes > 1 and not launch.is_worker():
        raise SystemExit(launch.start("finetune", folder / "config.yaml", processes, until))
    with locked(folder) if launch.is_main() else nullcontext():
        results = _train(config, folder, examples, until)
    from plmctl.reporting.tables import classification_tables

    show(results, classification_tables(f"finetuned {folder}", results), as_json=as_json)


@dataclass(frozen=True)
class Examples:
    """Labelled rows as a task has them."""

    tokenizer: Any
    labels: tuple[str, ...]
    train: tasks.Examples
    valid: tasks.Examples
    hashes: dict[str, str]
    """Of the rows, for ``environment.json``."""


def read_examples(config: FinetuneConfig) -> Examples:
    """The rows of a config, split and tokenized.

    Raises:
        DataError: A missing file or column, or a label that is not among the training rows'.
    """
    task = tasks.get(config.task.name)
    tokenizer = task.tokenizer(config.task, config.model)
    train, valid = split_rows(config.data, config.seed, tasks.split_columns(config.task))
    labels = task.labels_of(config.task, train)
    make = partial(task.make, config.task, tokenizer=tokenizer, labels=labels)
    longest = config.train.max_length
    return Examples(
        tokenizer,
        labels,
        make(train, max_length=longest, use="train"),
        make(valid, max_length=longest, use="score"),
        {"data": rows_digest([*train, *valid])},
    )


def check_model(model: str) -> None:
    """Refuse a folder that is no model before anything is read.

    Raises:
        ConfigError: The folder has no ``config.json``.
    """
    folder = Path(model)
    if folder.exists() and not (folder / "config.json").is_file():
        inside = folder / "model"
        hint = f"did you mean {inside}?" if inside.is_dir() else "pretrain one first"
        raise ConfigError(f"{folder}: no model here (no config.json)", hint)
    if not folder.exists() and (model.startswith((".", "/")) or model.count("/") > 1):
        raise ConfigError(f"{model}: no such folder", "pretrain a model first, or give a Hub id")


def _train(
    config: FinetuneConfig, folder: Path, examples: Examples, until: int | None
) -> dict[str, Any]:
    import torch

    from plmctl.evaluation.predict import answers
    from plmctl.modeling.network import Network
    from plmctl.training import loop
    from plmctl.training.checkpoint import Checkpoints
    from plmctl.training.engine import make_accelerator, make_engine
    from plmctl.training.journal import Journal

    accelerator = make_accelerator(config.compute)
    accelerator.wait_for_everyone()
    task = tasks.get(config.task.name)
    torch.manual_seed(int(fold(config.seed, stream("init"))) >> 1)  # the head's fresh weights
    model = task.load(
        config.task,
        config.model,
        examples.labels,
        pretrained=config.init == "pretrained",
        changes=_dropout(config),
    )
    network = Network(model, task.forward)
    engine = make_engine(accelerator, network, config.optim, config.compute)
    plan = replace(make_plan(config, examples.train, accelerator), until=until, **safety(config))
    if accelerator.is_main_process:
        write_environment(folder, examples.hashes)
    with Journal(
        folder,
        title=f"finetuning {config.model} ({config.task.name})",
        total_steps=plan.steps,
        trackers=config.log.trackers,
        quiet=not accelerator.is_main_process,
    ) as journal:
        checkpoints = Checkpoints(folder / "checkpoints", retention(config.checkpoint))
        validate = partial(_validate, engine, examples.valid, plan)
        loop.train(engine, plan, checkpoints, journal, validate)
        journal.event("finished", step=plan.steps)
    if not accelerator.is_main_process:
        return {}
    bare = accelerator.unwrap_model(engine.network)
    found = answers(bare, examples.valid, accelerator.device)
    results = examples.valid.figures(found)
    results |= {
        "rows": len(examples.train),
        "valid_rows": len(examples.valid),
        "init": config.init,
    }
    _finish(config, folder, engine, examples, results)
    return results


def _dropout(config: FinetuneConfig) -> dict[str, float]:
    """The fields of the model's config that set its dropout, where one was asked for."""
    asked = config.train.dropout
    if asked is None:
        return {}
    return dict.fromkeys(families.get(family_of(config.model)).DROPOUT, asked)


def make_plan(config: FinetuneConfig, step: Any, accelerator: "Accelerator") -> "Plan":
    """The steps of a config, cut up for these processes."""
    from plmctl.training.loader import Slicing, auto_micro_batch
    from plmctl.training.loop import Phase, Plan
    from plmctl.training.schedule import rate

    batch = config.train.batch_size
    rows = -(-batch // accelerator.num_processes)
    device, length = accelerator.device.type, config.train.max_length
    micro = auto_micro_batch(config.train.micro_batch_size, rows, length, device)
    slicing = Slicing(batch, micro, accelerator.process_index, accelerator.num_processes)
    total = math.ceil(config.train.epochs * len(step) / batch)
    return Plan(
        phases=(Phase(step, total, slicing),),
        seed=config.seed,
        learning_rate=lambda number: config.optim.lr * rate(config.schedule, number, total),
        clip=config.optim.clip,
        log_every=config.log.every,
        validate_every=config.log.validate_every,
        save_every=config.checkpoint.every,
    )


def _validate(
    engine: "Engine", step: Any, plan: "Plan", *, stop: "StopRequest | None" = None
) -> dict[str, float]:
    from plmctl.evaluation.scoring import score
    from plmctl.training.loader import scoring_batches

    batches = scoring_batches(step, plan.phases[0].slicing)
    bare = engine.accelerator.unwrap_model(engine.network)
    scores = score(engine.accelerator, bare, step, batches, stop)
    return {f"valid/{name}": value for name, value in scores.items()}


def _finish(
    config: FinetuneConfig,
    folder: Path,
    engine: "Engine",
    examples: Examples,
    results: dict[str, Any],
) -> None:
    from plmctl.reporting.card import model_card
    from plmctl.reporting.report import write
    from plmctl.runs.model_folder import save_model

    document = {"kind": "finetune", "model": config.model, "results": results}
    write_results(folder, "valid", document)
    model: Any = engine.trained().network
    asked = tasks.settled(config.task, results)
    made = tasks.Finetuned(asked, examples.labels, config.train.max_length)
    card = model_card(folder, type(model).__name__)
    save_model(folder, model, examples.tokenizer, card, made)
    write([folder], folder / "report.html")
