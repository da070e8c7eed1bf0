"""``plmctl plan``: the cost of a pretraining, before it starts.

``run/costs.py`` counts parameters and FLOPs; here are memory, disk and time.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic import ValidationError
from rich.table import Table

from plmctl.commands.prepare import data_of, data_of_stores, prepare, root_of
from plmctl.config.sections import TrainConfig
from plmctl.config.units import Budget
from plmctl.corpus.build import find_stores
from plmctl.errors import ConfigError, DataError, PlmError
from plmctl.families.base import Family, Sizes
from plmctl.formatting import format_duration, format_value
from plmctl.metrics.scaling_law import BESIROGLU, effective_tokens
from plmctl.reporting.tables import metrics_table, rows_table
from plmctl.run.budget import Decision, decide, shares
from plmctl.run.configs import PretrainConfig
from plmctl.run.costs import network_sizes, phase_flops, state_memory
from plmctl.run.display import say, show_result
from plmctl.run.launch import world_size
from plmctl.run.machine import compute_of, resolve_compute
from plmctl.run.preflight import check_network, preflight, stand_in
from plmctl.run.prepared import Outline, Prepared, make_network
from plmctl.run.sample_costs import SampleCosts, log_steps
from plmctl.run.yardstick import WORTH_IT
from plmctl.training.schedule import course

if TYPE_CHECKING:
    pass

_TRIALS = 4  # micro-batches, of which the first is not counted


def run(
    config: PretrainConfig,
    *,
    measure: bool,
    vocab_size: int | None,
    as_json: bool,
    budget: str | None = None,
) -> None:
    """Print what a run will cost: arithmetic, memory, disk, and time if it is measured.

    Args:
        measure: Time a few micro-batches on this machine, for which the text is prepared.
        vocab_size: Ids of a tokenizer that is not trained yet.
        budget: Instead, what each size of the family can do within this budget.

    Raises:
        ConfigError: As ``preflight``.
    """
    outline: Outline
    if vocab_size is not None:
        if measure:
            raise ConfigError("--measure needs the tokenizer itself", "leave --vocab-size out")
        outline = check_network(config, stand_in(vocab_size))
    else:
        hint = "train it first, or set how many ids it will have: --vocab-size 30522"
        outline = preflight(config, no_tokenizer=hint)
    if budget is not None:
        _propose(outline, Budget.of(budget, "--budget"), measure=measure, as_json=as_json)
        return
    decision = _decision(outline, measure=measure)
    if decision is not None:
        outline = replace(outline, config=config.with_steps(decision.steps))
    result = costs(outline)
    if decision is not None:
        say(decision.message)
        result |= {"budget": decision.budget, "words": decision.words, "reason": decision.reason}
    if measure and isinstance(outline, Prepared):
        result |= measured(outline)
    table = metrics_table(f"{config.run} will cost", as_rows(result))
    show_result(result, [table], as_json=as_json)
    if not as_json:
        say(WORTH_IT)


def costs(outline: Outline) -> dict[str, Any]:
    """What can be computed without a trial; in bytes, unless the key says otherwise.

    Passes over the text are known of a ``Prepared`` outline, if the text is prepared.
    """
    config, sizes = outline.config, network_sizes(outline)
    use = resolve_compute(config, outline.family, outline.network)
    steps, mixed = course(config.train), use["precision"] != "fp32"
    # Share of the input tokens at which the vocabulary is predicted, and the length of a decoder's.
    predicted = outline.objective.targets_per_token()
    flops = 0.0
    for number, each in enumerate(phase_flops(outline)):
        flops += (steps.tokens[number + 1] - steps.tokens[number]) * each
    micro = use["micro_batch_size"]
    micros = micro if isinstance(micro, list) else [micro] * len(steps.seq_lens)
    # Fused kernels do not store attention scores; these grow with the square of the length.
    scores = use["device"] == "cpu" or use["attention"] == "eager"
    kept = KeptActivations(mixed, scores, use["checkpoint_activations"])
    activations = max(
        activation_memory(sizes, size, length, targets=predicted, kept=kept)
        for size, length in zip(micros, steps.seq_lens, strict=True)
    )
    whole = state_memory(sizes, config.optim.name, mixed=mixed)
    if config.train.average is not None:
        whole["average"] = 4.0 * sizes.parameters
    # A checkpoint has no gradients; FSDP shares all of the state, but not the activations.
    saved = 4.0 * sizes.parameters + whole["optimizer"] + whole.get("average", 0.0)
    shards = use["processes"] if use["strategy"] == "fsdp" else 1
    memory = {name: size / shards for name, size in whole.items()}
    corpus = _corpus_tokens(outline) if isinstance(outline, Prepared) else None
    return {
        "parameters": sizes.parameters,
        "steps": steps.steps,
        "tokens": steps.tokens[-1],
        "corpus_tokens": corpus,
        "passes": None if corpus is None else round(steps.tokens[-1] / corpus, 3),
        "flops": flops,
        "flops_per_token": flops / steps.tokens[-1],
        "memory": {
            **memory,
            "activations": activations,
            "total": sum(memory.values()) + activations,
        },
        "checkpoint": saved,
        "disk": saved * _num_checkpoints(config) + 4.0 * sizes.parameters,
        "use": use,
    }


def _corpus_tokens(prepared: Prepared) -> int | None:
    """Tokens of the text, if it is prepared. A mixture has no single number of passes: None."""
    config, encoder = prepared.config, prepared.encoder
    if config.data.mixture:
        return None
    try:
        stores = find_stores(data_of(config), encoder, root=root_of(config, config.data))
    except (DataError, ConfigError):
        return None
    return None if stores is None else int(stores.manifest["train"]["tokens"])


def _num_checkpoints(config: PretrainConfig) -> int:
    """Checkpoints on disk at the end, including the one that is being written."""
    keep, steps = config.checkpoint, config.train.steps
    kept_apart = steps // keep.keep_every if keep.keep_every else 0
    at = len(log_steps(steps)) if isinstance(keep.at, str) else len(keep.at)
    return max(1, at + min(steps // keep.every, keep.keep + 1 + kept_apart + keep.keep_best))


# --- The steps of a budget, without training ---


_REST = 1.15  # seconds of passes for each of the layers: also embeddings, norms, batches

_MOST_TOKENS, _MOST_CPU_FLOPS = 4096, 2e10  # in a pass: on a slow CPU, a second

_WIDEST = 1024  # hidden units of the layer that is timed: wider ones have about the same FLOP/s


def _decision(outline: Outline, *, measure: bool) -> Decision | None:
    """The steps of the config's budget: of its run, computed, or estimated; None without a budget.

    Raises:
        ConfigError: The budget is too small, or in words and there is no prepared text.
    """
    from plmctl.training.timing import Timing

    config, train = outline.config, outline.config.train
    if train.budget is None:
        return None
    if (known := Decision.read(Path(config.run), train)) is not None:
        return known
    lengths = tuple(phase.seq_len for phase in train.phases)
    per_token = phase_flops(outline)
    flops = tuple(length * each for length, each in zip(lengths, per_token, strict=True))
    counts = SampleCosts(lengths, flops, None, "the text is not prepared")
    if isinstance(outline, Prepared) and config.plans_in_words:
        counts = _counted(outline, counts)
    if train.budget.unit != "seconds":
        return decide(train, config.schedule, counts)
    if measure and isinstance(outline, Prepared):
        # Any number of steps will do: those that are timed do not depend on it.
        trial = config.with_steps([1] * len(lengths))
        seconds, source = measured(replace(outline, config=trial))["step_seconds"], "measured"
    else:
        seconds = _estimated(outline, per_token)
        source = "estimated from one layer and the output layer, timed here"
    # A sample of validation needs the forward pass alone, about a third of a step's time for it.
    samples = max(each / batch for each, batch in zip(seconds, train.batch_sizes, strict=True))
    validation = (config.log.validate_samples or 2000) * samples / 3
    every = config.log.validate_every
    timing = Timing(
        tuple(seconds), 0.0, validation, 0.0, every, config.checkpoint.every, source=source
    )
    return decide(train, config.schedule, counts, timing)


def _counted(prepared: Prepared, costs_known: SampleCosts) -> SampleCosts:
    """The same with the words of the prepared text."""
    config = prepared.config
    for data in data_of_stores(config):
        if find_stores(data, prepared.encoder, root=root_of(config, data)) is None:
            return costs_known
    from plmctl.run.pretraining import sample_costs, training_examples

    text = prepare(config, prepared.encoder)
    return sample_costs(prepared, text, training_examples(prepared, text))


def _estimated(outline: Outline, per_token: Sequence[float]) -> list[float]:
    """Seconds of a step of each phase, without text and without the whole network.

    Its first layers and an output layer are timed, in the shapes and the precision of the run, and
    their updates; all layers and all rows are taken to need as long for a FLOP, all weights as
    long for an update. Products alone would not do: on a CPU with instructions for bf16 they are
    only a part of a step. Nor would passes alone: with few tokens, updates take as long (Muon).

    Args:
        per_token: FLOPs per token of each phase.
    """
    config, sizes = outline.config, network_sizes(outline)
    use = resolve_compute(config, outline.family, outline.network)
    share = outline.objective.targets_per_token()
    processes, micros = world_size(config.launch, config.compute.device), use["micro_batch_size"]
    seconds = []
    for number, flops in enumerate(per_token):
        length = config.train.phases[number].seq_len
        most = _MOST_TOKENS
        if use["device"] == "cpu":
            most = min(most, round(_MOST_CPU_FLOPS / (72 * min(_WIDEST, sizes.width) ** 2)))
        micro = micros[number] if isinstance(micros, list) else micros
        rows = max(1, min(micro, most // length))
        predicted = 6.0 * sizes.output_width * sizes.outputs
        inside = flops - predicted * share
        predicted_here = max(1, round(share * rows * length))
        layer, output = _timed_layers(outline, use, rows, length, targets=predicted_here)
        each = inside * layer.flop + share * predicted * output.flop
        passes = config.train.batch_sizes[number] * length * each / processes
        table = sizes.outputs * sizes.output_width
        updates = (sizes.parameters - table) * layer.weight + table * output.weight
        seconds.append(_REST * passes + updates)
    return seconds


class _Times(NamedTuple):
    """Seconds for a FLOP, forward and backward, and for the update of a weight."""

    flop: float
    weight: float


def _timed_layers(
    outline: Outline, use: Mapping[str, Any], rows: int, length: int, *, targets: int
) -> tuple[_Times, _Times]:
    """The times of the network's own layers, the first of each stack, and of its output layer.

    Args:
        use: As ``resolve_compute`` gives it.
        rows: Rows of a micro-batch.
        length: Tokens of a row.
        targets: Tokens that are predicted in these rows.
    """
    import torch
    from torch import nn

    from plmctl.training.engine import make_optimizer
    from plmctl.training.timing import first_layers, time_passes

    optim, device = outline.config.optim, torch.device(use["device"])
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(use["precision"])
    narrow = replace(outline, family=_narrow(outline.family, network_sizes(outline).width))
    sizes = network_sizes(narrow)
    model = narrow.empty_model()
    everything = partial(narrow.family.run_layers, model, rows, length)
    layers, run_layers = first_layers(model, everything, device)
    outputs, width = min(sizes.outputs, 32_768), min(sizes.output_width, _WIDEST)
    with torch.device(device):
        hidden = torch.randn(min(targets, 1024), width, requires_grad=True)
        labels = torch.randint(outputs, (len(hidden),))
        table = nn.Embedding(outputs, width)  # as the networks have it, for the optimizer
    optimizer = make_optimizer(optim, nn.ModuleList([*layers, table]), fused=device.type == "cuda")

    def run_output() -> torch.Tensor:
        logits = nn.functional.linear(hidden, table.weight)
        return nn.functional.cross_entropy(logits.float(), labels)

    pairs = 12.0 * sizes.width * length * len(layers) if sizes.heads else 0.0
    layer_flops = rows * length * (6.0 * _count(layers) + pairs)
    output_flops = len(hidden) * 6.0 * _count(table)
    layer_pass, layer_update = time_passes(run_layers, optimizer, device, kind)
    output_pass, output_update = time_passes(run_output, optimizer, device, kind)
    return (
        _Times(layer_pass / layer_flops, layer_update / _count(layers)),
        _Times(output_pass / output_flops, output_update / _count(table)),
    )


def _narrow(family: Family, width: int) -> Family:
    """The family with ``_WIDEST`` hidden units, if a network has more and one field says so."""
    hidden, heads, feed_forward = family.WIDTH
    if not hidden or width <= _WIDEST or family.config.init_from is not None:
        return family
    others = {name: None for name in (heads, feed_forward) if name}
    return type(family)(family.config.model_copy(update={hidden: _WIDEST, **others}))


def _count(module: Any) -> int:
    return sum(weight.numel() for weight in module.parameters())


# --- What each size of a family can do within a budget ---


_MANY_EPOCHS = 4.0  # repeated text is nearly as good as new text up to here (arXiv:2305.16264)


def compare_sizes(
    outline: Outline,
    budget: Budget,
    *,
    measure: bool = False,
    corpus: int | None = None,
    sizes: Sequence[str] | None = None,
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """What each size of a family can do within a budget, and why others cannot be trained.

    Args:
        measure: Time a few micro-batches of each size.
        corpus: Tokens of the text; None: unknown.
        sizes: Some of the family's sizes; None: all.

    Returns:
        A row per size: ``size``, ``parameters``, ``steps``, ``tokens``, ``epochs``, ``flops``,
        ``memory`` in bytes, the predicted ``loss`` and the ``reason`` for the steps. And for each
        size that does not fit the reason.
    """
    config, train = outline.config, _within(outline.config.train, budget)
    rows, reasons = [], dict[str, str]()
    for size in outline.family.SIZES if sizes is None else sizes:
        try:
            # A size decides some fields; the other options stay.
            decides = {"size", *outline.family.SIZE_FIELDS, *outline.family.WIDTH}
            kept = {name: value for name, value in outline.family.config if name not in decides}
            model = type(outline.family.config).model_validate({**kept, "size": size})
        except ValidationError:  # T5 and T5 1.1 have different sizes
            continue
        sized = config.model_copy(update={"model": model, "train": train})
        try:
            other = check_network(sized, outline.vocab)
            # A run in this folder is of another config.
            apart = sized.model_copy(update={"run": str(Path(config.run) / f".{size}")})
            own = replace(outline, **{**vars(other), "config": apart})
            decision = _decision(own, measure=measure)
        except ConfigError as error:
            reasons[size] = error.message
            continue
        assert decision is not None
        result = costs(replace(other, config=sized.with_steps(decision.steps)))
        effective = effective_tokens(decision.tokens, corpus or math.inf)
        weights = np.array(result["parameters"])
        rows.append(
            {
                "size": size,
                "parameters": result["parameters"],
                "steps": sum(decision.steps),
                "tokens": decision.tokens,
                "epochs": None if corpus is None else round(decision.tokens / corpus, 2),
                "flops": decision.flops,
                "memory": result["memory"]["total"],
                "loss": round(float(BESIROGLU.loss(weights, np.array(effective))), 4),
                "reason": decision.reason,
            }
        )
    return rows, reasons


def _propose(outline: Outline, budget: Budget, *, measure: bool, as_json: bool) -> None:
    """Print a row for each size of the family, and the overrides of the best one.

    Raises:
        ConfigError: The run continues from a folder, or no size fits the budget.
    """
    if outline.config.model.init_from is not None:
        raise ConfigError("--budget proposes a size, and model.init_from has one", "leave one out")
    train, family = _within(outline.config.train, budget), outline.family.name
    corpus = _corpus_tokens(outline) if isinstance(outline, Prepared) else None
    rows, reasons = compare_sizes(outline, budget, measure=measure, corpus=corpus)
    for size, reason in reasons.items():
        say(f"{size}: {reason}")
    if not rows:
        raise ConfigError(f"--budget {budget}: no size of {family} fits it")
    best = min(rows, key=lambda row: row["loss"])
    overrides = _overrides(train, str(best["size"]))
    document = {"budget": str(budget.root), "sizes": rows, "proposed": best["size"]}
    table = _sizes_table(f"{family} within {budget}", rows, best)
    show_result({**document, "overrides": overrides}, [table], as_json=as_json)
    for note in _notes_on(best, corpus):
        say(note)
    say("copy: " + " ".join(f'"{one}"' if " " in one else one for one in overrides))


def _overrides(train: TrainConfig, size: str) -> list[str]:
    """What a user adds to a command for a size within the budget of ``train``."""
    assert train.budget is not None
    phases = ", ".join(
        f"{{seq_len: {phase.seq_len}, share: {share:.6g}}}"
        for phase, share in zip(train.phases, shares(train), strict=True)
    )
    return [
        f"model.size={size}",
        f"train.budget={train.budget.written}",
        f"train.phases=[{phases}]",
    ]


def _sizes_table(title: str, rows: Sequence[dict[str, Any]], best: dict[str, Any]) -> Table:
    """A row for each size; the last column marks the best."""
    columns = ("size", "weights", "steps", "tokens", "epochs", "FLOPs", "memory", "loss", "")
    shown = []
    for row in rows:
        weights, tokens = _short(row["parameters"]), _short(row["tokens"])
        flops, memory = f"{row['flops']:.2g}", _format_bytes(row["memory"])
        mark = "best" if row is best else ""
        cells = (row["size"], weights, row["steps"], tokens, row["epochs"], flops, memory)
        shown.append((*cells, row["loss"], mark))
    return rows_table(title, columns, shown)


def _notes_on(best: Mapping[str, Any], corpus: int | None) -> Iterator[str]:
    """What the numbers of the best size mean, line by line; ``corpus``: tokens of the text."""
    yield f"steps: {best['reason']}"
    yield (
        "loss: computed, not measured: Hoffmann et al. (2022) with the constants of Besiroglu et "
        "al. (2024), of large causal models; only the order of the sizes means something"
    )
    if corpus is None:
        yield "epochs: unknown, so repeated text is not taken into account; run `plmctl prepare`"
    elif best["epochs"] > _MANY_EPOCHS:
        yield (
            f"epochs: the text has {corpus:,} tokens and is repeated {best['epochs']:g} times; the "
            "loss counts repeated text as worth less (Muennighoff et al., 2023): more text is "
            "better"
        )
    if best["tokens"] < best["parameters"]:
        yield (
            f"budget: {_short(best['tokens'])} tokens for {_short(best['parameters'])} weights is "
            f"very little; about 20 a weight ({_short(20 * best['parameters'])} tokens) are usual "
            "(Hoffmann et al., 2022)"
        )


def _short(count: float) -> str:
    """``1.53M``."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:g}"


