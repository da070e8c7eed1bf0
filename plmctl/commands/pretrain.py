"""``plmctl pretrain``: corpus and tokenizer in, a Hugging Face model folder out.

The parts of a pretraining in their order: preflight, text, examples, the plan of the steps, the
training, and what a finished run leaves (results, model folder, samples, report). Each of these is
complete or absent. The model is the last that needs the network of the training: a run that ends
after it is completed without training.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl.commands.prepare import PreparedText, prepare, say_shared
from plmctl.corpus.build import one_document_hint
from plmctl.corpus.store import Corpus, MixedStore, stores_of
from plmctl.errors import ConfigError, DataError, PlmError
from plmctl.evaluation.model import LoadedModel
from plmctl.evaluation.samples import held_out_samples, opened_for_samples
from plmctl.evaluation.scoring import score
from plmctl.families.base import get_family
from plmctl.files import is_model, read_json
from plmctl.hashing import known_sha256, model_hashes
from plmctl.objectives.base import make_objective
from plmctl.reporting.card import model_card
from plmctl.reporting.report import write_report
from plmctl.reporting.tables import metrics_table
from plmctl.run import launch
from plmctl.run.agreement import agree_on_start, agree_on_text, check_ready
from plmctl.run.budget import (
    Decision,
    SampleCosts,
    check_words,
    decide,
    decided,
    difference,
    save_steps,
    words_per_sample,
    words_seen,
)
from plmctl.run.configs import PretrainConfig
from plmctl.run.costs import phase_flops
from plmctl.run.display import COMPILE_NOTE, ONE_PROCESS_NOTE, say, show_result
from plmctl.run.folder import (
    AtWork,
    read_results,
    record_end,
    run_folder,
    save_model,
    say_what_changed,
    start_on_machine,
    write_environment,
    write_results,
)
from plmctl.run.frequencies import frequency_losses
from plmctl.run.launch import Place
from plmctl.run.machine import compute_of, failure_handling, retention
from plmctl.run.network import make_network, network_facts, starts_from_text
from plmctl.run.preflight import Prepared, check_machine, preflight, run_progress
from plmctl.tokenization.encode import Encoder
from plmctl.training import loop
from plmctl.training.average import Average, averaging
from plmctl.training.checkpoint import Checkpoints, load_last_weights, snapshot
from plmctl.training.data import Phase, Slicing, auto_micro_batch, mixture, scoring_batches
from plmctl.training.distributed import forgets_forwards, is_sharded, reduce, whole
from plmctl.training.engine import (
    compiles,
    emulation_note,
    make_accelerator,
    make_engine,
    precision_of,
)
from plmctl.training.journal import Journal
from plmctl.training.loop import Plan
from plmctl.training.memory import cut, fitted
from plmctl.training.peers import BUILDING, CONNECTING, FINISHING, PREPARING, VALIDATING, Peers
from plmctl.training.schedule import course, factor
from plmctl.training.timing import Timing, agreed, throwaway, time_steps, timed

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    from plmctl.models.base import StoreExamples
    from plmctl.run.stop import StopRequest
    from plmctl.training.engine import Engine


def run(
    config: PretrainConfig,
    *,
    fresh: bool,
    as_json: bool,
    until: int | None = None,
    accept_gap: bool = False,
) -> None:
    """Pretrain, or resume a run that was interrupted; a finished run is left alone.

    Args:
        fresh: Move an existing run folder aside.
        until: Save and stop after this step.
        accept_gap: Resume although lines of metrics.jsonl were lost.
    """
    folder = Path(config.run)
    with Peers.meet(config.launch) as peers:
        progress = run_progress(config, fresh=fresh)
        options = launch.options(until, accept_gap=accept_gap, fresh=fresh)
        progress = agree_on_start(peers, config, progress, options)
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
            metrics = _pretrain(config, peers, fresh=fresh, until=until, accept_gap=accept_gap)
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


def _pretrain(
    config: PretrainConfig,
    peers: Peers,
    *,
    fresh: bool,
    until: int | None,
    accept_gap: bool,
) -> dict[str, Any]:
    """Everything from the preflight to the report; the metrics of the last validation."""
    folder = Path(config.run)
    prepared = preflight(config)
    check_machine(config, prepared.vocab)
    place = Place() if launch.is_worker() else launch.place_of(config.launch)
    if place.machines > 1:  # its processes prepare the text: all machines meet first
        options = launch.options(until, accept_gap=accept_gap, fresh=fresh)
        raise SystemExit(start_on_machine("pretrain", config, place, options))
    peers.mark(PREPARING)
    text = prepare(config, prepared.encoder, peers=peers)
    text = replace(text, hashes={**text.hashes, **made_from(config)})
    agree_on_text(peers, text.hashes)
    if launch.is_main():
        say_shared(text)
    train, valid = training_examples(prepared, text), validation_examples(prepared, text)
    costs = sample_costs(prepared, text, train)
    decision = None if fresh else Decision.read(folder, config.train, resumes=True)
    if decision is None and launch.is_main():
        decision = decide_without_training(prepared, costs)
    began = time.monotonic()
    folder_at_work = run_folder(
        "pretrain", config, text.hashes, fresh=fresh, until=until, accept_gap=accept_gap
    )
    with folder_at_work as work, peers.working(partial(record_end, folder)):
        metrics, model = _train(
            prepared,
            peers,
            train,
            valid,
            text,
            costs,
            decision,
            until=until,
            accept_gap=accept_gap,
        )
        if work is not None and model is not None:
            _save(prepared, folder, work, model, metrics)
            _complete(config, folder, work, text)
            if (used := Decision.read(folder, config.train)) is not None:
                whole = "resumed" not in _events(folder)
                say(difference(used, time.monotonic() - began if whole else None))
    return metrics


def _events(folder: Path) -> set[str]:
    """The names of the events of a run."""
    lines = (folder / "events").read_text(encoding="utf-8").splitlines()
    return {str(json.loads(line)["event"]) for line in lines}


# --- Examples: the objective over the prepared text, built once per phase ---


def training_examples(prepared: Prepared, text: PreparedText) -> tuple[StoreExamples, ...]:
    """The training examples of each phase.

    Raises:
        ConfigError: The objective masks whole words, and the text has none; or the batch grows,
            and its rows are stateful streams.
        DataError: The text gives too few sequences.
    """
    config, examples = prepared.config, []
    for phase in config.train.phases:
        for store in stores_of(text.train):
            prepared.objective.check_text(store, phase.seq_len)
        examples.append(examples_of(prepared, text.train, phase.seq_len))
        _check_streams(config, examples[-1])
    return tuple(examples)


def _check_streams(config: PretrainConfig, examples: StoreExamples) -> None:
    if not examples.streamed:
        return
    if config.train.batch_ramp is not None:
        raise ConfigError(
            f"train.batch_ramp: the rows of {config.objective.name} are stateful streams, whose "
            "number cannot grow",
            "leave it out",
        )
    if len(examples) < config.train.batch_size:
        raise DataError(
            f"train.batch_size: {config.train.batch_size:,} streams, but the corpus has "
            f"{len(examples):,} windows",
            "lower it, or use more text",
        )


def validation_examples(prepared: Prepared, text: PreparedText) -> tuple[StoreExamples, ...]:
    """The validation examples of each phase, as long as its own; empty without validation text.

    BERT's first phase has rows of 128 tokens and trains the position embeddings of those alone: a
    loss on rows of 512 would say nothing of it.

    Raises:
        ConfigError, DataError: The text cannot be used; with its name if it is of a mixture.
    """
    config = prepared.config
    if text.valid is None:
        if isinstance(config.data.valid, float):
            hint = None if config.data.mixture else one_document_hint(config.data)
            say(
                f"the validation split ({config.data.valid:.3g} of the documents) is empty, so "
                f"nothing is validated; {f'{hint}; or ' if hint else ''}increase data.valid, or "
                "name validation files"
            )
        return ()
    lengths = [phase.seq_len for phase in config.train.phases]
    of_length = {length: _validation_rows(prepared, text.valid, length) for length in set(lengths)}
    return tuple(of_length[length] for length in lengths)


def _validation_rows(prepared: Prepared, corpus: Corpus, seq_len: int) -> StoreExamples:
    config, held_out = prepared.config, isinstance(prepared.config.data.valid, float)
    if not isinstance(corpus, MixedStore):
        with _naming("the validation text", held_out=held_out):
            return examples_of(prepared, corpus, seq_len)
    sources = []
    for name, store in zip(corpus.names, corpus.stores, strict=True):
        with _naming(f"the validation text of the source {name!r}", held_out=held_out):
            sources.append(examples_of(prepared, store, seq_len))
    return mixture(corpus.names, sources, corpus.weights, config.seed)


@contextmanager
def _naming(text: str, *, held_out: bool) -> Iterator[None]:
    """Errors say which text they are about."""
    try:
        yield
    except (ConfigError, DataError) as error:
        more = "increase data.valid, so that more documents are held out; or name validation files"
        hint = f"{more}; or {error.hint}" if held_out else error.hint
        raise type(error)(f"data.valid: {text}: {error.message}", hint) from error


def examples_of(prepared: Prepared, corpus: Corpus, seq_len: int) -> StoreExamples:
    """The objective over a store, or over the stores of a mixture, at one sequence length.

    Raises:
        DataError: The corpus gives no sequence.
    """
    config = prepared.config
    if isinstance(corpus, MixedStore):
        sources = [examples_of(prepared, store, seq_len) for store in corpus.stores]
        return mixture(corpus.names, sources, corpus.weights, config.seed)
    examples = prepared.objective.over(corpus, prepared.vocab, seq_len, config.seed)
    if not len(examples):
        raise DataError(
            f"the corpus has {corpus.num_tokens:,} tokens: not one sequence of {seq_len}",
            "use more text, or a smaller train.phases[].seq_len",
        )
    return examples


# --- The steps of a budget ---


def sample_costs(
    prepared: Prepared, text: PreparedText, examples: Sequence[StoreExamples]
) -> SampleCosts:
    """What a sample of each phase costs, for budgets, caps and checkpoints at words."""
    config = prepared.config
    words = [words_per_sample(text.words, one) for one in examples]
    known = tuple(each for each in words if each is not None)
    lengths = tuple(phase.seq_len for phase in config.train.phases)
    per_token = (
        phase_flops(config, prepared.vocab, prepared.tokenizer)
        if config.train.budget is not None
        else ()
    )
    flops = tuple(length * each for length, each in zip(lengths, per_token, strict=False))
    rule = text.word_rule
    return SampleCosts(lengths, flops, known if len(known) == len(words) else None, rule)


def decide_without_training(prepared: Prepared, costs: SampleCosts) -> Decision | None:
    """The steps of a budget in tokens, words or FLOPs; None: of a time, or there is no budget.

    Raises:
        ConfigError: The budget is too small, the words are unknown, or more than the config allows.
    """
    train = prepared.config.train
    if train.budget is None:
        check_words(train, course(train), costs)
        return None
    if train.budget.unit == "seconds":
        return None
    return decide(train, prepared.config.schedule, costs)


def with_steps(
    prepared: Prepared, text: PreparedText, examples: Sequence[StoreExamples]
) -> PretrainConfig:
    """The config with the number of its steps: of its run, or computed.

    Raises:
        ConfigError: The budget is a time, and no run has measured it yet.
    """
    config = prepared.config
    if config.train.budget is None:
        return config
    decision = Decision.read(Path(config.run), config.train)
    if decision is None:
        costs = sample_costs(prepared, text, examples)
        decision = decide_without_training(prepared, costs)
    if decision is None:
        raise ConfigError(
            f"train.budget: the steps of {config.train.budget} are measured when the run starts",
            "start the run first (`plmctl pretrain CONFIG --until 1`), or set steps",
        )
    return decided(config, decision.steps)


def _measured(
    engine: Engine,
    plan: Plan,
    prepared: Prepared,
    costs: SampleCosts,
    checkpoints: Checkpoints,
    validate: Callable[[], object],
    began: float,
) -> Decision:
    """The steps that fit into a time, measured before the first step; the same in all processes.

    Args:
        engine: Network and optimizer of a new run.
        plan: Its phases, with their micro-batches.
        costs: What the samples cost.
        validate: Validates and makes the samples.
        began: When the training started, by the monotonic clock.
    """
    config = prepared.config
    assert config.train.budget is not None
    say("measuring a few steps, a validation and a checkpoint, for train.budget")
    with throwaway(engine):
        steps = time_steps(engine, plan, config.train.budget.number)
        trained = engine.trained()
        main = engine.accelerator.is_main_process

        def save() -> None:
            if main or is_sharded(trained.network):
                state = snapshot(trained, 0, {}, kept=main)
                if main:
                    checkpoints.trial(state)

        saving, validation = timed(engine, save), timed(engine, validate)
    engine.network.train()
    spent = agreed(engine, time.monotonic() - began)
    at = config.checkpoint.at
    timing = Timing(
        steps,
        spent,
        validation,
        saving,
        config.log.validate_every,
        config.checkpoint.every,
        extra_saves=_MANY_SAVES if isinstance(at, str) else len(at),
    )
    return decide(config.train, config.schedule, costs, timing)


_MANY_SAVES = 28  # of `checkpoint.at: babylm`, and about as many of `log`


# --- The plan of the steps ---


def make_plan(
    config: PretrainConfig,
    examples: Sequence[StoreExamples],
    accelerator: Accelerator,
    costs: SampleCosts | None = None,
) -> Plan:
    """The phases of a config over their examples, sliced for these processes.

    Args:
        config: With steps; not with a budget.
        examples: Those of each phase.
        costs: Says what words the samples have; None: unknown, and no checkpoints at words.
    """
    world, device = accelerator.num_processes, accelerator.device.type
    batch = config.train.batch_size
    sharded = config.launch.shards(world)
    compiled = compiles(config.compute, device, config.model.family, sharded=sharded)
    fixed = compiled and not shapes_vary(config)
    phases, steps = [], course(config.train)
    lengths = config.train.phase_steps
    parts = zip(config.train.phases, lengths, examples, steps.sizes, strict=True)
    for phase, length, own, sizes in parts:
        micro = auto_micro_batch(
            config.train.micro_batch_size, -(-batch // world), phase.seq_len, device
        )
        width = phase.seq_len if fixed else None
        slicing = Slicing(batch, micro, accelerator.process_index, world, sizes, width=width)
        phases.append(Phase(own, length, slicing))
    workers = config.compute.workers
    scale = factor(config.schedule, steps)
    words, at = None if costs is None else costs.words, frozenset[int]()
    if costs is not None:
        at, late = save_steps(config.checkpoint.at, steps, words, costs.no_words)
        if late:
            say(f"checkpoint.at: the run ends before {', '.join(late)}")
    return Plan(
        phases=tuple(phases),
        seed=config.seed,
        learning_rate=lambda step: config.optim.lr * scale(step),
        clip=config.optim.clip,
        log_every=config.log.every,
        validate_every=config.log.validate_every,
        workers=workers if isinstance(workers, int) else (2 if device == "cuda" else 0),
        save_at=at,
        words=words_seen(steps, words),
        **failure_handling(config),
    )


def shapes_vary(config: PretrainConfig) -> bool:
    """Whether the number of rows of a micro-batch changes from step to step."""
    return bool(config.data.mixture) or config.train.batch_ramp is not None


# --- Training and validation ---


def _train(
    prepared: Prepared,
    peers: Peers,
    train: Sequence[StoreExamples],
    valid: Sequence[StoreExamples],
    text: PreparedText,
    costs: SampleCosts,
    decision: Decision | None,
    *,
    until: int | None,
    accept_gap: bool,
) -> tuple[dict[str, Any], PreTrainedModel | None]:
    """The metrics of the last validation, and the model; None in all processes but the main one.

    Args:
        train: The training examples of each phase.
        valid: The validation examples of each phase; empty: nothing is validated.
        text: The text, for environment.json.
        costs: What the samples cost.
        decision: The steps of a budget; None: there is none, or it is a time to be measured.
        until: Save and stop after this step.
        accept_gap: Resume although lines of metrics.jsonl were lost.
    """
    config, folder, began = prepared.config, Path(prepared.config.run), time.monotonic()
    peers.mark(CONNECTING)
    accelerator = make_accelerator(compute_of(config, prepared.network.model_type, peers), peers)
    accelerator.wait_for_everyone()  # until the main process has made the run folder
    peers.mark(BUILDING)
    if config.train.budget is not None:
        steps = _agreed_steps(accelerator, decision, len(config.train.phases))
        config = decided(config, steps or [1] * len(config.train.phases))
    # While the steps are unknown, so are those of the checkpoints at words.
    known = prepared.config.train.budget is None or steps
    plan = make_plan(config, train, accelerator, costs if known else None)
    # The counts of a text are saved beside it: the main process counts, the others read.
    counting = accelerator.main_process_first() if starts_from_text(config) else nullcontext()
    with counting:
        network = make_network(config, prepared.tokenizer, text=text.train)
    engine = make_engine(
        accelerator,
        network,
        config.optim,
        config.compute,
        varying=shapes_vary(config),
        sharded=config.launch.shards(accelerator.num_processes),
        averaging=averaging(config.train),
        peers=peers,
    )
    if network.compiled:
        say(COMPILE_NOTE)
    if note := emulation_note(config.compute, accelerator):
        say(note)
    if config.launch.strategy == "fsdp" and accelerator.num_processes == 1:
        say(ONE_PROCESS_NOTE)
    counted: dict[str, float] = {}
    if accelerator.is_main_process:
        counted = frequency_losses(
            text.train, train[-1], valid[-1] if valid else None, config.log.validate_samples
        )
        write_environment(
            folder,
            text.hashes,
            accelerator.num_processes,
            text.contents,
            precision_of(accelerator),
            {"frequency_loss": counted, "network": network_facts(network.model)},
        )
    with Journal(
        folder,
        title=f"pretraining {config.model.family} ({config.objective.name})",
        baseline=counted,
        total_steps=plan.steps,
        trackers=config.log.trackers,
        quiet=not accelerator.is_main_process,
        accept_gap=accept_gap,
    ) as journal:
        plan = fitted(engine, plan, journal, folder)
        if prepared.config.train.budget is not None:
            if not steps:
                checkpoints = Checkpoints(folder / "checkpoints", 1)
                validate = partial(_validate, engine, config, valid, plan)
                sample = _sampler(engine, prepared, text)
                trial = checkpoints, lambda: (validate(plan.steps), sample and sample()), began
                decision = _measured(engine, plan, prepared, costs, *trial)
                micros = tuple(phase.slicing.micro_batch_size for phase in plan.phases)
                config = decided(config, decision.steps)
                if (average := averaging(config.train)) is not None:  # its steps are known now
                    engine = replace(engine, average=Average(engine.trained().network, average))
                plan = cut(make_plan(config, train, accelerator, costs), micros)
                journal.expect(plan.steps)
            _keep_decision(decision, prepared.config, journal)
        plan = replace(plan, until=until)
        check_ready(peers, engine, plan, folder)
        checkpoints = Checkpoints(
            folder / "checkpoints", retention(config.checkpoint, plan.save_at)
        )
        validate = partial(_validate, engine, config, valid, plan)
        sample = _sampler(engine, prepared, text)
        scores: dict[int, dict[str, float]] = {}  # of the last validation, by its step

        def validate_and_keep(step: int, *, stop: StopRequest | None = None) -> dict[str, float]:
            scores.clear()
            scores[step] = validate(step, stop=stop)
            return scores[step]

        progress = loop.train(engine, plan, checkpoints, journal, validate_and_keep, sample=sample)
        peers.mark(VALIDATING)
        seen = plan.words_at(progress.step)
        metrics: dict[str, Any] = {"steps": progress.step, "tokens": progress.tokens, **seen}
        if progress.step not in scores:  # an earlier start of this run validated the last step
            with engine.averaged(progress.step):
                validate_and_keep(progress.step)
        metrics |= scores[progress.step]
        if engine.average is not None and valid:
            metrics["valid/loss_of_last_weights"] = validate(progress.step)["valid/loss"]
        peers.mark(FINISHING)
        journal.event("finished", step=progress.step)
    if not accelerator.is_main_process:
        return metrics, None
    model: Any = engine.trained().network
    if is_sharded(model):
        model = make_network(config, prepared.tokenizer).model
        load_last_weights(checkpoints, model)
    elif engine.average is not None:
        engine.average.exchange()  # the training is over
    return metrics, model


def _agreed_steps(
    accelerator: Accelerator, decision: Decision | None, phases: int
) -> tuple[int, ...] | None:
    """The main process's steps of each phase, in all processes; None: they must be measured."""
    import torch

    own = [0] * phases
    if accelerator.is_main_process and decision is not None:
        own = list(decision.steps)
    shared: list[int] = reduce(accelerator, torch.tensor(own)).tolist()
    return tuple(shared) if all(shared) else None


