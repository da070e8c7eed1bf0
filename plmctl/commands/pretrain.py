"""``plmctl pretrain``: corpus and tokenizer in, a Hugging Face model folder out.

The steps of a pretraining in their order: preflight, text, checks of the text, the plan of the
steps, the training, and what a finished run leaves (results, model folder, samples, report). Each
of these is whole or absent, and the model is the last that needs the network of the training: a run
that ends after it is completed without training.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plmctl.arrays import Ints
from plmctl.commands.prepare import Prepared, prepare
from plmctl.config.pretrain import PretrainConfig
from plmctl.corpus.sentences import choose_rule, sentence_spans
from plmctl.corpus.store import Corpus, MixedStore, stores_of
from plmctl.errors import ConfigError, DataError, PlmError
from plmctl.evaluation.samples import continue_texts, fill_mask, generate_answers
from plmctl.examples.keys import below, fold, stream
from plmctl.files import is_model
from plmctl.objectives.base import get_objective
from plmctl.run import launch
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
from plmctl.run.network import (
    make_network,
    output_size,
)
from plmctl.run.preflight import (
    check_continued,
    check_lengths,
    check_model,
    check_network,
    check_text,
    failure_handling,
    retention,
)
from plmctl.tokenization.load import Vocab, load_tokenizer
from plmctl.training.trackers import check_trackers

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    from plmctl.corpus.store import TokenStore
    from plmctl.models.base import Examples
    from plmctl.models.network import Network
    from plmctl.run.stop import StopRequest
    from plmctl.training.checkpoint import Checkpoints
    from plmctl.training.engine import Engine
    from plmctl.training.loop import Plan


def run(
    config: PretrainConfig,
    *,
    fresh: bool,
    as_json: bool,
    until: int | None = None,
    accept_gap: bool = False,
) -> None:
    """Pretrain, or continue a run that was cut short; a finished run is left alone.

    Args:
        config: What is trained.
        fresh: Move a run folder that is there aside.
        as_json: Print the result as JSON.
        until: Save and stop after this step.
        accept_gap: Continue although lines of metrics.jsonl were lost.
    """
    folder = Path(config.run)
    check_run(config, config.run, fresh=fresh)
    check_trackers(config.log.trackers)
    if not fresh and is_finished(folder):
        say(f"{folder} is finished: its model is in {folder / 'model'}")
        return
    if not fresh and is_trained(folder):
        say(f"{folder} is trained: what follows the training is completed")
        if launch.is_main():
            with AtWork(folder) as work:
                _complete(config, folder, work)
        found = json.loads((folder / "eval" / "valid.json").read_text(encoding="utf-8"))
        figures = found["results"]
    else:
        figures = _run(config, fresh=fresh, until=until, accept_gap=accept_gap)
    from plmctl.reporting.tables import metrics_table

    show_result(figures, [metrics_table(f"pretrained {folder}", figures)], as_json=as_json)


def _run(
    config: PretrainConfig, *, fresh: bool, until: int | None, accept_gap: bool
) -> dict[str, Any]:
    """Everything from the text to the report; the figures of the last validation."""
    folder = Path(config.run)
    check_network(config)
    prepared = prepare(config)
    check_prepared(config, prepared)
    valid = validation_step(config, prepared)
    if not fresh:
        check_inputs(folder, prepared.hashes)
    if launch.is_main():
        open_run(config, config.run, fresh=fresh)
    processes = launch.process_count(config.launch, config.compute.device)
    if processes > 1 and not launch.is_worker():
        options = launch.options(until, accept_gap=accept_gap)
        raise SystemExit(start_processes("pretrain", folder, processes, options))
    with AtWork(folder) if launch.is_main() else nullcontext() as work:
        figures, model = _train(config, prepared, valid, until=until, accept_gap=accept_gap)
        if work is not None and model is not None:
            _save(config, folder, work, model, prepared, figures)
            _complete(config, folder, work, prepared)
    return figures


# --- Checks of the prepared text ---


def check_prepared(config: PretrainConfig, prepared: Prepared) -> None:
    """Refuse what cannot train, before a network is built.

    Raises:
        ConfigError: A sequence longer than the network has positions, a tokenizer without what the
            objective needs, or whole words asked for where the text has none.
        DataError: A corpus that gives no sequence.
    """
    check_lengths(config)
    if config.model.init_from is not None:
        from plmctl.models.load import config_of

        check_model(config.model.init_from)
        loaded = config_of(config.model.init_from)
        check_continued(config, loaded, output_size(config, prepared.vocab))
    for phase in config.train.phases:
        for store in stores_of(prepared.train):
            check_text(config.objective, store, phase.seq_len)
        step = make_step(config, prepared.train, prepared, phase.seq_len)
        _check_rows(config, step)


def _check_rows(config: PretrainConfig, step: Examples) -> None:

    if step.streamed and config.train.batch_ramp is not None:
        raise ConfigError(
            f"train.batch_ramp: the rows of {config.objective.name} are streams that go on from "
            "step to step, so that their number stays the same",
            "leave it out",
        )
    if step.streamed and len(step) < config.train.batch_size:
        raise DataError(
            f"train.batch_size: {config.train.batch_size:,} streams, but the corpus has "
            f"{len(step):,} windows",
            "lower it, or use more text",
        )


def validation_step(config: PretrainConfig, prepared: Prepared) -> Examples | None:
    """The objective over the validation text, or None without one: made before the first step.

    Every validation is of rows as long as the last phase's.

    Raises:
        ConfigError, DataError: The text cannot be validated on; by name, if it is of a mixture.
    """
    if prepared.valid is None:
        if isinstance(config.data.valid, float):
            say(
                f"the validation split ({config.data.valid:.3g} of the documents) is empty, so "
                "nothing is validated; increase data.valid, or name validation files"
            )
        return None
    seq_len = config.train.phases[-1].seq_len
    held_out, corpus = isinstance(config.data.valid, float), prepared.valid
    if isinstance(corpus, MixedStore):
        for name, store in zip(corpus.names, corpus.stores, strict=True):
            with _validating(f"the validation text of the source {name!r}", held_out=held_out):
                make_step(config, store, prepared, seq_len)
    with _validating("the validation text", held_out=held_out):
        return make_step(config, corpus, prepared, seq_len)


@contextmanager
def _validating(what: str, *, held_out: bool) -> Iterator[None]:
    """An error of a text says which text it is."""
    try:
        yield
    except (ConfigError, DataError) as error:
        more = "increase data.valid, so that more documents are held out; or name validation files"
        hint = f"{more}; or {error.hint}" if held_out else error.hint
        raise type(error)(f"data.valid: {what}: {error.message}", hint) from error


# --- Examples, and the plan of the steps ---


def make_step(config: PretrainConfig, store: Corpus, prepared: Prepared, seq_len: int) -> Examples:
    """The objective over a store, or over the stores of a mixture, at one sequence length.

    Raises:
        DataError: The corpus gives no sequence.
    """
    if isinstance(store, MixedStore):
        from plmctl.training.data import mixture

        steps = [make_step(config, one, prepared, seq_len) for one in store.stores]
        return mixture(store.names, steps, store.weights, config.seed)
    objective = get_objective(config.objective.name)
    step: Examples = objective.make(config.objective, store, prepared.vocab, seq_len, config.seed)
    if not len(step):
        raise DataError(
            f"the corpus has {store.num_tokens:,} tokens: not one sequence of {seq_len}",
            "use more text, or a smaller train.phases[].seq_len",
        )
    return step


def make_plan(config: PretrainConfig, prepared: Prepared, accelerator: Accelerator) -> Plan:
    """The phases of a config, cut up for these processes."""
    from plmctl.training.data import Phase, Slicing, auto_micro_batch
    from plmctl.training.engine import compiles
    from plmctl.training.loop import Plan
    from plmctl.training.schedule import course, factor

    world, device = accelerator.num_processes, accelerator.device.type
    batch = config.train.batch_size
    ramp = config.train.batch_ramp
    smallest = batch if ramp is None else ramp.start
    if smallest < world:
        key = "train.batch_size" if ramp is None else "train.batch_ramp.start"
        raise ConfigError(f"{key}: {smallest} rows for {world} processes")
    sharded = config.launch.shards(world)
    compiled = compiles(config.compute, device, config.model.family, sharded=sharded)
    fixed = compiled and not shapes_vary(config)
    phases, steps = [], course(config.train)
    for phase, sizes in zip(config.train.phases, steps.sizes, strict=True):
        micro = auto_micro_batch(
            config.train.micro_batch_size, -(-batch // world), phase.seq_len, device
        )
        width = phase.seq_len if fixed else None
        slicing = Slicing(batch, micro, accelerator.process_index, world, sizes, width=width)
        step = make_step(config, prepared.train, prepared, phase.seq_len)
        phases.append(Phase(step, phase.steps, slicing))
    workers = config.compute.workers
    scale = factor(config.schedule, steps)
    return Plan(
        phases=tuple(phases),
        seed=config.seed,
        learning_rate=lambda step: config.optim.lr * scale(step),
        clip=config.optim.clip,
        log_every=config.log.every,
        validate_every=config.log.validate_every,
        workers=workers if isinstance(workers, int) else (2 if device == "cuda" else 0),
        **failure_handling(config),
    )


def shapes_vary(config: PretrainConfig) -> bool:
    """Whether micro-batches have other numbers of rows from step to step."""
    return bool(config.data.mixture) or config.train.batch_ramp is not None


# --- Training and validation ---


def _train(
    config: PretrainConfig,
    prepared: Prepared,
    valid: Examples | None,
    *,
    until: int | None,
    accept_gap: bool,
) -> tuple[dict[str, Any], PreTrainedModel | None]:
    """The figures of the last validation, and the model; None in all processes but the main one."""
    from plmctl.training import loop
    from plmctl.training.checkpoint import Checkpoints
    from plmctl.training.engine import make_accelerator, make_engine
    from plmctl.training.journal import Journal
    from plmctl.training.memory import fitted

    folder = Path(config.run)
    accelerator = make_accelerator(config.compute)
    accelerator.wait_for_everyone()  # until the main process has the run folder ready
    plan = replace(make_plan(config, prepared, accelerator), until=until)
    network, varying = make_network(config, prepared.vocab), shapes_vary(config)
    engine = make_engine(
        accelerator,
        network,
        config.optim,
        config.compute,
        varying=varying,
        sharded=config.launch.shards(accelerator.num_processes),
    )
    if network.compiled:
        say(COMPILE_NOTE)
    if accelerator.is_main_process:
        write_environment(folder, prepared.hashes)
    with Journal(
        folder,
        title=f"pretraining {config.model.family} ({config.objective.name})",
        total_steps=plan.steps,
        trackers=config.log.trackers,
        quiet=not accelerator.is_main_process,
        accept_gap=accept_gap,
    ) as journal:
        checkpoints = Checkpoints(folder / "checkpoints", retention(config.checkpoint))
        plan = fitted(engine, plan, journal, folder)
        validate = partial(_validate, engine, config, valid, plan)
        progress = loop.train(engine, plan, checkpoints, journal, validate)
        figures = {"steps": progress.step, "tokens": progress.tokens, **validate()}
        journal.event("finished", step=progress.step)
    if not accelerator.is_main_process:
        return figures, None
    model = _whole_model(engine, checkpoints, partial(make_network, config, prepared.vocab))
    return figures, model


def _validate(
    engine: Engine,
    config: PretrainConfig,
    valid: Examples | None,
    plan: Plan,
    *,
    stop: StopRequest | None = None,
) -> dict[str, float]:
    """The held-out text under the first epoch's masks, the same at every validation."""
    from plmctl.evaluation.scoring import score
    from plmctl.training.data import scoring_batches
    from plmctl.training.distributed import whole

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
    """The model of a run that is over; what processes have parts of is in the last checkpoint.

    Args:
        engine: As the run left it.
        checkpoints: Of the run.
        fresh: Makes the network anew.

    Raises:
        PlmError: The checkpoint was damaged meanwhile.
    """
    from plmctl.training.checkpoint import load_weights
    from plmctl.training.distributed import is_sharded

    model: Any = engine.trained().network
    if is_sharded(model):
        folder, damaged = checkpoints.newest()
        if folder is None or damaged:
            raise PlmError(
                f"{damaged[0] if damaged else 'no checkpoint'}: the weights cannot be read",
                "run the same command again: it goes on from the one before it",
            )
        model = fresh().model
        load_weights(folder, model)
    whole: PreTrainedModel = model
    return whole