def _within(train: TrainConfig, budget: Budget) -> TrainConfig:
    """The phases of a config with their shares of the steps, within a budget."""
    if train.budget is None:
        parts = [steps / train.steps for steps in train.phase_steps]
    else:
        parts = list(shares(train))
    phases = tuple(
        phase.model_copy(update={"steps": None, "share": part})
        for phase, part in zip(train.phases, parts, strict=True)
    )
    return train.model_copy(update={"budget": budget, "phases": phases})


# --- Measured time: a few micro-batches on this machine ---


def measured(prepared: Prepared) -> dict[str, Any]:
    """Seconds of a step of each phase and of the run, from a few micro-batches here."""
    from plmctl.run.preflight import shapes_vary
    from plmctl.run.pretraining import make_plan, training_examples
    from plmctl.training.data import StepBatches
    from plmctl.training.engine import make_accelerator, make_engine
    from plmctl.training.loop import take_step

    config = prepared.config
    text = prepare(config, prepared.encoder)
    examples = training_examples(prepared, text)
    accelerator = make_accelerator(compute_of(config, prepared.family))
    plan = make_plan(config, examples, accelerator)
    network = make_network(prepared, prepared.tokenizer)
    engine = make_engine(
        accelerator,
        network,
        config.optim,
        config.compute,
        varying=shapes_vary(config) or prepared.family.VARYING_SHAPES,
        compile_by_default=prepared.family.COMPILES,
    )
    engine.network.train()
    processes, seconds = world_size(config.launch, config.compute.device), []
    for phase in plan.phases:
        last = max(0, phase.steps - 1)  # of a batch that grows, the full one
        kinds = list(phase.examples.alternatives().values())  # of a mixture, in turn
        batches = [StepBatches(one, phase.slicing, plan.seed)[last] for one in kinds]
        say(f"timing {_TRIALS} micro-batches")
        times = []
        # A compiled network compiles every shape before its time counts.
        for number in range(-_TRIALS if network.compiled else 0, _TRIALS):
            began = time.perf_counter()
            kind = number % len(kinds)
            one = [batches[kind][number % len(batches[kind])]]
            done = take_step(engine, kinds[kind], one, plan.clip, abs(number))
            if done.loss != done.loss:  # reading it waits for the device
                raise PlmError("the loss of a trial step is not a number", "lower optim.lr")
            times.append(time.perf_counter() - began)
        del times[:-_TRIALS]
        seconds.append(statistics.median(times[1:]) * len(batches[0]) / processes)
    full = sum(one * phase.steps for one, phase in zip(seconds, plan.phases, strict=True))
    planned = zip(config.train.phases, config.train.batch_sizes, plan.phases, strict=True)
    whole = sum(batch * own.seq_len * phase.steps for own, batch, phase in planned)
    return {"step_seconds": seconds, "seconds": full * course(config.train).tokens[-1] / whole}