def _keep_decision(decision: Decision | None, config: PretrainConfig, journal: Journal) -> None:
    """Print, log and save the steps of a budget, once per run; the main process does it."""
    folder = Path(config.run)
    if decision is None or not launch.is_main():
        return
    if Decision.read(folder, config.train) == decision:
        return
    journal.warn(decision.message)
    facts = {"budget": decision.budget, "reason": decision.reason}
    journal.event("budget", **facts, steps=sum(decision.steps), tokens=decision.tokens)
    decision.save(folder)


def _validate(
    engine: Engine,
    config: PretrainConfig,
    valid: Sequence[StoreExamples],
    plan: Plan,
    step: int,
    *,
    stop: StopRequest | None = None,
) -> dict[str, float]:
    """Metrics on the validation text with the masks of the first epoch, always the same ones.

    Its rows are as long as those of the phase in which ``step`` is the last update.
    """
    if not valid:
        return {}
    number = plan.phase_of(step)
    examples = valid[number]
    batches = scoring_batches(examples, plan.phases[number].slicing, config.log.validate_samples)
    batches = engine.peers.marked(VALIDATING, batches)
    bare = engine.bare
    with whole(bare):
        scores = score(engine.accelerator, bare, examples, batches, stop)
    return {f"valid/{name}": value for name, value in scores.items()}


