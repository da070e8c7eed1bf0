"""Preflight: everything that can be refused is refused here, in one place, before text is read.

``preflight`` checks the config of a pretraining, ``finetune_preflight`` that of a finetuning; both
return what they opened and made on the way. What the processes of a run must agree on is in
``agreement.py``, what a run uses of this machine in ``machine.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from plmctl import registry
from plmctl.config.base import ModelConfig, ObjectiveConfig
from plmctl.config.sections import ComputeConfig
from plmctl.cpus import usable_cpus, usable_memory
from plmctl.errors import ConfigError
from plmctl.families.base import (
    Family,
    family_of,
    make_family,
    refuse_both_sides,
    refuse_longer,
)
from plmctl.folders import check_model
from plmctl.objectives.base import Objective, get_objective, make_objective
from plmctl.optimizers.base import get_optimizer
from plmctl.run import launch
from plmctl.run.configs import FinetuneConfig, PretrainConfig, RunConfig
from plmctl.run.costs import network_sizes, state_memory
from plmctl.run.display import say
from plmctl.run.folder import run_progress
from plmctl.run.prepared import Outline, Prepared, folder_tokenizer, fresh_model
from plmctl.tasks.base import ScoredConfig, Task, get_task, make_task
from plmctl.tokenization.encode import Encoder
from plmctl.tokenization.load import TOKEN_NAMES, Vocab, open_tokenizer
from plmctl.tokenization.words import check_mark

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


# --- Before PyTorch is imported ---


def check_start(config: PretrainConfig, *, fresh: bool) -> None:
    """Refuse a run folder, an objective or a tokenizer before PyTorch is imported.

    Nothing here is new: the pretraining checks all of it again, in all of its processes, so one of
    several leaves it to that.

    Raises:
        ConfigError, PlmError: As ``run_progress`` and ``preflight``.
    """
    alone = not launch.is_worker() and launch.place_of(config.launch).machines == 1
    if alone and run_progress(config, fresh=fresh) == "unfinished":
        check_parts(config)


def check_parts(config: PretrainConfig) -> None:
    """Refuse an objective, a tokenizer or a model to start from, before PyTorch is imported.

    Raises:
        ConfigError: As ``preflight``.
    """
    _check_objective(make_family(config.model), make_objective(config.objective))
    if config.model.init_from is not None:
        check_model(config.model.init_from)
    Encoder(config.tokenizer, config.data.words)


# --- Preflight of a pretraining: config in, what every later part of the run needs out ---


def preflight(config: PretrainConfig, no_tokenizer: str | None = None) -> Prepared:
    """Check a config against its tokenizer, its network and its folders; no text is read.

    The tokenizer is opened here and nowhere else in a run. The network is made on PyTorch's meta
    device, without weights.

    Args:
        no_tokenizer: What to do if the tokenizer cannot be opened; None: its own hint.

    Raises:
        ConfigError: Tokenizer, network and objective do not fit each other, or do not fit the
            folder that the run starts from.
        DataError: Weights to start from, or a teacher's, are incomplete.
    """
    try:
        encoder = Encoder(config.tokenizer, config.data.words)
    except ConfigError as error:
        raise ConfigError(error.message, no_tokenizer or error.hint) from error
    tokenizer = open_tokenizer(config.tokenizer)
    if config.data.words == "marked":
        check_mark(config.data.word_mark, tokenizer.all_special_tokens)
    outline = check_network(config, Vocab.of(tokenizer))
    if config.model.init_from is not None:
        _check_folder(outline, tokenizer)
    longest = max(phase.seq_len for phase in config.train.phases)
    outline.objective.check(tokenizer, outline.network, longest)
    if (teacher := outline.objective.teacher()) is not None:
        outline.family.check_teacher(outline.network, teacher)
    return Prepared(**vars(outline), encoder=encoder, tokenizer=tokenizer)


def stand_in(vocab_size: int) -> Vocab:
    """All special ids, for a tokenizer that is not trained yet."""
    return Vocab(vocab_size, pad=0, unk=1, cls=2, sep=3, mask=4, bos=5, eos=5, sentinels=(5,))


def check_network(config: PretrainConfig, vocab: Vocab) -> Outline:
    """Check that family, objective and special tokens fit, and bind them.

    Args:
        vocab: The vocabulary of the tokenizer, or ``stand_in`` for one that is not trained yet.

    Raises:
        ConfigError: The family cannot build this network, has no heads for the objective, or the
            network does not support what the config requires of it; the tokenizer lacks a token.
    """
    family, objective = make_family(config.model), make_objective(config.objective)
    _check_objective(family, objective)
    if objective.keeps_texts_apart and not family.KEEPS_TEXTS_APART:
        raise ConfigError(
            f"objective: the texts of a row would see each other in the family {family.name}",
            "use clm with `attention: across`, or span_corruption",
        )
    _check_tokens(config, family, vocab)
    _check_numbers(config.model)
    import torch

    longest = max(phase.seq_len for phase in config.train.phases)
    try:
        with torch.device("meta"):
            empty = fresh_model(family, objective, vocab)
        network = empty.config
        if family.IS_TRIED and not (config.model.init_from or launch.is_worker()):
            _try_out(family, objective, vocab, empty.num_parameters())
    except ValueError as error:
        raise ConfigError(f"model: {error}") from error
    positions = family.positions(network)
    if longest > positions:
        raise ConfigError(
            f"train.phases: seq_len {longest} is longer than the network's {positions} positions",
            "shorten the sequences, or increase the number of positions under `model`",
        )
    if config.model.init_from is not None:
        network = _config_of_folder(family, config.model.init_from, network.model_type)
    _check_sharded(config, family)
    _check_recording(config, family)
    _check_unpadded(config, network, None)
    _check_checkpointing(config.compute, family)
    if objective.BOTH_SIDES and config.compute.attention == "flash_attention_2":
        raise ConfigError(
            f"compute.attention: flash_attention_2 is not supported for {config.objective.name}, "
            "in which a decoder sees both sides",
            "use auto, which is as fast",
        )
    return Outline(config, family, objective, vocab, network)


_MOST_TRIED = 500_000_000  # parameters: larger ones are tried when the training builds them


def _try_out(
    family: Family, objective: Objective[ObjectiveConfig], vocab: Vocab, parameters: int
) -> None:
    """Build a network with weights, which its family tries and may refuse.

    Raises:
        ConfigError: As the family's ``build``.
    """
    import torch

    if parameters <= _MOST_TRIED:
        with torch.random.fork_rng(devices=[]):
            fresh_model(family, objective, vocab)


def _check_objective(family: Family, objective: Objective[ObjectiveConfig]) -> None:
    """Refuse an objective that the family has no heads for.

    Raises:
        ConfigError: With the objectives that the family supports.
    """
    if _fits(family, objective):
        return
    members = {one: get_objective(one) for one in registry.names("objectives")}
    fitting = [name for name, one in members.items() if one.LOSS_TERMS and _fits(family, one)]
    hint = f"objectives that fit it: {', '.join(fitting)}"
    name, needed, two = objective.config.name, objective.LOSS_TERMS, objective.ENCODER_DECODER
    if not set(needed) <= set(family.HEADS):
        raise ConfigError(
            f"objective.name: {name} needs heads for {' and '.join(needed)}; "
            f"the family {family.name} has {' and '.join(family.HEADS)}",
            hint,
        )
    if two != family.ENCODER_DECODER:
        stacks = "one stack of layers", "an encoder and a decoder"
        raise ConfigError(
            f"objective.name: {name} needs {stacks[two]}; "
            f"the family {family.name} has {stacks[not two]}",
            hint,
        )
    raise ConfigError(
        f"objective.name: {name} needs a decoder that can see both sides of each position; the "
        f"family {family.name} cannot",
        hint,
    )


def _fits(
    family: Family, objective: Objective[ObjectiveConfig] | type[Objective[ObjectiveConfig]]
) -> bool:
    return family.fits(
        objective.LOSS_TERMS,
        encoder_decoder=objective.ENCODER_DECODER,
        both_sides=objective.BOTH_SIDES,
    )


_MOST_UNITS = 10**8


def _check_numbers(options: ModelConfig) -> None:
    """Refuse sizes with which not even the shapes of the weights can be computed in a minute.

    Raises:
        ConfigError: With the bound.
    """
    from plmctl.models.load import MOST_LAYERS

    for name, value in options:
        most = MOST_LAYERS if "layer" in name else _MOST_UNITS
        if isinstance(value, int) and value > most:
            raise ConfigError(f"model.{name}: {value:,}; at most {most:,} can be computed")


def check_machine(config: RunConfig, outline: Outline | None = None) -> None:
    """Refuse a run that this machine cannot hold, before anything is allocated.

    `plan` does not ask this: it may be about another machine.

    Args:
        outline: Of a pretraining; its weights are counted unless they are in a folder.

    Raises:
        ConfigError: With what is needed and what there is.
    """
    if isinstance(config, PretrainConfig):
        batches = zip(config.train.batch_sizes, config.train.phases, strict=True)
        most = max(batch * phase.seq_len for batch, phase in batches)
    else:
        most = config.train.batch_size * config.train.max_length
    ids = 8.0 * most
    _check_memory("train.batch_size: the ids of a step", ids, "use a smaller batch")
    if outline is not None and outline.config.model.init_from is None:
        _check_weights(outline)
    _check_processes(config)


def _check_processes(config: RunConfig) -> None:
    """Refuse more processes than this machine can run, or than a step has sequences."""
    cpus = usable_cpus()
    for key, wanted in (
        ("compute.workers", config.compute.workers),
        ("launch.processes", config.launch.processes),
    ):
        if isinstance(wanted, int) and wanted > _PROCESSES_PER_CPU * cpus:
            raise ConfigError(
                f"{key}: {wanted:,} processes, and this machine has {cpus} CPUs",
                f"use {_PROCESSES_PER_CPU * cpus} or fewer; auto is right for most runs",
            )
    key, smallest = "train.batch_size", config.train.batch_size
    if isinstance(config, PretrainConfig):
        smallest, ramp = min(config.train.batch_sizes), config.train.batch_ramp
        if ramp is not None:
            key, smallest = "train.batch_ramp.start", ramp.start
    processes = launch.world_size(config.launch, config.compute.device)
    if smallest < processes:
        raise ConfigError(
            f"{key}: {smallest} sequences for {processes} processes",
            f"use at most {smallest} processes (launch.processes, launch.machines), or increase it",
        )


_PROCESSES_PER_CPU = 16  # more only wait, and take memory


def _check_weights(outline: Outline) -> None:
    import torch

    config, sizes = outline.config, network_sizes(outline)
    state = state_memory(sizes, config.optim.name, mixed=False)
    device = config.compute.device
    if device == "cpu" or (device == "auto" and not torch.accelerator.is_available()):
        what, needed = "weights, gradients and optimizer", sum(state.values())
    else:  # every process makes the weights on the CPU first
        what, needed = "the weights", state["weights"]
    hint = "use a smaller size; `plmctl plan` shows what each takes"
    _check_memory(f"model: {what} of {sizes.parameters:,} parameters", needed, hint)


def _check_memory(what: str, needed: float, hint: str) -> None:
    memory = usable_memory()
    if needed > memory:
        raise ConfigError(
            f"{what} take {needed / 1e9:,.1f} GB, and this machine has {memory / 1e9:,.1f} GB", hint
        )


def _check_sharded(config: RunConfig, family: Family) -> None:
    """Refuse sharded weights for what needs whole ones, or more than one set of them.

    Raises:
        ConfigError: The family has no layers to shard; Muon, or the gradient scaler of fp16; texts
            that are written, with an old PyTorch; gathering in bf16 without them.
    """
    sharded, compute = config.launch.strategy == "fsdp", config.compute
    if compute.gather == "bf16" and not (sharded and compute.precision == "bf16"):
        raise ConfigError(
            "compute.gather: bf16 is for launch.strategy=fsdp and compute.precision=bf16",
            "set both, or leave it out",
        )
    if not sharded:
        return
    from plmctl.training.distributed import forgets_forwards

    writes = isinstance(config, FinetuneConfig) and get_task(config.task.name).WRITES
    if writes and not forgets_forwards():
        raise ConfigError(
            "launch.strategy: fsdp needs a newer PyTorch for tasks that generate text",
            "install PyTorch 2.13 or newer, or use ddp",
        )
    if not family.FSDP:
        raise ConfigError(f"launch.strategy: fsdp is not supported for {family.TITLE}", "use ddp")
    if not get_optimizer(name := config.optim.name).SHARDS:
        raise ConfigError(
            f"launch.strategy: fsdp is not supported with optim.name={name}, whose updates need "
            "whole matrices",
            "use another optimizer, or ddp",
        )
    if compute.precision == "fp16":
        raise ConfigError(
            "launch.strategy: fsdp is not supported in fp16", "use bf16 or fp32, or ddp"
        )


def shapes_vary(config: PretrainConfig) -> bool:
    """Whether the number of rows of a micro-batch changes from step to step."""
    return bool(config.data.mixture) or config.train.batch_ramp is not None


def _check_recording(config: RunConfig, family: Family) -> None:
    """Refuse to record the kernels of steps that differ, or of several processes.

    Raises:
        ConfigError: With what compiles them.
    """
    if config.compute.compile != "reduce-overhead":
        return
    hint = "use compute.compile=true, or layers"
    if launch.world_size(config.launch, config.compute.device) > 1:
        raise ConfigError("compute.compile: reduce-overhead is for one process", hint)
    if isinstance(config, FinetuneConfig):
        why = "the rows of a finetuning have many lengths"
    elif family.VARYING_SHAPES:
        why = f"those of {family.TITLE} differ"
    elif shapes_vary(config):
        cause = "train.batch_ramp" if config.train.batch_ramp is not None else "data.mixture"
        why = f"with {cause} they differ"
    else:
        return
    raise ConfigError(
        f"compute.compile: reduce-overhead needs batches of one size, and {why}", hint
    )


def _check_unpadded(config: RunConfig, network: PreTrainedConfig, dropout: float | None) -> None:
    """Refuse to leave padding out where PyTorch's kernel for it cannot be used.

    Args:
        dropout: Of attention, in place of the network's; None: the network's.

    Raises:
        ConfigError: With the reason.
    """
    if config.compute.attention != "unpadded":
        return
    import torch

    from plmctl.models.fast import has_unpadded_attention

    compute, hint = config.compute, "use compute.attention=auto"
    cuda = compute.device in ("auto", "cuda") and torch.cuda.is_available()
    of_network = (getattr(network, name, 0.0) for name in _ATTENTION_DROPOUTS)
    if not has_unpadded_attention(network):
        why = f"is not for a network of the type {network.model_type}"
    elif not cuda:
        why, hint = "needs a CUDA device", f"{hint}, which leaves padding out on a CPU"
    elif torch.cuda.get_device_capability() < (8, 0) or compute.precision in ("fp32", "tf32"):
        why = "needs bf16 or fp16 on an NVIDIA GPU since RTX 30 or A100"
    elif find_spec("torch.nn.attention.varlen") is None:
        why = "needs PyTorch 2.10 or newer"
    elif config.launch.strategy == "fsdp":
        why = "is not for launch.strategy=fsdp"
    elif any(of_network if dropout is None else (dropout,)):
        why, own = "has no dropout of attention", isinstance(config, FinetuneConfig)
        hint = f"{hint}, or set {'train.dropout' if own else 'that of model'} to 0"
    else:
        return
    raise ConfigError(f"compute.attention: unpadded {why}", hint)


_ATTENTION_DROPOUTS = ("attention_probs_dropout_prob", "attention_dropout")


def _check_checkpointing(compute: ComputeConfig, family: Family) -> None:
    """Refuse to recompute the activations of a network that does not support it.

    Raises:
        ConfigError: With the family.
    """
    if compute.checkpoint_activations and not family.RECOMPUTES:
        from plmctl.models.fast import no_checkpointing

        raise no_checkpointing(family.TITLE)


def _check_tokens(config: PretrainConfig, family: Family, vocab: Vocab) -> None:
    """Refuse a tokenizer without the special tokens of the objective.

    Raises:
        ConfigError: With the tokens that are missing.
    """
    needed = make_objective(config.objective).TOKENS
    missing = [TOKEN_NAMES[name] for name in needed if getattr(vocab, name) in (None, ())]
    if missing:
        raise ConfigError(
            f"tokenizer: {config.tokenizer} has no {', '.join(missing)}, which the objective "
            f"{config.objective.name} needs",
            f"train one with `algorithm: {family.TOKENIZER.ALGORITHM}` and a `family` that has it, "
            "such as the network's own",
        )


# --- Continued pretraining: does the folder fit the config? ---


def _config_of_folder(family: Family, source: str, model_type: str) -> PreTrainedConfig:
    """Transformers' config of the folder to start from.

    Raises:
        ConfigError: It is no model, of another architecture, or of another shape.
    """
    from plmctl.models.load import config_of

    check_model(source)
    loaded = config_of(source)
    if loaded.model_type != model_type:
        raise ConfigError(
            f"model.init_from: {source} is of type {loaded.model_type!r}, but the family "
            f"{family.name} is of type {model_type!r}",
            "set `model.family` to that of the folder",
        )
    _check_shape(family, loaded)
    return loaded


def _check_shape(family: Family, loaded: PreTrainedConfig) -> None:
    """Compare with the network that the config describes, if it sets any field of its shape."""
    import torch

    chosen, dropout = family.chosen_fields(), set(family.DROPOUT)
    if not chosen - dropout:
        return
    with torch.device("meta"):
        network = family.build(vocab_size=100, pad_id=0, loss_terms=family.HEADS)
    options = set(type(family.config).model_fields) - set(ModelConfig.model_fields)
    for name in sorted(options - dropout):
        if name not in chosen and "size" not in chosen:
            continue
        requested, there = getattr(network.config, name, None), getattr(loaded, name, None)
        if requested is not None and there is not None and requested != there:
            raise ConfigError(
                f"model: {family.config.init_from} has {name} {there}, and this config has "
                f"{requested}",
                "leave out the size and its fields: the folder decides them",
            )


def _check_folder(outline: Outline, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a folder with incomplete weights, or with another tokenizer than the run's.

    Args:
        outline: Of a run with ``model.init_from``.

    Raises:
        ConfigError: A token has another id; or there are more ids than the network has, without
            ``model.extend_vocab``.
        DataError: The weights are incomplete.
    """
    config, source = outline.config, str(outline.config.model.init_from)
    loaded, num_ids = outline.network, outline.outputs
    if num_ids > loaded.vocab_size and config.model.extend_vocab is None:
        raise ConfigError(
            f"{config.tokenizer} has {num_ids:,} ids, but the vocabulary of {source} has "
            f"{loaded.vocab_size:,}",
            "use the tokenizer that the model was made with; or, if yours extends it, set "
            "`model.extend_vocab: subtokens`",
        )
    before = folder_tokenizer(source)
    if before is not None:
        _check_ids(config, tokenizer.get_vocab(), before)
    else:
        say(
            f"{source} has no tokenizer: whether its ids are those of {config.tokenizer} is unknown"
        )
    if not launch.is_worker():  # its launcher has checked them already
        outline.family.load(source, outline.objective.LOSS_TERMS, new_heads=lambda heads: None)