# --- The table ---


def as_rows(result: Mapping[str, Any]) -> dict[str, object]:
    """The costs as the table shows them."""
    memory, corpus = result["memory"], result["corpus_tokens"]
    parts = ", ".join(f"{name} {_format_bytes(n)}" for name, n in memory.items() if name != "total")
    seen = {"words": result["words"]} if result.get("words") else {}
    words = {
        "parameters": result["parameters"],
        "steps": result["steps"],
        "tokens": result["tokens"],
        **seen,
        "passes over the text": "unknown; run `plmctl prepare`"
        if corpus is None
        else f"{format_value(result['passes'])} of {corpus:,} tokens",
        "FLOPs": f"{result['flops']:.3g} ({result['flops_per_token']:.3g} per token)",
        "memory, about": _format_bytes(memory["total"]) + _each(result["use"]),
        "of which": parts,
        "per checkpoint": _format_bytes(result["checkpoint"]),
        "disk at the end": _format_bytes(result["disk"]),
        "device": _device(result["use"]),
    }
    if "seconds" not in result:
        return {**words, "time": "add --measure to try a few steps"}
    speed = result["tokens"] / result["seconds"]
    words["speed here"] = f"{speed:,.0f} tokens/s, {result['flops'] / result['seconds']:.3g} FLOP/s"
    return {**words, "time, about": format_duration(result["seconds"])}