# --- What a finished run leaves: results, model folder, samples and report ---


_SAMPLES = "eval/samples.json"

_REPORT = "report.html"


def _save(
    config: PretrainConfig,
    folder: Path,
    work: AtWork,
    model: Any,
    prepared: Prepared,
    figures: dict[str, Any],
) -> None:
    """Write the results, and the model folder unless it is there already."""
    from transformers import AutoTokenizer

    from plmctl.reporting.card import model_card
    from plmctl.run.folder import save_model

    write_results(folder, "valid", {"kind": "pretrain", "model": str(folder), "results": figures})
    has_samples = prepared.vocab.mask is not None or model.can_generate()
    work.promise(["model", "eval/valid.json", *([_SAMPLES] if has_samples else []), _REPORT])
    if not is_model(folder / "model"):
        tokenizer = AutoTokenizer.from_pretrained(config.tokenizer)
        save_model(folder, model, tokenizer, model_card(folder, type(model).__name__))


def _complete(
    config: PretrainConfig, folder: Path, work: AtWork, prepared: Prepared | None = None
) -> None:
    """Write what is missing of what follows the model: samples, then the report.

    Args:
        config: Of the run.
        folder: The run folder.
        work: Records that it is finished.
        prepared: The text; None: it is prepared if samples are missing.
    """
    from plmctl.reporting.report import write_report

    if _SAMPLES in work.status.missing(folder):
        prepared = prepared or prepare(config)
        held_out = stores_of(prepared.valid or prepared.train)[0]
        name = config.objective.name
        made = held_out_samples(str(folder / "model"), held_out, config.seed, name)
        write_results(folder, "samples", made)
    write_report([folder], folder / _REPORT)
    work.finish()