def _check_ids(
    config: PretrainConfig, ids: Mapping[str, int], before: PreTrainedTokenizerBase
) -> None:
    for token, id_ in sorted(before.get_vocab().items(), key=lambda item: item[1]):
        if ids.get(token) != id_:
            now = f"as {ids[token]:,}" if token in ids else "not at all"
            raise ConfigError(
                f"tokenizer: {config.tokenizer} has {token!r} {now}, and the tokenizer of "
                f"{config.model.init_from} as {id_:,}",
                f"use `tokenizer: {config.model.init_from}`, or one that extends it "
                "(`plmctl train-tokenizer CONFIG --from FOLDER`)",
            )


# --- Preflight of a finetuning ---


@dataclass(frozen=True)
class PreparedFinetuning:
    """A finetuning whose config is known to be good, before its rows are read.

    Attributes:
        family: The family of the model that it starts from.
        task: Makes the examples, the network's head and the metrics.
        network: transformers' config of the model that it starts from.
        left_to_right: Whether a token sees none after it.
    """

    config: FinetuneConfig
    family: Family
    task: Task[ScoredConfig]
    tokenizer: PreTrainedTokenizerBase
    network: PreTrainedConfig
    left_to_right: bool

    @property
    def could_see_both_sides(self) -> bool:
        """Whether it may have been pretrained with both sides, which it is not to see now."""
        can = self.left_to_right and self.family.BOTH_SIDES and not self.task.WRITES
        return can and self.tokenizer.mask_token_id is not None


