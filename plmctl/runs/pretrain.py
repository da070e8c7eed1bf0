"""``plmctl pretrain``: corpus and tokenizer in, a Hugging Face model folder out."""

from collections.abc import Callable
from contextlib import nullcontext
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
    check_inputs,
    check_run,
    locked,
    open_run,
    write_environment,
)
from plmctl.runs.outline import begin, check_network, fresh_model, outputs
from plmctl.runs.prepare import Prepared, prepare
from plmctl.runs.pretrained import finish, whole_model
from plmctl.runs.safety import retention, safety
from plmctl.runs.say import COMPILES, say, show
from plmctl.runs.word_starts import check_text
from plmctl.shaping.keys import fold, stream
from plmctl.tokenization.vocab import Vocab

if TYPE_CHECKING:
    from accelerate import Accelerator

    from plmctl.modeling.network import Network
    from plmctl.training.loop import Engine, Plan
    from plmctl.training.step import Step
    from plmctl.training.stop import StopRequest


def run(config: PretrainConfig, *, fresh: bool, as_json: bool, until: int | None = None) -> None:
    """Pretrain, or go on with a run that was cut short; a finished run is left alone.

    Args:
        config: What is trained.
        fresh: Move a run folder that is there aside.
        as_json: Print the result as JSON.
        until: Save and stop after this step.
    """
    folder = Path(config.run)
    check_run(config, config.run, fresh=fresh)
    if (folder / "model").is_dir() and not fresh:
        say(f"{folder} is finished: its model is in {folder / 'model'}")
        return
    check_network(config)
    prepared = prepare(config)
    check(config, prepared)
    if not fresh:
        check_inputs(folder, prepared.hashes)
    if launch.is_main():
        open_run(config, config.run, fresh=fresh)
    processes = launch.process_count(config.launch, config.compute.device)
    if processes > 1 and not launch.is_worker():
        raise SystemExit(launch.start("pretrain", folder / "config.yaml", processes, until))
    with locked(folder) if launch.is_main() else nullcontext():
        figures = _train(config, folder, prepared, until)
    from plmctl.reporting.tables import figures_table

    show(figures, [figures_table(f"pretrained {folder}", figures)], as_json=as_json)


def check(config: PretrainConfig, prepared: Prepared) -> None:
    """Refuse what cannot train, before a network is built.

    Raises:
        ConfigError: A sequence longer than the network has positions, a tokenizer without what the
            objective needs, or whole words asked for where the text has none.
        DataError: A corpus that gives no sequence.
    """
    longest = max(phase.seq_len for phase in config.train.phases)
    positions = families.get(config.model.family).positions(config.model)
    if longest > positions:
        raise ConfigError(
            f"train.phases: seq_len {longest} is longer than the network's {positions} positions",
            "shorten the sequences, or raise the number of positions under `model`",
        )
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


def _check_rows(config: PretrainConfig, step: "Step") -> None:
    from plmctl.training.step import streamed

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
        from plmctl.training.mixture import mixture

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
        new_heads: Is told of heads that the folder of ``init_from`` lacks.
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
    from plmctl.training.clock import factor
    from plmctl.training.compiling import compiles
    from plmctl.training.loader import Slicing, auto_micro_batch
    from plmctl.training.loop import Phase, Plan
    from plmctl.training.ramp import course

    world, device = accelerator.num_processes, accelerator.device.type
    batch = config.train.batch_size
    ramp = config.train.batch_ramp
    smallest = batch if ramp is None else ramp.start
    if smallest < world:
        key = "train.batch_size" if ramp is None else "train.batch_ramp.start"
        raise ConfigError(f"{key}: {smallest} rows for {world} processes")
    sharded = config.launch.shards(world)
    compiled = compiles(config.compute, device, config.model.family, sharded=sharded)
    fixed, lists = compiled and not shapes_vary(config), config.compute.attention == "varlen"
    phases, steps = [], course(config.train)
    for phase, sizes in zip(config.train.phases, steps.sizes, strict=True):
        micro = auto_micro_batch(
            config.train.micro_batch_size, -(-batch // world), phase.seq_len, device
        )
        width = phase.seq_len if fixed else None
        slicing = Slicing(
            batch, micro, accelerator.process_index, world, sizes, width=width, lists=lists
        )
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
    config: PretrainConfig, folder: Path, prepared: Prepared, until: int | None
) -> dict[str, Any]:
    from plmctl.training import loop
    from plmctl.training.checkpoint import Checkpoints
    from plmctl.training.engine import make_accelerator, make_engine
    from plmctl.training.fitting import fitted
    from plmctl.training.journal import Journal

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
    if prepared.valid is None and isinstance(config.data.valid, float):
        say(
            f"data.valid: no document is among the {config.data.valid:.3g} that are held out, so "
            "nothing is validated; raise it, or name a text of its own"
        )
    if accelerator.is_main_process:
        write_environment(folder, prepared.hashes)
    with Journal(
        folder,
        title=f"pretraining {config.model.family} ({config.objective.name})",
        total_steps=plan.steps,
        trackers=config.log.trackers,
        quiet=not accelerator.is_main_process,
    ) as journal:
        checkpoints = Checkpoints(folder / "checkpoints", retention(config.checkpoint))
        plan = fitted(engine, plan, journal, folder)
        validate = partial(_validate, engine, config, prepared, plan)
        progress = loop.train(engine, plan, checkpoints, journal, validate)
        figures = {"steps": progress.step, "tokens": progress.tokens, **validate()}
        journal.event("finished", step=progress.step)
    if accelerator.is_main_process:
        model = whole_model(engine, checkpoints, partial(make_network, config, prepared.vocab))
        finish(config, folder, model, prepared, figures)
    return figures


def _validate(
    engine: "Engine",
    config: PretrainConfig,
    prepared: Prepared,
    plan: "Plan",
    *,
    stop: "StopRequest | None" = None,
) -> dict[str, float]:
    """The held-out text under the first epoch's masks, the same at every validation."""
    from plmctl.evaluation.scoring import score
    from plmctl.training.loader import scoring_batches
    from plmctl.training.sharding import whole

    if prepared.valid is None:
        return {}
    phase = plan.phases[-1]
    step = make_step(config, prepared.valid, prepared, config.train.phases[-1].seq_len)
    batches = scoring_batches(step, phase.slicing, config.log.validate_samples)
    bare = engine.accelerator.unwrap_model(engine.network)
    with whole(bare):
        scores = score(engine.accelerator, bare, step, batches, stop)
    return {f"valid/{name}": value for name, value in scores.items()}
