"""``plmctl pretrain``: corpus and tokenizer in, a Hugging Face model folder out.

The parts of a pretraining in their order: preflight, text, examples, the plan of the steps, the
training, and what a finished run leaves (results, model folder, samples, report). Each of these is
complete or absent. The model is the last that needs the network of the training: a run that ends
after it is completed without training.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl.commands.prepare import prepare, say_overlap
from plmctl.corpus.prepared import PreparedText
from plmctl.errors import DataError, PlmError
from plmctl.evaluation.samples import opened_for_samples
from plmctl.files import is_model, read_json
from plmctl.hashing import known_sha256, model_hashes
from plmctl.models.sharding import is_sharded
from plmctl.reporting.card import model_card
from plmctl.reporting.report import write_report
from plmctl.reporting.tables import metrics_table
from plmctl.run import launch
from plmctl.run.agreement import agree_on_start, check_ready, connected
from plmctl.run.budget import Decision, difference, known_decision, resolved
from plmctl.run.configs import PretrainConfig
from plmctl.run.costs import network_facts
from plmctl.run.display import FREQUENCIES, say, show_result
from plmctl.run.folder import (
    AtWork,
    read_results,
    run_progress,
    save_model,
    say_what_changed,
    start_on_machine,
    write_environment,
    write_results,
)
from plmctl.run.frequencies import frequency_losses
from plmctl.run.launch import StartOptions
from plmctl.run.machine import retention, say_notes
from plmctl.run.preflight import check_machine, preflight
from plmctl.run.prepared import Prepared, make_network
from plmctl.run.pretraining import Pretraining, Validation, samples_of, shows_samples
from plmctl.run.yardsticks import yardsticks
from plmctl.tokenization.encode import Encoder
from plmctl.training import loop
from plmctl.training.checkpoint import Checkpoints, load_last_weights
from plmctl.training.engine import precision_of
from plmctl.training.journal import Journal
from plmctl.training.judge import BUILDING, FINISHING, PREPARING
from plmctl.training.memory import with_found_sizes
from plmctl.training.peers import Peers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from plmctl.training.engine import Engine
    from plmctl.training.plan import Plan


def run(
    config: PretrainConfig,
    options: StartOptions,
    *,
    as_json: bool,
) -> None:
    """Pretrain, or resume a run that was interrupted; a finished run is left alone."""
    folder = Path(config.run)
    with Peers.meet(config.launch) as peers:
        progress = run_progress(config, fresh=options.fresh)
        progress = agree_on_start(peers, config, progress, options.flags)
        if progress == "finished":
            say(f"{folder} is finished: its model is in {folder / 'model'}")
            with suppress(DataError):  # of an older version: it has no such file
                say_what_changed(folder, made_from(config) | _text_now(config, folder))
            return
        if progress == "trained":
            say(f"{folder} is trained; only samples or the report are missing")
            if not launch.owns_run(config.launch):
                return
            with AtWork(folder) as work:
                _complete(config, folder, work)
            metrics = read_results(folder / "eval" / "valid.json")["results"]
        else:
            metrics = _pretrain(config, peers, options)
    show_result(metrics, [metrics_table(f"pretrained {folder}", metrics)], as_json=as_json)


def made_from(config: PretrainConfig) -> dict[str, str]:
    """The hashes of the model that a pretraining starts from, and of its teacher."""
    hashes: dict[str, str] = {}
    if config.model.init_from is not None:
        hashes |= model_hashes(config.model.init_from, "init_from")
    teacher = config.objective.model_dump().get("teacher")
    if teacher is not None:
        hashes |= model_hashes(teacher, "teacher")
        hashes.pop("teacher tokenizer", None)  # it reads the ids of the run's
    return hashes


def _text_now(config: PretrainConfig, folder: Path) -> dict[str, str]:
    """The hashes of a finished run's tokenizer and text, as far as they are still there.

    A file of the text that nobody touched since the run started is not read.
    """
    hashes = {}
    with suppress(PlmError):
        hashes["tokenizer"] = Encoder(config.tokenizer, config.data.words).fingerprint
    environment = read_json(folder / "environment.json", "hashes", "started")
    started = datetime.fromisoformat(environment["started"]).timestamp()
    for name, digest in environment.get("text", {}).get("sources", {}).items():
        path = Path(name)
        touched = path.is_file() and path.stat().st_ctime >= started
        if touched and len(digest) == len(now := known_sha256(path)) and now != digest:
            hashes["data"] = now
    return hashes


def _pretrain(config: PretrainConfig, peers: Peers, options: StartOptions) -> dict[str, Any]:
    """Everything from the preflight to the report; the metrics of the last validation."""
    folder, prepared = Path(config.run), preflight(config)
    check_machine(config, prepared)
    start_on_machine("pretrain", config, options)  # several machines meet before the text
    peers.doing(PREPARING)
    text = prepare(config, prepared.encoder, peers=peers)
    text = replace(text, hashes={**text.hashes, **made_from(config)})
    if launch.is_main():
        say_overlap(config, text)
    run = Pretraining.of(prepared, text, peers)
    decision = known_decision(run, fresh=options.fresh)
    began = time.monotonic()  # a budget of time includes the search for micro-batches
    processes = connected("pretrain", config, prepared.family, text.hashes, options, peers)
    with processes as (accelerator, work):
        peers.doing(PREPARING)  # without a time limit: counting may take minutes
        counted = _counted(run) if work is not None else {}
        peers.doing(BUILDING)
        run = resolved(run, decision, accelerator, began)
        engine = run.engine(accelerator)
        plan = replace(run.plan(accelerator), until=options.until)
        journal = _journal(run, engine, plan, counted, options)
        metrics, model = _train(run, engine, plan, journal)
        metrics |= {
            name: one["loss"]
            for name, one in counted.items()
            if name != FREQUENCIES and "loss" in one
        }
        if work is not None and model is not None:
            _save(prepared, folder, work, model, metrics)
            _complete(config, folder, work, text)
            if (used := Decision.read(folder, config.train)) is not None:
                # A run that was resumed took longer than this start: its time is not known.
                lines = (folder / "events").read_text(encoding="utf-8").splitlines()
                whole = "resumed" not in {str(json.loads(line)["event"]) for line in lines}
                say(difference(used, time.monotonic() - began if whole else None))
    return metrics


# --- Training ---


def _counted(run: Pretraining) -> dict[str, dict[str, float]]:
    """What counting gives: the losses by the name of what is counted."""
    valid = run.valid[-1] if run.valid else None
    most = run.config.log.validate_samples
    alone = frequency_losses(run.text.train, run.train[-1], valid, most)
    more = yardsticks(run.prepared, run.text, valid, most, alone)
    return ({FREQUENCIES: alone} if alone else {}) | more


def _journal(
    run: Pretraining,
    engine: Engine,
    plan: Plan,
    counted: dict[str, dict[str, float]],
    options: StartOptions,
) -> Journal:
    """The log of the run, which begins with what it computes on; see ``Journal``.

    Args:
        counted: As of ``_counted``.
    """
    config, accelerator = run.config, engine.accelerator
    say_notes(config, engine)
    if accelerator.is_main_process:
        write_environment(
            run.folder,
            run.text.hashes,
            accelerator.num_processes,
            run.text.contents,
            precision_of(accelerator),
            {
                "frequency_loss": counted.get(FREQUENCIES, {}),
                "counted_loss": {name: one for name, one in counted.items() if name != FREQUENCIES},
                "network": network_facts(engine.unwrapped.model),
            },
        )
    return Journal(
        run.folder,
        title=f"pretraining {config.model.family} ({config.objective.name})",
        counted=counted,
        total_steps=plan.steps,
        trackers=config.log.trackers,
        quiet=not accelerator.is_main_process,
        accept_gap=options.accept_gap,
    )


def _train(
    run: Pretraining, engine: Engine, plan: Plan, journal: Journal
) -> tuple[dict[str, Any], PreTrainedModel | None]:
    """The metrics of the last validation, and the model; None in all processes but the main one."""
    plan = with_found_sizes(engine, plan, run.folder)
    check_ready(run.peers, engine, plan, run.folder)
    kept = retention(run.config.checkpoint, plan.save_at)
    checkpoints = Checkpoints(run.folder / "checkpoints", kept)
    validation = Validation(run, engine, plan)
    with journal:
        sample = run.sampler(engine)
        progress = loop.train(engine, plan, checkpoints, journal, validation, sample=sample)
        seen = plan.words_at(progress.step)
        metrics: dict[str, Any] = {"steps": progress.step, "tokens": progress.tokens, **seen}
        metrics |= validation.at(progress.step)
        if engine.average is not None and run.valid:
            metrics["valid/loss_of_last_weights"] = validation(progress.step)["valid/loss"]
        run.peers.doing(FINISHING)
        journal.event("finished", step=progress.step)
    if not engine.accelerator.is_main_process:
        return metrics, None
    model: Any = engine.trained().network
    if is_sharded(model):
        model = make_network(run.prepared, run.prepared.tokenizer).model
        load_last_weights(checkpoints, model)
    elif engine.average is not None:
        engine.average.exchange()  # the training is over
    return metrics, model


# --- What a finished run leaves: results, model folder, samples and report ---


_SAMPLES = "eval/samples.json"

_REPORT = "report.html"


def _save(
    prepared: Prepared, folder: Path, work: AtWork, model: Any, metrics: dict[str, Any]
) -> None:
    """Write the results, and the model folder unless it exists already."""
    write_results(folder, "valid", {"kind": "pretrain", "model": str(folder), "results": metrics})
    has_samples = shows_samples(prepared, model)
    work.promise(["model", "eval/valid.json", *([_SAMPLES] if has_samples else []), _REPORT])
    if not is_model(folder / "model"):
        card = model_card(folder, type(model).__name__)
        save_model(folder, model, prepared.tokenizer, card)


def _complete(
    config: PretrainConfig, folder: Path, work: AtWork, text: PreparedText | None = None
) -> None:
    """Write what is missing after the model: samples, then the report.

    Args:
        text: The prepared text; None: it is prepared if samples are missing.
    """
    if _SAMPLES in work.status.missing(folder):
        if text is None:
            text = prepare(config, Encoder(config.tokenizer, config.data.words))
        model = opened_for_samples(str(folder / "model"))
        write_results(folder, "samples", samples_of(model, config, text))
    write_report([folder], folder / _REPORT)
    work.finish()
