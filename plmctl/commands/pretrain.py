"""``plmctl pretrain``: corpus and tokenizer in, a Hugging Face model folder out.

The parts of a pretraining in their order: preflight, text, examples, the plan of the steps, the
training, and what a finished run leaves (results, model folder, samples, report). Each of these is
complete or absent. The model is the last that needs the network of the training: a run that ends
after it is completed without training.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plmctl.arrays import Ints
from plmctl.commands.plan import phase_flops
from plmctl.commands.prepare import PreparedText, prepare
from plmctl.corpus.sentences import choose_rule, sentence_spans
from plmctl.corpus.store import Corpus, MixedStore, stores_of
from plmctl.errors import ConfigError, DataError, PlmError
from plmctl.evaluation.samples import continue_texts, fill_mask, generate_answers
from plmctl.evaluation.scoring import score
from plmctl.examples.keys import below, fold, stream
from plmctl.files import is_model
from plmctl.reporting.card import model_card
from plmctl.reporting.report import write_report
from plmctl.reporting.tables import metrics_table
from plmctl.run import launch
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
from plmctl.run.display import COMPILE_NOTE, say, show_result
from plmctl.run.folder import (
    AtWork,
    check_inputs,
    check_run,
    is_finished,
    is_trained,
    open_run,
    save_model,
    start_processes,
    write_environment,
    write_results,
)
from plmctl.run.network import make_network
from plmctl.run.preflight import Prepared, check_text, failure_handling, preflight, retention
from plmctl.tokenization.encode import Encoder
from plmctl.tokenization.load import Vocab, load_tokenizer
from plmctl.training import loop
from plmctl.training.checkpoint import Checkpoints, load_weights, snapshot
from plmctl.training.data import Phase, Slicing, auto_micro_batch, mixture, scoring_batches
from plmctl.training.distributed import is_sharded, reduce, whole
from plmctl.training.engine import compiles, make_accelerator, make_engine
from plmctl.training.journal import Journal
from plmctl.training.loop import Plan
from plmctl.training.memory import cut, fitted
from plmctl.training.schedule import course, factor
from plmctl.training.timing import Timing, agreed, throwaway, time_steps, timed
from plmctl.training.trackers import check_trackers

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    from plmctl.corpus.store import TokenStore
    from plmctl.models.base import StoreExamples
    from plmctl.models.network import Network
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
        config: The config of the run.
        fresh: Move an existing run folder aside.
        as_json: Print the result as JSON.
        until: Save and stop after this step.
        accept_gap: Resume although lines of metrics.jsonl were lost.
    """
    folder = Path(config.run)
    check_run(config, config.run, fresh=fresh)
    check_trackers(config.log.trackers)
    if not fresh and is_finished(folder):
        say(f"{folder} is finished: its model is in {folder / 'model'}")
        return
    if not fresh and is_trained(folder):
        say(f"{folder} is trained; only samples or the report are missing")
        if launch.is_main():
            with AtWork(folder) as work:
                _complete(config, folder, work)
        valid = json.loads((folder / "eval" / "valid.json").read_text(encoding="utf-8"))
        metrics = valid["results"]
    else:
        metrics = _pretrain(config, fresh=fresh, until=until, accept_gap=accept_gap)
    show_result(metrics, [metrics_table(f"pretrained {folder}", metrics)], as_json=as_json)