# --- Samples: held-out sentences that the network fills in or continues ---


def _shows_samples(prepared: Prepared, model: PreTrainedModel) -> bool:
    """Whether a run has samples: its config, its objective and its family want and make them."""
    kind, family = prepared.objective.SAMPLES, get_family(prepared.config.model.family)
    able = family.SAMPLES and (kind == "fill-mask" or (kind is not None and model.can_generate()))
    return able and prepared.config.log.samples > 0


def _samples_of(model: LoadedModel, config: PretrainConfig, text: PreparedText) -> dict[str, Any]:
    held_out = stores_of(text.valid or text.train)[0]
    objective = make_objective(config.objective)
    return held_out_samples(model, held_out, config.seed, objective, config.log.samples)


def _sampler(engine: Engine, prepared: Prepared, text: PreparedText) -> loop.Sample | None:
    """What makes samples of the network between two steps; None if there are none.

    One process makes them while the others wait. An older PyTorch cannot forget the forwards of
    that one process, and with sharded weights the next step would wait for ever: no samples there.
    """
    network = engine.bare
    stuck = is_sharded(network) and not forgets_forwards()
    if stuck or not _shows_samples(prepared, network.model):
        return None

    def sample() -> Mapping[str, Any]:
        with whole(network):
            if not engine.accelerator.is_main_process:
                return {}
            network.eval()
            family = prepared.config.model.family
            model = LoadedModel.in_training(network, prepared.tokenizer, family, engine.accelerator)
            with network.apart():
                return _samples_of(model, prepared.config, text)

    return sample