def _each(use: Mapping[str, Any]) -> str:
    return "" if use["processes"] == 1 else f" in each of {use['processes']} processes"


def _device(use: Mapping[str, Any]) -> str:
    compiled = ", compiled" if use["compile"] else ""
    twice = ", activation checkpointing" if use["checkpoint_activations"] else ""
    processes = "1 process" if use["processes"] == 1 else f"{use['processes']} processes"
    return f"{use['device']}, {use['precision']}, {processes}{compiled}{twice}"


def _format_bytes(count: float) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"


# --- Memory of a network, from its sizes ---


@dataclass(frozen=True)
class KeptActivations:
    """Which activations the forward pass stores for the backward pass.

    Attributes:
        mixed: Products are in 16 bits.
        scores: Attention stores its scores, which fused kernels do not.
        inputs_only: Layers store only their inputs, and recompute the rest one at a time.
    """

    mixed: bool
    scores: bool
    inputs_only: bool = False


def activation_memory(
    sizes: Sizes, rows: int, seq_len: int, *, targets: float, kept: KeptActivations
) -> float:
    """Bytes that a forward pass stores for the backward pass; right within a factor of two.

    34 bytes per layer, unit and token in 16 bits, and 5 per head and pair of positions if attention
    scores are stored (Korthikanti et al. 2022, equation 1); 2 of those 34 are a layer's input;
    three copies of the logits.

    Args:
        rows: Sequences of a micro-batch.
        targets: Share of the tokens at which a head predicts.
    """
    unit = 1 if kept.mixed else 2
    pairs = 5 * sizes.heads * seq_len if kept.scores else 0
    layer = unit * (34 * sizes.width + pairs)
    layers = sizes.layers * layer
    if kept.inputs_only and sizes.layers:
        layers = sizes.layers * unit * 2 * sizes.width + layer
    return float(rows * seq_len * (layers + 3 * 4 * sizes.outputs * targets))