def finetune_preflight(config: FinetuneConfig) -> PreparedFinetuning:
    """Check a config against the model that it starts from; no row and no weight is read.

    The model's tokenizer is opened here and nowhere else in a run.

    Raises:
        ConfigError: The folder is not a model, the family has no head for the task, rows are longer
            than the network, or it has fewer layers than the config names.
        DataError: The folder's config.json or its tokenizer is damaged.
        PlmError: peft is not installed, and there is ``lora``.
    """
    check_model(config.model)
    from plmctl.models.load import config_of  # these import PyTorch
    from plmctl.models.parameters import check_layers, require_peft

    check_machine(config)
    network = config_of(config.model)
    family = family_of(network)
    _check_checkpointing(config.compute, family)
    _check_sharded(config, family)
    _check_recording(config, family)
    _check_unpadded(config, network, config.train.dropout)
    task = make_task(config.task)
    task.check(config.model, network)
    left_to_right = _reads_left_to_right(config, network)
    positions = task.positions(config.train.max_length)
    further = " and task.max_target_length" if positions > config.train.max_length else ""
    refuse_longer(config.model, positions, f"train.max_length{further}")
    check_layers(network, config.train.reinit_layers, config.train.freeze)
    if config.lora is not None:
        require_peft()
    tokenizer = task.tokenizer(config.model)
    return PreparedFinetuning(config, family, task, tokenizer, network, left_to_right)


def _reads_left_to_right(config: FinetuneConfig, network: PreTrainedConfig) -> bool:
    """Whether a token sees none after it.

    Raises:
        ConfigError: It is to see both sides, and its kind, its task or its kernel cannot.
    """
    from plmctl.models.decoder import sees_both_sides
    from plmctl.models.own_heads import encoder_config

    inner = encoder_config(network)
    family = family_of(inner)
    decoder = "lm" in family.HEADS and not family.ENCODER_DECODER
    if config.both_sides:
        refuse_both_sides(config.model, network)
    elif not decoder or not sees_both_sides(inner):
        return decoder
    if get_task(config.task.name).WRITES:
        raise ConfigError(
            f"task.name: {config.task.name} writes text from left to right, and "
            f"{config.model} sees both sides",
            "leave out both_sides, or name the pretrained model: a finetuned folder whose "
            "config.json has `is_causal: false` sees both sides",
        )
    if config.compute.attention == "flash_attention_2":
        raise ConfigError(
            "compute.attention: flash_attention_2 is not supported with both_sides",
            "use auto, which is as fast",
        )
    if not config.both_sides:
        say(f"{config.model} sees both sides of each token, as it was finetuned (is_causal: false)")
    return False