def _pretrain(
    config: PretrainConfig, *, fresh: bool, until: int | None, accept_gap: bool
) -> dict[str, Any]:
    """Everything from the preflight to the report; the metrics of the last validation."""
    folder = Path(config.run)
    prepared = preflight(config)
    text = prepare(config, prepared.encoder)
    train, valid = training_examples(prepared, text), validation_examples(prepared, text)
    costs = sample_costs(prepared, text, train)
    decision = None if fresh else Decision.read(folder, config.train, resumes=True)
    if decision is None and launch.is_main():
        decision = decide_without_training(prepared, costs)
    if not fresh:
        check_inputs(folder, text.hashes)
    if launch.is_main():
        open_run(config, config.run, fresh=fresh)
    processes = launch.process_count(config.launch, config.compute.device)
    if processes > 1 and not launch.is_worker():
        options = launch.options(until, accept_gap=accept_gap)
        raise SystemExit(start_processes("pretrain", folder, processes, options))
    began = time.monotonic()
    with AtWork(folder) if launch.is_main() else nullcontext() as work:
        metrics, model = _train(
            prepared,
            train,
            valid,
            text.hashes,
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
            check_text(config.objective, store, phase.seq_len)
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


def validation_examples(prepared: Prepared, text: PreparedText) -> StoreExamples | None:
    """The validation examples, as long as those of the last phase; None without validation text.

    Raises:
        ConfigError, DataError: The text cannot be used; with its name if it is of a mixture.
    """
    config = prepared.config
    if text.valid is None:
        if isinstance(config.data.valid, float):
            say(
                f"the validation split ({config.data.valid:.3g} of the documents) is empty, so "
                "nothing is validated; increase data.valid, or name validation files"
            )
        return None
    seq_len = config.train.phases[-1].seq_len
    held_out, corpus = isinstance(config.data.valid, float), text.valid
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
    examples: StoreExamples = prepared.objective.make(
        config.objective, corpus, prepared.vocab, seq_len, config.seed
    )
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
    per_token = phase_flops(config, prepared.vocab) if config.train.budget is not None else ()
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
    validate: Callable[[], Mapping[str, float]],
    began: float,
) -> Decision:
    """The steps that fit into a time, measured before the first step; the same in all processes.

    Args:
        engine: Network and optimizer of a new run.
        plan: Its phases, with their micro-batches.
        prepared: With the config.
        costs: What the samples cost.
        checkpoints: The checkpoints of the run.
        validate: Validates.
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
        accelerator: The processes.
        costs: Says what words the samples have; None: unknown, and no checkpoints at words.
    """
    world, device = accelerator.num_processes, accelerator.device.type
    batch = config.train.batch_size
    ramp = config.train.batch_ramp
    smallest = batch if ramp is None else ramp.start
    if smallest < world:
        key = "train.batch_size" if ramp is None else "train.batch_ramp.start"
        raise ConfigError(f"{key}: {smallest} sequences for {world} processes")
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
    train: Sequence[StoreExamples],
    valid: StoreExamples | None,
    hashes: Mapping[str, str],
    costs: SampleCosts,
    decision: Decision | None,
    *,
    until: int | None,
    accept_gap: bool,
) -> tuple[dict[str, Any], PreTrainedModel | None]:
    """The metrics of the last validation, and the model; None in all processes but the main one.

    Args:
        prepared: The run.
        train: The training examples of each phase.
        valid: The validation examples.
        hashes: Those of the data and the tokenizer.
        costs: What the samples cost.
        decision: The steps of a budget; None: there is none, or it is a time to be measured.
        until: Save and stop after this step.
        accept_gap: Resume although lines of metrics.jsonl were lost.
    """
    config, folder, began = prepared.config, Path(prepared.config.run), time.monotonic()
    accelerator = make_accelerator(config.compute)
    accelerator.wait_for_everyone()  # until the main process has made the run folder
    if config.train.budget is not None:
        steps = _agreed_steps(accelerator, decision, len(config.train.phases))
        config = decided(config, steps or [1] * len(config.train.phases))
    plan = make_plan(config, train, accelerator, costs)
    network = make_network(config, prepared.vocab)
    engine = make_engine(
        accelerator,
        network,
        config.optim,
        config.compute,
        varying=shapes_vary(config),
        sharded=config.launch.shards(accelerator.num_processes),
    )
    if network.compiled:
        say(COMPILE_NOTE)
    if accelerator.is_main_process:
        write_environment(folder, hashes)
    with Journal(
        folder,
        title=f"pretraining {config.model.family} ({config.objective.name})",
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
                trial = checkpoints, validate, began
                decision = _measured(engine, plan, prepared, costs, *trial)
                micros = tuple(phase.slicing.micro_batch_size for phase in plan.phases)
                config = decided(config, decision.steps)
                plan = cut(make_plan(config, train, accelerator, costs), micros)
                journal.expect(plan.steps)
            _keep_decision(decision, prepared.config, journal)
        plan = replace(plan, until=until)
        checkpoints = Checkpoints(
            folder / "checkpoints", retention(config.checkpoint, plan.save_at)
        )
        validate = partial(_validate, engine, config, valid, plan)
        progress = loop.train(engine, plan, checkpoints, journal, validate)
        seen = plan.words_at(progress.step)
        metrics = {"steps": progress.step, "tokens": progress.tokens, **seen, **validate()}
        journal.event("finished", step=progress.step)
    if not accelerator.is_main_process:
        return metrics, None
    model = _whole_model(engine, checkpoints, partial(make_network, config, prepared.vocab))
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
    valid: StoreExamples | None,
    plan: Plan,
    *,
    stop: StopRequest | None = None,
) -> dict[str, float]:
    """Metrics on the validation text with the masks of the first epoch, always the same ones."""
    if valid is None:
        return {}
    batches = scoring_batches(valid, plan.phases[-1].slicing, config.log.validate_samples)
    bare = engine.accelerator.unwrap_model(engine.network)
    with whole(bare):
        scores = score(engine.accelerator, bare, valid, batches, stop)
    return {f"valid/{name}": value for name, value in scores.items()}


