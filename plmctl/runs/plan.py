"""``plmctl plan``: what a pretraining will cost, before it starts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl.errors import ConfigError, DataError, PlmError
from plmctl.formatting import duration, shown
from plmctl.reporting.tables import figures_table
from plmctl.runs.say import say, show
from plmctl.training.schedule import course

if TYPE_CHECKING:
    from plmctl.config.pretrain import PretrainConfig
    from plmctl.tokenization.vocab import Vocab
    from plmctl.training.cost import Sizes

_TRIALS = 4  # micro-batches, of which the first is not counted


def run(config: PretrainConfig, *, measure: bool, vocab_size: int | None, as_json: bool) -> None:
    """Say what a run will take: arithmetic, memory, disk, and time if it is measured.

    Args:
        config: Of a pretraining.
        measure: Time a few micro-batches here; the text is prepared for it.
        vocab_size: Ids of a tokenizer that is yet to be trained.
        as_json: Print one JSON document.

    Raises:
        ConfigError: A network or objective that cannot be built, or no tokenizer.
    """
    figures = costs(config, vocab_size)
    if measure:
        if vocab_size is not None:
            raise ConfigError("--measure needs the tokenizer itself", "leave --vocab-size out")
        figures |= _measured(config)
    show(figures, [figures_table(f"{config.run} will take", in_words(figures))], as_json=as_json)


def costs(config: PretrainConfig, vocab_size: int | None = None) -> dict[str, Any]:
    """The figures that need no trial; bytes, but for what says otherwise."""
    from plmctl.runs.use import would_use
    from plmctl.training import cost

    sizes, use = _sizes(config, vocab_size), would_use(config)
    steps, mixed = course(config.train), use["precision"] != "fp32"
    output, predicted = _target_tokens(config), _predicted(config)
    flops = 0.0
    for number, seq_len in enumerate(steps.seq_lens):
        tokens = steps.tokens[number + 1] - steps.tokens[number]
        flops += tokens * cost.flops_per_token(sizes, seq_len, output)
    micro = use["micro_batch_size"]
    rows = micro if isinstance(micro, list) else [micro] * len(steps.seq_lens)
    scores = use["device"] == "cpu" or use["attention"] == "eager"
    kept = cost.Kept(mixed, scores, use["checkpoint_activations"])
    work = max(
        cost.activations(sizes, size, length, targets=predicted, kept=kept)
        for size, length in zip(rows, steps.seq_lens, strict=True)
    )
    whole = cost.memory(sizes, config.optim.name, mixed=mixed)
    saved = 4.0 * sizes.parameters + whole["optimizer"]
    shares = use["processes"] if use["strategy"] == "fsdp" else 1
    parts = {name: size / shares for name, size in whole.items()}
    corpus = _corpus_tokens(config) if vocab_size is None else None
    return {
        "parameters": sizes.parameters,
        "steps": steps.steps,
        "tokens": steps.tokens[-1],
        "corpus_tokens": corpus,
        "passes": None if corpus is None else round(steps.tokens[-1] / corpus, 3),
        "flops": flops,
        "flops_per_token": flops / steps.tokens[-1],
        "memory": {**parts, "activations": work, "total": sum(parts.values()) + work},
        "checkpoint": saved,
        "disk": saved * _checkpoints(config) + 4.0 * sizes.parameters,
        "use": use,
    }


def in_words(figures: Mapping[str, Any]) -> dict[str, object]:
    """The figures as a table has them."""
    memory, corpus = figures["memory"], figures["corpus_tokens"]
    parts = ", ".join(f"{name} {_size(n)}" for name, n in memory.items() if name != "total")
    words = {
        "parameters": figures["parameters"],
        "steps": figures["steps"],
        "tokens": figures["tokens"],
        "passes over the text": "run `plmctl prepare` to know"
        if corpus is None
        else f"{shown(figures['passes'])} of {corpus:,} tokens",
        "FLOPs": f"{figures['flops']:.3g} ({figures['flops_per_token']:.3g} a token)",
        "memory, about": _size(memory["total"]) + _each(figures["use"]),
        "of it": parts,
        "a checkpoint": _size(figures["checkpoint"]),
        "disk in the end": _size(figures["disk"]),
        "device": _device(figures["use"]),
    }
    if "seconds" not in figures:
        return {**words, "time": "add --measure to try a few steps"}
    speed = figures["tokens"] / figures["seconds"]
    words["speed here"] = (
        f"{speed:,.0f} tokens/s, {figures['flops'] / figures['seconds']:.3g} FLOP/s"
    )
    return {**words, "time, about": duration(figures["seconds"])}


def _each(use: Mapping[str, Any]) -> str:
    return "" if use["processes"] == 1 else f" in each of {use['processes']} processes"


def _device(use: Mapping[str, Any]) -> str:
    compiled = ", compiled" if use["compile"] else ""
    twice = ", activations computed twice" if use["checkpoint_activations"] else ""
    return "{device}, {precision}, {processes} processes".format(**use) + compiled + twice


def _sizes(config: PretrainConfig, vocab_size: int | None) -> Sizes:
    import torch

    from plmctl.runs.outline import check_network, fresh_model, outputs
    from plmctl.runs.pretrain import make_network
    from plmctl.tokenization.vocab import Vocab
    from plmctl.training.cost import sizes_of

    if vocab_size is None:
        _need_tokenizer(config)
        check_network(config)
        vocab = Vocab.from_folder(config.tokenizer)
    else:
        vocab = _stand_in(vocab_size)
    if config.model.init_from is not None:
        return sizes_of(make_network(config, vocab).model, outputs(config, vocab))
    with torch.device("meta"):
        return sizes_of(fresh_model(config, vocab), outputs(config, vocab))


def _need_tokenizer(config: PretrainConfig) -> None:
    from plmctl.tokenization.encode import Encoder

    try:
        Encoder(config.tokenizer)
    except ConfigError as error:
        hint = "train it first, or say how many ids it will have: --vocab-size 30522"
        raise ConfigError(str(error).partition("\n")[0], hint) from error


def _stand_in(vocab_size: int) -> Vocab:
    from plmctl.tokenization.vocab import Vocab

    return Vocab(vocab_size, pad=0, unk=1, cls=2, sep=3, mask=4, bos=5, eos=5)


def _target_tokens(config: PretrainConfig) -> float:
    """Of an encoder and decoder: target tokens an input token."""
    density = getattr(config.objective, "density", None)
    if config.objective.name != "span_corruption" or density is None:
        return 1.0
    spans = density / float(getattr(config.objective, "mean_span", 3.0))
    return float((density + spans) / (1 - density + spans))


def _predicted(config: PretrainConfig) -> float:
    """Share of the input tokens at which the vocabulary is predicted."""
    masked = config.objective.name.startswith("mlm")
    return float(getattr(config.objective, "rate", 0.15)) if masked else _target_tokens(config)


def _corpus_tokens(config: PretrainConfig) -> int | None:
    """Tokens of the text, if it is prepared; of a mixture nobody can say how often it is read."""
    from plmctl.corpus.build import find
    from plmctl.runs.prepare import data_of
    from plmctl.tokenization.encode import Encoder

    if config.data.mixture:
        return None
    try:
        encoder = Encoder(config.tokenizer, config.data.words)
        stores = find(data_of(config), encoder, root=Path(config.data.store))
    except (DataError, ConfigError):
        return None
    return None if stores is None else int(stores.manifest["train"]["tokens"])


def _checkpoints(config: PretrainConfig) -> int:
    """Checkpoints on the disk at the end, one that is being written among them."""
    wanted, steps = config.checkpoint, config.train.steps
    made = steps // wanted.every
    apart = steps // wanted.keep_every if wanted.keep_every else 0
    return max(1, min(made, wanted.keep + 1 + apart + wanted.keep_best))


def _measured(config: PretrainConfig) -> dict[str, Any]:
    """Seconds of a step of each phase and of the run, from a few micro-batches here."""
    from plmctl.runs.launch import process_count
    from plmctl.runs.prepare import prepare
    from plmctl.runs.pretrain import check, make_network, make_plan, shapes_vary
    from plmctl.training.data import StepBatches
    from plmctl.training.engine import make_accelerator, make_engine
    from plmctl.training.loop import take_step

    prepared = prepare(config)
    check(config, prepared)
    accelerator = make_accelerator(config.compute)
    plan = make_plan(config, prepared, accelerator)
    network = make_network(config, prepared.vocab)
    varying = shapes_vary(config)
    engine = make_engine(accelerator, network, config.optim, config.compute, varying=varying)
    engine.network.train()
    processes, seconds = process_count(config.launch, config.compute.device), []
    for phase in plan.phases:
        last = max(0, phase.steps - 1)  # of a batch that grows, the full one
        batches = StepBatches(phase.step, phase.slicing, plan.seed)[last]
        say(f"trying {_TRIALS} micro-batches")
        times = []
        # A compiled network meets every shape once before its time counts.
        for number in range(-_TRIALS if network.compiled else 0, _TRIALS):
            began = time.perf_counter()
            one = [batches[number % len(batches)]]
            done = take_step(engine, phase.step, one, plan.clip, abs(number))
            if done.loss != done.loss:  # reading it waits for the device
                raise PlmError("a trial step gave a loss that is no number", "lower optim.lr")
            times.append(time.perf_counter() - began)
        del times[:-_TRIALS]
        seconds.append(statistics.median(times[1:]) * len(batches) / processes)
    full = sum(one * phase.steps for one, phase in zip(seconds, plan.phases, strict=True))
    whole = sum(p.seq_len * p.steps for p in config.train.phases) * config.train.batch_size
    return {"step_seconds": seconds, "seconds": full * course(config.train).tokens[-1] / whole}


def _size(count: float) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"
