"""``plmctl finetune``: a pretrained folder and labelled rows in, a finetuned folder out."""

import json
import math
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl import families, tasks
from plmctl.config.finetune import FinetuneConfig
from plmctl.corpus.check_rows import told
from plmctl.errors import ConfigError
from plmctl.evaluation.language import family_of
from plmctl.files import is_model
from plmctl.hub import refuse_unreachable
from plmctl.runs import judging, launch
from plmctl.runs.folder import (
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
from plmctl.runs.labelled import Examples, file_names, read_examples
from plmctl.runs.safety import retention, safety
from plmctl.runs.say import COMPILES, say, show
from plmctl.shaping.keys import fold, stream

if TYPE_CHECKING:
    from accelerate import Accelerator

    from plmctl.training.loop import Engine, Plan

_REPORT = "report.html"


def run(
    config: FinetuneConfig,
    *,
    fresh: bool,
    as_json: bool,
    until: int | None = None,
    accept_gap: bool = False,
) -> None:
    """Finetune, or continue a run that was cut short; a finished run is left alone.

    Args:
        config: What is trained.
        fresh: Move a run folder that is there aside.
        as_json: Print the result as JSON.
        until: Save and stop after this step.
        accept_gap: Continue although lines of metrics.jsonl were lost.
    """
    results = finetuned(config, fresh=fresh, until=until, accept_gap=accept_gap)
    if results is None:
        say(f"{config.run} is finished: its model is in {Path(config.run) / 'model'}")
        return
    from plmctl.reporting.tables import classification_tables

    show(results, classification_tables(f"finetuned {config.run}", results), as_json=as_json)


def finetuned(
    config: FinetuneConfig,
    *,
    fresh: bool,
    until: int | None = None,
    accept_gap: bool = False,
) -> dict[str, Any] | None:
    """Finetune, or continue; the figures, or None where the run was finished before."""
    folder = Path(config.run)
    check_run(config, config.run, fresh=fresh)
    if not fresh and is_finished(folder):
        return None
    if not fresh and is_trained(folder):
        say(f"{folder} is trained: what follows the training is completed")
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
    for line in told(examples.check):
        say(line)
    with AtWork(folder) if launch.is_main() else nullcontext() as work:
        return _train(config, examples, work, until=until, accept_gap=accept_gap)


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
    if not folder.exists():
        refuse_unreachable(model, "pretrain a model first, or give a Hub id")


def _train(
    config: FinetuneConfig,
    examples: Examples,
    work: AtWork | None,
    *,
    until: int | None,
    accept_gap: bool,
) -> dict[str, Any]:
    """The figures of the weights that are kept; empty in all processes but the main one."""
    from plmctl.training import loop
    from plmctl.training.checkpoint import Checkpoints
    from plmctl.training.engine import make_accelerator
    from plmctl.training.fitting import fitted
    from plmctl.training.journal import Journal

    folder = Path(config.run)
    accelerator = make_accelerator(config.compute)
    accelerator.wait_for_everyone()
    engine = _engine(config, accelerator, examples)
    if accelerator.unwrap_model(engine.network).compiled:
        say(COMPILES)
    plan = replace(make_plan(config, examples.train, accelerator), until=until, **safety(config))
    judging.check_metric(engine, config, examples.few)
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
        checkpoints = Checkpoints(folder / "checkpoints", retention(config.checkpoint))
        plan = fitted(engine, plan, journal, folder)
        watch = judging.watch_of(config, folder / "best")
        judged = config if watch is not None else None
        validate = partial(judging.validate, engine, examples.judge, plan, judged)
        progress = loop.train(engine, plan, checkpoints, journal, validate, watch)
        journal.event("finished", step=progress.step)
    if work is None:
        return {}
    facts = {
        "rows": len(examples.train),
        "valid_rows": len(examples.judge),
        "init": config.init,
        "steps": progress.step,
    }
    results = _save(config, work, engine, examples, facts)
    _complete(folder, work)
    return results


def _engine(config: FinetuneConfig, accelerator: "Accelerator", examples: Examples) -> "Engine":
    """The network with the task's head, what of it is trained, and its optimizer."""
    import torch

    from plmctl.modeling.heads.relabel import new_head
    from plmctl.modeling.network import Network
    from plmctl.training.compiling import for_finetuning
    from plmctl.training.engine import make_engine
    from plmctl.training.finetuning import ready, slow_down

    task = tasks.get(config.task.name)
    if config.init == "pretrained" and config.task.name in ("classification", "tagging"):
        told_of = new_head(config.model, examples.labels)
        if told_of is not None and accelerator.is_main_process:
            say(told_of)
    torch.manual_seed(int(fold(config.seed, stream("init"))) >> 1)  # the head's fresh weights
    model = task.load(
        config.task,
        config.model,
        examples.labels,
        pretrained=config.init == "pretrained",
        changes=_dropout(config),
        new_heads=say,
    )
    ready(config, model)
    compute = for_finetuning(config.compute)
    engine = make_engine(accelerator, Network(model, task.forward), config.optim, compute)
    if config.train.layer_decay < 1:
        slow_down(engine.trained().optimizer, model, config.train.layer_decay)
    return engine


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
    if config.train.group_by_length:
        slicing = replace(slicing, lengths=step.lengths())
    total = math.ceil(config.train.epochs * len(step) / batch)
    return Plan(
        phases=(Phase(step, total, slicing),),
        seed=config.seed,
        learning_rate=lambda number: config.optim.lr * rate(config.schedule, number, total),
        clip=config.optim.clip,
        log_every=config.log.every,
        validate_every=judging.every(config, len(step)),
        save_every=config.checkpoint.every,
    )


def _save(
    config: FinetuneConfig,
    work: AtWork,
    engine: "Engine",
    examples: Examples,
    facts: dict[str, Any],
) -> dict[str, Any]:
    """Write the figures of the weights that are kept, and the model folder unless it is there."""
    from plmctl.evaluation.predict import answers
    from plmctl.reporting.card import model_card
    from plmctl.runs.model_folder import save_model

    folder = Path(config.run)
    bare = engine.accelerator.unwrap_model(engine.network)
    model: Any = bare.model
    if config.train.keep == "best":
        from plmctl.training.best import take_best

        facts |= {"best_step": take_best(folder / "best", model)}
    if config.lora is not None:
        from plmctl.modeling.adapters import merge

        merge(model)
    results: dict[str, Any] = {}
    sure: dict[str, Any] = {}
    sets = zip(file_names(examples.valid), examples.valid.items(), strict=True)
    for file, (name, valid) in sets:
        found = answers(bare, valid, engine.accelerator.device)
        figures = valid.figures(found)
        errors = tasks.uncertainty(valid, found)
        sure |= {f"{name}/{key}": at for key, at in errors.items()} if results else errors
        results = judging.with_further(results, name, figures) if results else figures | facts
        credit, values = valid.credits(found)
        credits = {"rows": examples.hashes[file], "credit": credit, "values": values}
        write_results(folder, f"rows/{file}", credits)
    document = {"kind": "finetune", "model": config.model, "results": results}
    write_results(folder, "valid", {**document, "uncertainty": sure})
    rows = [f"eval/rows/{file}.json" for file in file_names(examples.valid)]
    work.promise(["model", "eval/data.json", "eval/valid.json", *rows, _REPORT])
    if not is_model(folder / "model"):
        asked = tasks.settled(config.task, results)
        made = tasks.Finetuned(asked, examples.labels, config.train.max_length)
        card = model_card(folder, type(model).__name__)
        save_model(folder, model, examples.tokenizer, card, made)
    return results


def _complete(folder: Path, work: AtWork) -> None:
    """Write what follows the model: the report."""
    from plmctl.reporting.report import write

    write([folder], folder / _REPORT)
    work.finish()