def _whole_model(
    engine: Engine, checkpoints: Checkpoints, fresh: Callable[[], Network]
) -> PreTrainedModel:
    """The trained model; if the processes have shards of it, as in the last checkpoint.

    Args:
        engine: As the training left it.
        checkpoints: The checkpoints of the run.
        fresh: Builds the network again.

    Raises:
        PlmError: The checkpoint has been damaged since.
    """
    model: Any = engine.trained().network
    if is_sharded(model):
        folder, damaged = checkpoints.newest()
        if folder is None or damaged:
            raise PlmError(
                f"{damaged[0] if damaged else 'no checkpoint'}: the weights cannot be read",
                "run the same command again: it resumes from the checkpoint before",
            )
        model = fresh().model
        load_weights(folder, model)
    whole: PreTrainedModel = model
    return whole


# --- What a finished run leaves: results, model folder, samples and report ---


_SAMPLES = "eval/samples.json"

_REPORT = "report.html"


def _save(
    prepared: Prepared, folder: Path, work: AtWork, model: Any, metrics: dict[str, Any]
) -> None:
    """Write the results, and the model folder unless it exists already."""
    write_results(folder, "valid", {"kind": "pretrain", "model": str(folder), "results": metrics})
    has_samples = prepared.vocab.mask is not None or model.can_generate()
    work.promise(["model", "eval/valid.json", *([_SAMPLES] if has_samples else []), _REPORT])
    if not is_model(folder / "model"):
        card = model_card(folder, type(model).__name__)
        save_model(folder, model, prepared.tokenizer, card)


def _complete(
    config: PretrainConfig, folder: Path, work: AtWork, text: PreparedText | None = None
) -> None:
    """Write what is missing after the model: samples, then the report.

    Args:
        config: The config of the run.
        folder: The run folder.
        work: Records that the run is finished.
        text: The prepared text; None: it is prepared if samples are missing.
    """
    if _SAMPLES in work.status.missing(folder):
        if text is None:
            text = prepare(config, Encoder(config.tokenizer, config.data.words))
        held_out = stores_of(text.valid or text.train)[0]
        name = config.objective.name
        samples = held_out_samples(str(folder / "model"), held_out, config.seed, name)
        write_results(folder, "samples", samples)
    write_report([folder], folder / _REPORT)
    work.finish()


# --- Samples: held-out sentences that the model fills in or continues ---


_SAMPLE_COUNT = 6

_SENTENCES_TRIED = 100_000  # sentences, spread over the corpus

_SAMPLE_TOKENS = (8, 40)  # minimum and maximum tokens of a sample

_STRETCH = 160  # tokens that surely contain a sentence

_READABLE = 30  # minimum characters of a sentence