# --- Samples: held-out sentences that the model fills in or continues ---


_SAMPLE_COUNT = 6

_SENTENCES_TRIED = 100_000  # sentences, spread over the corpus

_SAMPLE_TOKENS = (8, 40)  # tokens of a sentence that reads well as a sample

_STRETCH = 160  # tokens in which there is surely a sentence

_READABLE = 30  # characters of one


def held_out_samples(folder: str, store: TokenStore, seed: int, objective: str) -> dict[str, Any]:
    """A few sentences of a store with a word masked, or their beginnings gone on with.

    An encoder-decoder is asked what its objective asks.

    Args:
        folder: The model folder.
        store: Held-out text.
        seed: Decides the sentences and the words.
        objective: What the model was trained with.
    """
    from transformers import AutoConfig

    tokenizer = load_tokenizer(folder)
    key = int(fold(seed, stream("samples")))
    spans = _sample_spans(store, tokenizer, key)
    if getattr(AutoConfig.from_pretrained(folder), "is_encoder_decoder", False):
        return _text_to_text_samples(folder, store, spans, key, objective)
    if tokenizer.mask_token is None:
        halves = [store.tokens(span[: len(span) // 2]).tolist() for span in spans]
        # The half may end within a character.
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
    folder: str, store: TokenStore, spans: list[Ints], key: int, objective: str
) -> dict[str, Any]:
    """Sentences with a sentinel for some words, shuffled ones, or beginnings."""
    vocab = Vocab.from_folder(folder)
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
    tokenizer = load_tokenizer(folder)
    items = [
        {**item, "answer": str(tokenizer.decode(hidden))}
        for item, hidden in zip(generate_answers(folder, inputs), answers, strict=True)
    ]
    return {"kind": kind if spans else "generation", "items": items}


def _some_words(store: TokenStore, span: Ints, key: int) -> tuple[int, int]:
    """Places [first, past) of whole words within a sentence, two tokens or more, not its first."""
    starts = np.flatnonzero(store.word_starts(span))
    after = starts[starts > 0]
    first = int(after[below(key, len(after))]) if len(after) else len(span) // 2
    ends = starts[starts >= first + 2]
    return first, int(ends[0]) if len(ends) else len(span)


def _whole_words(store: TokenStore, span: Ints) -> Ints:
    """Places within a sentence of words of one token, the first and the last left out."""
    starts = store.word_starts(span)
    return 1 + np.flatnonzero(starts[1:-1] & starts[2:])


def _sample_spans(store: TokenStore, tokenizer: Any, key: int) -> list[Ints]:
    """Token positions of a few sentences that read well."""
    looked_at = np.arange(0, store.num_sentences, max(1, store.num_sentences // _SENTENCES_TRIED))
    starts, ends = store.sentences[looked_at], store.sentences[looked_at + 1]
    sizes = ends - starts
    fitting = np.flatnonzero((sizes >= _SAMPLE_TOKENS[0]) & (sizes <= _SAMPLE_TOKENS[1]))
    if len(fitting):
        which = np.unique(fitting[below(fold(key, 0, np.arange(_SAMPLE_COUNT)), len(fitting))])
        return [np.arange(starts[s], ends[s]) for s in which]
    # The text is not cut into sentences: a sentence somewhere in each of some stretches of it.
    found = []
    for place in below(fold(key, 0, np.arange(_SAMPLE_COUNT)), max(1, store.num_tokens - _STRETCH)):
        window = np.arange(place, min(place + _STRETCH, store.num_tokens))
        if len(span := _sentence_in(store, tokenizer, window)) >= _SAMPLE_TOKENS[0]:
            found.append(span)
    return found


def _sentence_in(store: TokenStore, tokenizer: Any, window: Ints) -> Ints:
    """The tokens of the first whole sentence of a stretch, or of its beginning."""
    ids = store.tokens(window).tolist()
    text = str(tokenizer.decode(ids))
    spans = sentence_spans(text, choose_rule([text]))
    # What comes first is cut through, and so may be what comes last.
    start, end = next(((a, b) for a, b in spans[1:] if b - a >= _READABLE), (0, len(text)))
    lengths = [len(str(tokenizer.decode(ids[:count]))) for count in range(len(ids) + 1)]
    first, past = bisect_right(lengths, start) - 1, bisect_left(lengths, end)
    return window[first : min(past, first + _SAMPLE_TOKENS[1])]
