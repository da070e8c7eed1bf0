"""Preflight: everything that can be refused is refused here, in one place, before text is read.

``preflight`` checks the config of a pretraining, ``finetune_preflight`` that of a finetuning; both
return what they opened and made on the way. What the processes of a run must agree on is in
``agreement.py``, what a run uses of this machine in ``machine.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plmctl import registry
from plmctl.config.base import ObjectiveConfig
from plmctl.config.sections import ComputeConfig
from plmctl.cpus import usable_cpus, usable_memory
from plmctl.errors import ConfigError
from plmctl.families.base import get_family
from plmctl.folders import check_model
from plmctl.objectives.base import Objective, get_objective, make_objective
from plmctl.run import launch
from plmctl.run.configs import FinetuneConfig, PretrainConfig, RunConfig
from plmctl.run.costs import network_sizes, state_memory
from plmctl.run.display import say
from plmctl.run.folder import run_progress
from plmctl.run.network import (
    NOT_OF_NETWORK,
    fields_set,
    folder_tokenizer,
    fresh_model,
)
from plmctl.tasks.base import ScoredConfig, Task, make_task
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
    _check_objective(config)
    if config.model.init_from is not None:
        check_model(config.model.init_from)
    Encoder(config.tokenizer, config.data.words)


# --- Preflight of a pretraining: config in, what every later part of the run needs out ---


@dataclass(frozen=True)
class Prepared:
    """A pretraining whose config is known to be good, before its text is read.

    Attributes:
        config: The config of the run.
        objective: What the network is trained on.
        encoder: Encodes text for token stores.
        tokenizer: The same tokenizer as transformers has it, exactly as it was saved.
        vocab: Its special ids and its size.
        network: transformers' config of the network.
    """

    config: PretrainConfig
    objective: Objective[ObjectiveConfig]
    encoder: Encoder
    tokenizer: PreTrainedTokenizerBase
    vocab: Vocab
    network: PreTrainedConfig


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
    vocab = Vocab.of(tokenizer)
    network = check_network(config, vocab)
    objective = make_objective(config.objective)
    if config.model.init_from is not None:
        _check_folder(config, network, tokenizer, objective.num_outputs(vocab.size))
    longest = max(phase.seq_len for phase in config.train.phases)
    objective.check(tokenizer, network, longest)
    return Prepared(config, objective, encoder, tokenizer, vocab, network)


def stand_in(vocab_size: int) -> Vocab:
    """All special ids, for a tokenizer that is not trained yet."""
    return Vocab(vocab_size, pad=0, unk=1, cls=2, sep=3, mask=4, bos=5, eos=5, sentinels=(5,))


def check_network(config: PretrainConfig, vocab: Vocab) -> PreTrainedConfig:
    """Check that family, objective and special tokens fit; return transformers' config.

    Args:
        vocab: The vocabulary of the tokenizer, or ``stand_in`` for one that is not trained yet.

    Raises:
        ConfigError: The family cannot build this network, has no heads for the objective, or the
            network does not support what the config requires of it; the tokenizer lacks a token.
    """
    _check_objective(config)
    _check_tokens(config, vocab)
    _check_numbers(config)
    import torch

    longest = max(phase.seq_len for phase in config.train.phases)
    positions = get_family(config.model.family).positions(config.model)
    if longest > positions:
        raise ConfigError(
            f"train.phases: seq_len {longest} is longer than the network's {positions} positions",
            "shorten the sequences, or increase the number of positions under `model`",
        )
    try:
        with torch.device("meta"):
            network = fresh_model(config, vocab).config
    except ValueError as error:
        raise ConfigError(f"model: {error}") from error
    if config.model.init_from is not None:
        network = _config_of_folder(config, config.model.init_from, network.model_type)
    _check_sharded(config, network.model_type)
    check_checkpointing(config.compute, network.model_type)
    return network


def _check_objective(config: PretrainConfig) -> None:
    """Refuse an objective that the family has no heads for.

    Raises:
        ConfigError: With the objectives that the family supports.
    """
    family, objective = config.model.family, config.objective.name
    member, heads = get_objective(objective), get_family(family).HEADS
    chosen = get_family(family)
    members = {name: get_objective(name) for name in registry.names("objectives")}
    fitting = [
        name
        for name, one in members.items()
        if chosen.fits(one.LOSS_TERMS, encoder_decoder=one.ENCODER_DECODER)
    ]
    if objective in fitting:
        return
    hint = f"objectives that fit it: {', '.join(fitting)}"
    if set(member.LOSS_TERMS) <= set(heads):
        stacks = "an encoder and a decoder", "one stack of layers"
        needs_two = member.ENCODER_DECODER
        raise ConfigError(
            f"objective.name: {objective} needs {stacks[not needs_two]}; "
            f"the family {family} has {stacks[needs_two]}",
            hint,
        )
    raise ConfigError(
        f"objective.name: {objective} needs heads for {' and '.join(member.LOSS_TERMS)}; "
        f"the family {family} has {' and '.join(heads)}",
        hint,
    )


_MOST_UNITS = 10**8


def _check_numbers(config: PretrainConfig) -> None:
    """Refuse sizes with which not even the shapes of the weights can be computed in a minute.

    Raises:
        ConfigError: With the bound.
    """
    from plmctl.models.load import MOST_LAYERS

    for name, value in config.model:
        most = MOST_LAYERS if "layer" in name else _MOST_UNITS
        if isinstance(value, int) and value > most:
            raise ConfigError(f"model.{name}: {value:,}; at most {most:,} can be computed")


def check_machine(config: RunConfig, vocab: Vocab | None = None) -> None:
    """Refuse a run that this machine cannot hold, before anything is allocated.

    `plan` does not ask this: it may be about another machine.

    Args:
        vocab: The vocabulary of its tokenizer; None: the weights are in a folder.

    Raises:
        ConfigError: With what is needed and what there is.
    """
    if isinstance(config, PretrainConfig):
        lengths = [phase.seq_len for phase in config.train.phases]
    else:
        lengths = [config.train.max_length]
    ids = 8.0 * config.train.batch_size * max(lengths)
    _check_memory("train.batch_size: the ids of a step", ids, "use a smaller batch")
    if isinstance(config, PretrainConfig) and config.model.init_from is None and vocab is not None:
        _check_weights(config, vocab)
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
    ramp = config.train.batch_ramp if isinstance(config, PretrainConfig) else None
    key = "train.batch_size" if ramp is None else "train.batch_ramp.start"
    smallest = config.train.batch_size if ramp is None else ramp.start
    processes = launch.world_size(config.launch, config.compute.device)
    if smallest < processes:
        raise ConfigError(
            f"{key}: {smallest} sequences for {processes} processes",
            f"use at most {smallest} processes (launch.processes, launch.machines), or increase it",
        )


_PROCESSES_PER_CPU = 16  # more only wait, and take memory


def _check_weights(config: PretrainConfig, vocab: Vocab) -> None:
    import torch

    sizes = network_sizes(config, vocab)
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


def _check_sharded(config: RunConfig, model_type: str) -> None:
    """Refuse sharded weights for what needs whole ones, or more than one set of them.

    Raises:
        ConfigError: ELMo, Muon, or the gradient scaler of fp16; texts that are written, with an old
            PyTorch.
    """
    if config.launch.strategy != "fsdp":
        return
    from plmctl.training.distributed import forgets_forwards

    writes = isinstance(config, FinetuneConfig) and config.task.name == "text_to_text"
    if writes and not forgets_forwards():
        raise ConfigError(
            "launch.strategy: fsdp needs a newer PyTorch for tasks that generate text",
            "install PyTorch 2.13 or newer, or use ddp",
        )
    if model_type == "elmo":
        raise ConfigError("launch.strategy: fsdp is not supported for ELMo", "use ddp")
    if config.optim.name == "muon":
        raise ConfigError(
            "launch.strategy: fsdp is not supported with optim.name=muon, whose updates need whole "
            "matrices",
            "use another optimizer, or ddp",
        )
    if config.compute.precision == "fp16":
        raise ConfigError(
            "launch.strategy: fsdp is not supported in fp16", "use bf16 or fp32, or ddp"
        )


def check_checkpointing(compute: ComputeConfig, model_type: str) -> None:
    """Refuse to recompute the activations of a network that does not support it.

    Raises:
        ConfigError: It is ELMo.
    """
    if compute.checkpoint_activations and model_type == "elmo":
        from plmctl.models.fast import no_checkpointing

        raise no_checkpointing("ELMo")


def _check_tokens(config: PretrainConfig, vocab: Vocab) -> None:
    """Refuse a tokenizer without the special tokens of the objective.

    Raises:
        ConfigError: With the tokens that are missing.
    """
    needed = make_objective(config.objective).TOKENS
    missing = [TOKEN_NAMES[name] for name in needed if getattr(vocab, name) in (None, ())]
    if missing:
        algorithm = get_family(config.model.family).TOKENIZER
        raise ConfigError(
            f"tokenizer: {config.tokenizer} has no {', '.join(missing)}, which the objective "
            f"{config.objective.name} needs",
            f"train one with `algorithm: {algorithm}` and a `family` that has it, such as the "
            "network's own",
        )


# --- Continued pretraining: does the folder fit the config? ---


def _config_of_folder(config: PretrainConfig, source: str, model_type: str) -> PreTrainedConfig:
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
            f"{config.model.family} is of type {model_type!r}",
            "set `model.family` to that of the folder",
        )
    _check_shape(config, loaded)
    return loaded


def _check_shape(config: PretrainConfig, loaded: PreTrainedConfig) -> None:
    """Compare with the network that the config describes, if it sets any field of its shape."""
    import torch

    family = get_family(config.model.family)
    dropout = set(family.DROPOUT)
    if not fields_set(config) - dropout:
        return
    with torch.device("meta"):
        network = family.build(config.model, vocab_size=100, pad_id=0, loss_terms=family.HEADS)
    for name in sorted(set(type(config.model).model_fields) - NOT_OF_NETWORK - dropout):
        if name not in fields_set(config) and "size" not in fields_set(config):
            continue
        requested, there = getattr(network.config, name, None), getattr(loaded, name, None)
        if requested is not None and there is not None and requested != there:
            raise ConfigError(
                f"model: {config.model.init_from} has {name} {there}, and this config has "
                f"{requested}",
                "leave out the size and its fields: the folder decides them",
            )


def _check_folder(
    config: PretrainConfig,
    loaded: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    num_ids: int,
) -> None:
    """Refuse a folder with incomplete weights, or with another tokenizer than the run's.

    Args:
        config: With ``model.init_from``.
        num_ids: Ids that the run's tokenizer has.

    Raises:
        ConfigError: A token has another id; or there are more ids than the network has, without
            ``model.extend_vocab``.
        DataError: The weights are incomplete.
    """
    source = str(config.model.init_from)
    if num_ids > loaded.vocab_size and config.model.extend_vocab is None:
        raise ConfigError(
            f"{config.tokenizer} has {num_ids:,} ids, but the vocabulary of {source} has "
            f"{loaded.vocab_size:,}",
            "use the tokenizer that the model was made with; or, if yours extends it, set "
            "`model.extend_vocab: subtokens`",
        )
    before = folder_tokenizer(config)
    if before is not None:
        _check_ids(config, tokenizer.get_vocab(), before)
    else:
        say(
            f"{source} has no tokenizer: whether its ids are those of {config.tokenizer} is unknown"
        )
    if not launch.is_worker():  # its launcher has checked them already
        terms = make_objective(config.objective).LOSS_TERMS
        get_family(config.model.family).load(source, terms, new_heads=lambda heads: None)


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
        config: The config of the run.
        task: Makes the examples, the network's head and the metrics.
        tokenizer: The model's, as the task uses it.
        network: transformers' config of the model that it starts from.
    """

    config: FinetuneConfig
    task: Task[ScoredConfig]
    tokenizer: PreTrainedTokenizerBase
    network: PreTrainedConfig


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
    from plmctl.models.load import config_of, refuse_longer  # these import PyTorch
    from plmctl.models.parameters import check_layers, require_peft

    check_machine(config)
    network = config_of(config.model)
    check_checkpointing(config.compute, network.model_type)
    _check_sharded(config, network.model_type)
    task = make_task(config.task)
    task.check(config.model, network)
    positions = task.positions(config.train.max_length)
    further = " and task.max_target_length" if positions > config.train.max_length else ""
    refuse_longer(config.model, positions, f"train.max_length{further}")
    check_layers(network, config.train.reinit_layers, config.train.freeze)
    if config.lora is not None:
        require_peft()
    return PreparedFinetuning(config, task, task.tokenizer(config.model), network)