def held_out_samples(folder: str, store: TokenStore, seed: int, objective: str) -> dict[str, Any]:
    """The model's answers to a few sentences of a store: masked words, or continued beginnings.

    An encoder-decoder does the task of its objective.

    Args:
        folder: The model folder.
        store: Held-out text.
        seed: Decides the sentences and the words.
        objective: The objective that the model was trained with.
    """
    from transformers import AutoConfig

    tokenizer = load_tokenizer(folder)
    key = int(fold(seed, stream("samples")))
    spans = _sample_spans(store, tokenizer, key)
    if getattr(AutoConfig.from_pretrained(folder), "is_encoder_decoder", False):
        return _text_to_text_samples(folder, tokenizer, store, spans, key, objective)
    if tokenizer.mask_token is None:
        halves = [store.tokens(span[: len(span) // 2]).tolist() for span in spans]
        # The half may end inside a character.
        prompts = [str(tokenizer.decode(ids)).rstrip("\ufffd") for ids in halves]
        return {"kind": "generation", "items": continue_texts(folder, prompts)}
    items, answers = [], []
    for number, span in enumerate(spans):
        ids = store.tokens(span).tolist()
        words = _whole_words(store, span)
        if not len(words):
            continue
        at = int(words[below(fold(key, 1, number), len(words))])
        answers.append(tokenizer.decode([ids[at]]))
        masked = [*ids[:at], tokenizer.mask_token_id, *ids[at + 1 :]]
        items.append(str(tokenizer.decode(masked)))
    filled = fill_mask(folder, items)
    return {
        "kind": "fill-mask",
        "items": [{**item, "answer": a} for item, a in zip(filled, answers, strict=True)],
    }


def _text_to_text_samples(
    folder: str, tokenizer: Any, store: TokenStore, spans: list[Ints], key: int, objective: str
) -> dict[str, Any]:
    """Sentences with a sentinel in place of some words, shuffled sentences, or beginnings."""
    vocab = Vocab.of(tokenizer)
    inputs, answers = [], []
    for number, span in enumerate(spans):
        ids = store.tokens(span).tolist()
        if objective in ("span_corruption", "iid_denoising") and vocab.sentinels:
            kind = "fill-span"
            first, past = _some_words(store, span, int(fold(key, 1, number)))
            ids, hidden = [*ids[:first], vocab.sentinels[0], *ids[past:]], ids[first:past]
        elif objective == "deshuffling":
            kind, hidden = "deshuffle", ids
            order = np.argsort(fold(key, 2, number, np.arange(len(ids))))
            ids = [ids[at] for at in order]
        else:
            kind = "generation"
            ids, hidden = ids[: len(ids) // 2], ids[len(ids) // 2 :]
        inputs.append([*ids, vocab.eos or 0])
        answers.append(hidden)
    items = [
        {**item, "answer": str(tokenizer.decode(hidden))}
        for item, hidden in zip(generate_answers(folder, inputs), answers, strict=True)
    ]
    return {"kind": kind if spans else "generation", "items": items}


def _some_words(store: TokenStore, span: Ints, key: int) -> tuple[int, int]:
    """Positions [first, past) of whole words in a sentence: two or more tokens, not its first."""
    starts = np.flatnonzero(store.word_starts(span))
    after = starts[starts > 0]
    first = int(after[below(key, len(after))]) if len(after) else len(span) // 2
    ends = starts[starts >= first + 2]
    return first, int(ends[0]) if len(ends) else len(span)


def _whole_words(store: TokenStore, span: Ints) -> Ints:
    """Positions of one-token words in a sentence, except the first and the last."""
    starts = store.word_starts(span)
    return 1 + np.flatnonzero(starts[1:-1] & starts[2:])


def _sample_spans(store: TokenStore, tokenizer: Any, key: int) -> list[Ints]:
    """Token positions of a few readable sentences."""
    looked_at = np.arange(0, store.num_sentences, max(1, store.num_sentences // _SENTENCES_TRIED))
    starts, ends = store.sentences[looked_at], store.sentences[looked_at + 1]
    sizes = ends - starts
    fitting = np.flatnonzero((sizes >= _SAMPLE_TOKENS[0]) & (sizes <= _SAMPLE_TOKENS[1]))
    if len(fitting):
        which = np.unique(fitting[below(fold(key, 0, np.arange(_SAMPLE_COUNT)), len(fitting))])
        return [np.arange(starts[s], ends[s]) for s in which]
    # The text is not split into sentences: find one in each of some stretches.
    spans = []
    for place in below(fold(key, 0, np.arange(_SAMPLE_COUNT)), max(1, store.num_tokens - _STRETCH)):
        window = np.arange(place, min(place + _STRETCH, store.num_tokens))
        if len(span := _sentence_in(store, tokenizer, window)) >= _SAMPLE_TOKENS[0]:
            spans.append(span)
    return spans


def _sentence_in(store: TokenStore, tokenizer: Any, window: Ints) -> Ints:
    """The tokens of the first complete sentence of a stretch, or of its beginning."""
    ids = store.tokens(window).tolist()
    text = str(tokenizer.decode(ids))
    spans = sentence_spans(text, choose_rule([text]))
    # The first sentence is incomplete, and the last one may be.
    start, end = next(((a, b) for a, b in spans[1:] if b - a >= _READABLE), (0, len(text)))
    lengths = [len(str(tokenizer.decode(ids[:count]))) for count in range(len(ids) + 1)]
    first, past = bisect_right(lengths, start) - 1, bisect_left(lengths, end)
    return window[first : min(past, first + _SAMPLE_TOKENS[1])]