# --- What a finished run leaves: results, model folder, samples and report ---


_SAMPLES = "eval/samples.json"

_REPORT = "report.html"


def _save(
    prepared: Prepared, folder: Path, work: AtWork, model: Any, metrics: dict[str, Any]
) -> None:
    """Write the results, and the model folder unless it exists already."""
    write_results(folder, "valid", {"kind": "pretrain", "model": str(folder), "results": metrics})
    has_samples = _shows_samples(prepared, model)
    work.promise(["model", "eval/valid.json", *([_SAMPLES] if has_samples else []), _REPORT])
    if not is_model(folder / "model"):
        card = model_card(folder, type(model).__name__)
        save_model(folder, model, prepared.tokenizer, card)


def _complete(
    config: PretrainConfig, folder: Path, work: AtWork, text: PreparedText | None = None
) -> None:
    """Write what is missing after the model: samples, then the report.

    Args:
        work: Records that the run is finished.
        text: The prepared text; None: it is prepared if samples are missing.
    """
    if _SAMPLES in work.status.missing(folder):
        if text is None:
            text = prepare(config, Encoder(config.tokenizer, config.data.words))
        model = opened_for_samples(str(folder / "model"))
        write_results(folder, "samples", _samples_of(model, config, text))
    write_report([folder], folder / _REPORT)
    work.finish()
