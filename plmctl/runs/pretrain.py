"""``plmctl pretrain``: corpus and tokenizer in, a Hugging Face model folder out."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl import families, objectives
from plmctl.config.pretrain import PretrainConfig
from plmctl.corpus.mixed import Corpus, MixedStore, stores_of
from plmctl.errors import ConfigError, DataError
from plmctl.runs import launch
from plmctl.runs.continuing import check_continued, dropout_of, new_ids
from plmctl.runs.finetune import check_model
from plmctl.runs.folder import (
    AtWork,
    check_inputs,
    check_run,
    is_finished,
    is_trained,
    open_run,
    start_processes,
    write_environment,
)
from plmctl.runs.outline import begin, check_lengths, check_network, fresh_model, outputs
from plmctl.runs.prepare import Prepared, prepare
from plmctl.runs.pretrained import complete, save, whole_model
from plmctl.runs.safety import retention, safety
from plmctl.runs.say import COMPILES, say, show
from plmctl.runs.word_starts import check_text
from plmctl.shaping.keys import fold, stream
from plmctl.tokenization.vocab import Vocab

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    from plmctl.modeling.network import Network
    from plmctl.training.data import Step
    from plmctl.training.engine import Engine
    from plmctl.training.loop import Plan
    from plmctl.training.stop import StopRequest


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
    if not fresh and is_finished(folder):
        say(f"{folder} is finished: its model is in {folder / 'model'}")
        return
    if not fresh and is_trained(folder):
        say(f"{folder} is trained: what follows the training is completed")
        if launch.is_main():
            with AtWork(folder) as work:
                complete(config, folder, work)
        found = json.loads((folder / "eval" / "valid.json").read_text(encoding="utf-8"))
        figures = found["results"]
    else:
        figures = _run(config, fresh=fresh, until=until, accept_gap=accept_gap)
    from plmctl.reporting.tables import figures_table

    show(figures, [figures_table(f"pretrained {folder}", figures)], as_json=as_json)


def _run(
    config: PretrainConfig, *, fresh: bool, until: int | None, accept_gap: bool
) -> dict[str, Any]:
    """Everything from the text to the report; the figures of the last validation."""
    folder = Path(config.run)
    check_network(config)
    prepared = prepare(config)
    check(config, prepared)
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
            save(config, folder, work, model, prepared, figures)
            complete(config, folder, work, prepared)
    return figures


def check(config: PretrainConfig, prepared: Prepared) -> None:
    """Refuse what cannot train, before a network is built.

    Raises:
        ConfigError: A sequence longer than the network has positions, a tokenizer without what the
            objective needs, or whole words asked for where the text has none.
        DataError: A corpus that gives no sequence.
    """
    check_lengths(config)
    if config.model.init_from is not None:
        from plmctl.modeling.auto import config_of

        check_model(config.model.init_from)
        loaded = config_of(config.model.init_from)
        check_continued(config, loaded, outputs(config, prepared.vocab))
    for phase in config.train.phases:
        for store in stores_of(prepared.train):
            check_text(config.objective, store, phase.seq_len)
        step = make_step(config, prepared.train, prepared, phase.seq_len)
        _check_rows(config, step)


def validation_step(config: PretrainConfig, prepared: Prepared) -> "Step | None":
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


def _check_rows(config: PretrainConfig, step: "Step") -> None:
    from plmctl.training.data import streamed

    if streamed(step) and config.train.batch_ramp is not None:
        raise ConfigError(
            f"train.batch_ramp: the rows of {config.objective.name} are streams that go on from "
            "step to step, so that their number stays the same",
            "leave it out",
        )
    if streamed(step) and len(step) < config.train.batch_size:
        raise DataError(
            f"train.batch_size: {config.train.batch_size:,} streams, but the corpus has "
            f"{len(step):,} windows",
            "lower it, or use more text",
        )


def make_step(config: PretrainConfig, store: Corpus, prepared: Prepared, seq_len: int) -> "Step":
    """The objective over a store, or over the stores of a mixture, at one sequence length.

    Raises:
        DataError: The corpus gives no sequence.
    """
    if isinstance(store, MixedStore):
        from plmctl.training.data import mixture

        steps = [make_step(config, one, prepared, seq_len) for one in store.stores]
        return mixture(store.names, steps, store.weights, config.seed)
    objective = objectives.get(config.objective.name)
    step: Step = objective.make(config.objective, store, prepared.vocab, seq_len, config.seed)
    if not len(step):
        raise DataError(
            f"the corpus has {store.num_tokens:,} tokens: not one sequence of {seq_len}",
            "use more text, or a smaller train.phases[].seq_len",
        )
    return step


def make_network(
    config: PretrainConfig, vocab: Vocab, new_heads: Callable[[str], None] = say
) -> "Network":
    """The family's network with fresh weights, or the pretrained one that ``init_from`` names.

    Args:
        config: The run's.
        vocab: Of its tokenizer.
        new_heads: Called with heads that the folder of ``init_from`` lacks.
    """
    import torch

    from plmctl.modeling.extension import extend
    from plmctl.modeling.network import Network

    family = families.get(config.model.family)
    parts = objectives.get(config.objective.name).PARTS
    torch.manual_seed(int(fold(config.seed, stream("init"))) >> 1)
    if config.model.init_from is not None:
        model = family.load(
            config.model.init_from, parts, new_heads=new_heads, **dropout_of(config)
        )
        if config.model.extend_vocab is not None:
            extend(model, new_ids(config, model.config.vocab_size))
        return Network(model, family.forward)
    model = fresh_model(config, vocab)
    begin(config, model)
    return Network(model, family.forward)


def shapes_vary(config: PretrainConfig) -> bool:
    """Whether micro-batches have other numbers of rows from step to step."""
    return bool(config.data.mixture) or config.train.batch_ramp is not None


def make_plan(config: PretrainConfig, prepared: Prepared, accelerator: "Accelerator") -> "Plan":
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
        **safety(config),
    )


def _train(
    config: PretrainConfig,
    prepared: Prepared,
    valid: "Step | None",
    *,
    until: int | None,
    accept_gap: bool,
) -> tuple[dict[str, Any], "PreTrainedModel | None"]:
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
        say(COMPILES)
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
    model = whole_model(engine, checkpoints, partial(make_network, config, prepared.vocab))
    return figures, model


def _validate(
    engine: "Engine",
    config: PretrainConfig,
    valid: "Step | None",
    plan: "Plan",
    *,
    stop: "StopRequest | None" = None,
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
