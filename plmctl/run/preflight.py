"""Preflight: a run is refused for what is wrong with it before any text is read.

``check_network`` refuses a config whose network, objective and tokenizer do not fit each other;
``check_continued`` a folder that does not fit the config; ``check_text`` text that the objective
cannot mask. ``resolve_compute`` answers what a run would use of this machine, by the rules that the
run itself follows.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plmctl import registry
from plmctl.config.sections import CheckpointConfig, MaskingConfig
from plmctl.corpus.store import TokenStore
from plmctl.errors import ConfigError
from plmctl.examples.masking import count_exact
from plmctl.examples.spans import budget
from plmctl.families.base import family_fits, get_family
from plmctl.hub import refuse_unreachable
from plmctl.objectives.base import get_objective
from plmctl.run import launch
from plmctl.run.configs import FinetuneConfig, PretrainConfig
from plmctl.run.network import NOT_OF_NETWORK, fields_set, folder_tokenizer, fresh_model
from plmctl.tokenization.encode import Encoder
from plmctl.tokenization.load import TOKEN_NAMES, Vocab

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

    from plmctl.training.checkpoint import Retention


# --- Is it a model folder? ---


def check_model(model: str) -> None:
    """Refuse a folder that is no model before anything is read.

    Raises:
        ConfigError: The folder has no ``config.json``.
    """
    folder = Path(model)
    if folder.exists() and not (folder / "config.json").is_file():
        inside = folder / "model"
        hint = f"did you mean {inside}?" if inside.is_dir() else "pretrain one first"
        raise ConfigError(f"{folder}: no model here (no config.json)", hint)
    if not folder.exists() and (model.startswith((".", "/")) or model.count("/") > 1):
        raise ConfigError(f"{model}: no such folder", "pretrain a model first, or give a Hub id")
    if not folder.exists():
        refuse_unreachable(model, "pretrain a model first, or give a Hub id")


# --- The network, its objective and its tokenizer ---


def check_network(config: PretrainConfig) -> None:
    """Refuse a network that cannot be built or cannot be taught, before any text is read.

    Raises:
        ConfigError: From the family, the objective, or transformers.
        DataError: The weights to start from, or the teacher's, are not whole.
    """
    check_lengths(config)
    Encoder(config.tokenizer)  # refuses what is no tokenizer
    vocab = Vocab.from_folder(config.tokenizer)
    check_objective(config, vocab)
    outline = _network_outline(config, vocab)
    if config.launch.strategy == "fsdp":
        _check_sharded(config, outline.model_type)
    if config.compute.checkpoint_activations and outline.model_type == "elmo":
        from plmctl.models.fast.layers import no_checkpointing

        raise no_checkpointing("ELMo")
    check = getattr(get_objective(config.objective.name), "check", None)
    if check is not None:
        longest = max(phase.seq_len for phase in config.train.phases)
        check(config.objective, config.tokenizer, outline, longest)


def check_lengths(config: PretrainConfig) -> None:
    """Refuse sequences that are longer than the network has positions.

    Raises:
        ConfigError: With the longest of the phases.
    """
    longest = max(phase.seq_len for phase in config.train.phases)
    positions = get_family(config.model.family).positions(config.model)
    if longest > positions:
        raise ConfigError(
            f"train.phases: seq_len {longest} is longer than the network's {positions} positions",
            "shorten the sequences, or increase the number of positions under `model`",
        )


def _check_sharded(config: PretrainConfig, model_type: str) -> None:
    """Refuse what needs whole weights, or more than one set of them.

    Raises:
        ConfigError: ELMo, Muon, fp16's scaler, or a compiled network.
    """
    said = "launch.strategy: fsdp is not done"
    if model_type == "elmo":
        raise ConfigError(f"{said} for ELMo", "use ddp")
    if config.optim.name == "muon":
        raise ConfigError(
            f"{said} with optim.name=muon, whose every update needs whole matrices",
            "use another optimizer, or ddp",
        )
    if config.compute.precision == "fp16":
        raise ConfigError(f"{said} in fp16", "use bf16 or fp32, or ddp")
    if config.compute.compile is True:
        raise ConfigError(f"{said} for a compiled network", "use compute.compile=auto, or ddp")


def _network_outline(config: PretrainConfig, vocab: Vocab) -> PreTrainedConfig:
    import torch

    if config.model.init_from is not None:
        return _folder_outline(config, vocab, config.model.init_from)
    try:
        with torch.device("meta"):
            return fresh_model(config, vocab).config
    except ValueError as error:
        raise ConfigError(f"model: {error}") from error


def _folder_outline(config: PretrainConfig, vocab: Vocab, source: str) -> PreTrainedConfig:
    """The config of the folder to start from, whose weights are looked at before any text is."""
    import torch

    from plmctl.models.load import config_of

    check_model(source)
    found = config_of(source)
    with torch.device("meta"):
        asked = fresh_model(config, vocab).config.model_type
    if found.model_type != asked:
        raise ConfigError(
            f"model.init_from: {source} is of type {found.model_type!r}, but the family "
            f"{config.model.family} is of type {asked!r}",
            "set `model.family` to that of the folder",
        )
    if not launch.is_worker():  # whose launcher has looked already
        terms = get_objective(config.objective.name).LOSS_TERMS
        get_family(config.model.family).load(source, terms, new_heads=lambda told: None)
    return found


def check_objective(config: PretrainConfig, vocab: Vocab) -> None:
    """Refuse an objective that the family or the tokenizer cannot serve.

    Raises:
        ConfigError: The family has no heads for it, or the tokenizer lacks a token; with what fits.
    """
    family, objective = config.model.family, config.objective.name
    member, heads = get_objective(objective), get_family(family).HEADS
    fitting = [name for name in registry.names("objectives") if family_fits(family, name)]
    if objective not in fitting and set(member.LOSS_TERMS) <= set(heads):
        stacks = "an encoder and a decoder", "one stack of layers"
        ours = getattr(member, "ENCODER_DECODER", False)
        raise ConfigError(
            f"objective.name: {objective} needs {stacks[not ours]}; "
            f"the family {family} has {stacks[ours]}",
            f"objectives that fit it: {', '.join(fitting)}",
        )
    if objective not in fitting:
        raise ConfigError(
            f"objective.name: {objective} needs heads for {' and '.join(member.LOSS_TERMS)}; "
            f"the family {family} has {' and '.join(heads)}",
            f"objectives that fit it: {', '.join(fitting)}",
        )
    needed = getattr(member, "TOKENS", ())
    missing = [TOKEN_NAMES[name] for name in needed if getattr(vocab, name) in (None, ())]
    if missing:
        raise ConfigError(
            f"tokenizer: {config.tokenizer} has no {', '.join(missing)}, which the objective "
            f"{objective} needs",
            f"train one with `algorithm: {get_family(family).TOKENIZER}` and a `family` that has "
            "it, such as the network's own",
        )


# --- Continued pretraining: does the folder fit the config? ---


def check_continued(config: PretrainConfig, loaded: PreTrainedConfig, needed: int) -> None:
    """Refuse a folder whose network or tokenizer is another one than the config's.

    Args:
        config: With ``model.init_from``.
        loaded: The folder's config.
        needed: Ids that the run's tokenizer has.

    Raises:
        ConfigError: A field of the network that the folder has otherwise; a token with another id;
            more ids than the network has, and no ``model.extend_vocab``.
    """
    _check_shape(config, loaded)
    if needed > loaded.vocab_size and config.model.extend_vocab is None:
        raise ConfigError(
            f"{config.tokenizer} has {needed:,} ids, but the vocabulary of "
            f"{config.model.init_from} has {loaded.vocab_size:,}",
            "use the tokenizer that the model was made with; or, if yours extends it, set "
            "`model.extend_vocab: subtokens`",
        )
    before = folder_tokenizer(config)
    if before is not None:
        _check_ids(config, before)


def _check_shape(config: PretrainConfig, loaded: PreTrainedConfig) -> None:
    """Compare with the network that the config would build, if it says anything of its shape."""
    import torch

    dropout = set(get_family(config.model.family).DROPOUT)
    if not fields_set(config) - dropout:
        return
    family = get_family(config.model.family)
    with torch.device("meta"):
        made = family.build(config.model, vocab_size=100, pad_id=0, loss_terms=family.HEADS).config
    for name in sorted(set(type(config.model).model_fields) - NOT_OF_NETWORK - dropout):
        asked, there = getattr(made, name, None), getattr(loaded, name, None)
        if name not in fields_set(config) and "size" not in fields_set(config):
            continue
        if asked is not None and there is not None and asked != there:
            raise ConfigError(
                f"model: {config.model.init_from} has {name} {there}, and this config asks for "
                f"{asked}",
                "leave the size and its fields out: the folder says what they are",
            )


def _check_ids(config: PretrainConfig, before: PreTrainedTokenizerBase) -> None:
    from plmctl.tokenization.load import load_tokenizer

    ours = load_tokenizer(config.tokenizer).get_vocab()
    for token, id_ in sorted(before.get_vocab().items(), key=lambda item: item[1]):
        if ours.get(token) != id_:
            now = f"as {ours[token]:,}" if token in ours else "not at all"
            raise ConfigError(
                f"tokenizer: {config.tokenizer} has {token!r} {now}, and the tokenizer of "
                f"{config.model.init_from} as {id_:,}",
                f"use `tokenizer: {config.model.init_from}`, or one that extends it "
                "(`plmctl train-tokenizer CONFIG --from FOLDER`)",
            )


# --- Text: are its word starts good enough for whole-word masking? ---


_WINDOWS, _WINDOW = 64, 4096  # places that are looked at, and tokens of each


# English has 0.86 (8,000 ids) to 0.96 (ids learnt from little text), Chinese characters 0.995.
_ALL_START = 0.99


_TOO_LONG = 0.2

_SPANS_TOO_LONG = 0.5  # a span that is cut off still predicts something of a long word


def check_text(objective: Any, store: TokenStore, seq_len: int) -> None:
    """Refuse text whose words the objective cannot mask: ``check_words``, ``check_spans``."""
    if isinstance(objective, MaskingConfig):
        check_words(objective, store, seq_len)
    elif objective.name == "mlm+sbo":
        check_spans(objective.rate, store, seq_len)


def check_words(config: MaskingConfig, store: TokenStore, seq_len: int) -> None:
    """Refuse word starts with which the objective would not do what its config says.

    Args:
        config: What is masked.
        store: Where words start.
        seq_len: Length of a full row, which decides how long a word may be to be masked at all.

    Raises:
        ConfigError: Nearly every token is a word, so that whole words are nothing else than tokens;
            or much of the text stands in words that are longer than what a row has to predict, and
            would never be masked.
    """
    if config.unit == "token" or not store.num_tokens:
        return
    sizes = word_sizes(store)
    share = len(sizes) / sizes.sum()
    if config.unit == "word" and share > _ALL_START:
        raise ConfigError(
            f"objective.unit: word, but {share:.1%} of the tokens are words of their own, so that "
            "this would be the masking of tokens",
            "for Chinese set `data.words: jieba`, which finds words of several characters; "
            "otherwise use `unit: token`",
        )
    most = int(count_exact(np.array([seq_len]), config.rate, config.max_predictions)[0])
    long = sizes[sizes > most].sum() / sizes.sum()
    if long > _TOO_LONG:
        raise ConfigError(
            f"objective.unit: {config.unit}, but {long:.0%} of the tokens stand in words of more "
            f"than {most} tokens, which is all that a row of {seq_len} has to predict: they would "
            "never be masked",
            "text without spaces is one long word to this tokenizer; use `unit: token`, a larger "
            "vocabulary or, if words are only a little longer, longer rows",
        )


def check_spans(rate: float, store: TokenStore, seq_len: int) -> None:
    """Refuse word starts with which spans of words would be nothing but beginnings of words.

    Args:
        rate: Share of a row that is predicted.
        store: Where words start.
        seq_len: Length of a full row, two special tokens included.

    Raises:
        ConfigError: Most of the text stands in words that are longer than all that a row predicts.
    """
    if not store.num_tokens:
        return
    sizes = word_sizes(store)
    most = int(budget(np.array([seq_len - 2]), rate)[0])
    long = sizes[sizes > most].sum() / sizes.sum()
    if long > _SPANS_TOO_LONG:
        raise ConfigError(
            f"objective.name: mlm+sbo masks whole words, but {long:.0%} of the tokens stand in "
            f"words of more than {most} tokens, which is all that a row of {seq_len} predicts",
            "text without spaces is one long word to this tokenizer; use the objective 'mlm', a "
            "larger vocabulary, or longer rows",
        )


def word_sizes(store: TokenStore) -> NDArray[np.int64]:
    """Tokens of each word, in stretches of the store spread over all of it."""
    size = min(_WINDOW, store.num_tokens)
    count = min(_WINDOWS, store.num_tokens // size)
    first = np.linspace(0, store.num_tokens - size, count).astype(np.int64)
    starts = store.word_starts(first[:, None] + np.arange(size))
    starts[:, 0] = True  # a word that was cut counts as far as it is seen
    return np.diff(np.append(np.flatnonzero(starts), starts.size))


# --- What a run would use of this machine: device, kernels and processes ---


RunConfig = PretrainConfig | FinetuneConfig

_ANY_SIZE = 1000  # ids of a network that is built only to be asked


def resolve_compute(config: RunConfig) -> dict[str, Any]:
    """Device, kernels and processes of a run, by the rules that the run itself goes by.

    Raises:
        ConfigError: The config asks for what this machine has not.
    """
    import torch

    from plmctl.run.launch import process_count
    from plmctl.training.engine import compiles, for_finetuning, make_accelerator

    processes = process_count(config.launch, config.compute.device)
    accelerator = make_accelerator(config.compute)
    device = accelerator.device.type
    precision = {"no": "fp32"}.get(accelerator.mixed_precision, accelerator.mixed_precision)
    workers = config.compute.workers
    model_type = _model_type(config)
    pretraining = isinstance(config, PretrainConfig)
    compute = config.compute if pretraining else for_finetuning(config.compute)
    sharded = config.launch.shards(processes)
    compiled = compiles(compute, device, model_type, sharded=sharded)
    if config.compute.checkpoint_activations and model_type == "elmo":
        from plmctl.models.fast.layers import no_checkpointing

        raise no_checkpointing("ELMo")
    return {
        "device": device,
        "precision": precision,
        "compile": compiled,
        "checkpoint_activations": config.compute.checkpoint_activations,
        "attention": _attention_kernel(config, device, compiled=compiled),
        "threads": torch.get_num_threads(),
        "processes": processes,
        "strategy": "fsdp" if sharded else "ddp",
        "workers": workers if isinstance(workers, int) else (2 if device == "cuda" else 0),
        "micro_batch_size": _micro_batch_sizes(config, processes, device),
    }


def _attention_kernel(config: RunConfig, device: str, *, compiled: bool) -> str:
    """The kernel, by its name in transformers and in words."""
    from plmctl.models.fast.attention import CPU_ATTENTION

    name = config.compute.attention
    found = name if name != "auto" else _default_attention(config)
    if name == "auto" and found == "sdpa" and device == "cpu" and not compiled:
        return f"{CPU_ATTENTION} (with fast dropout)"
    return found


def _default_attention(config: RunConfig) -> str:
    if _model_type(config) == "elmo":
        return "none (LSTM)"
    if not isinstance(config, PretrainConfig) or config.model.init_from is not None:
        return "sdpa"
    return str(_network_config(config)._attn_implementation or "eager")


def _network_config(config: Any) -> PreTrainedConfig:
    import torch

    from plmctl.families.base import get_family
    from plmctl.models.load import config_of
    from plmctl.objectives.base import get_objective

    if config.model.init_from is not None:
        return config_of(config.model.init_from)
    family = get_family(config.model.family)
    terms = get_objective(config.objective.name).LOSS_TERMS
    with torch.device("meta"):
        return family.build(config.model, vocab_size=_ANY_SIZE, pad_id=0, loss_terms=terms).config


def _model_type(config: RunConfig) -> str:
    """Of a network that is loaded, transformers' name; else the family's, ELMo's being the same."""
    if isinstance(config, PretrainConfig) and config.model.init_from is None:
        return config.model.family
    from plmctl.models.load import config_of

    source = config.model.init_from if isinstance(config, PretrainConfig) else config.model
    check_model(str(source))
    return str(config_of(str(source)).model_type)


def _micro_batch_sizes(config: RunConfig, processes: int, device: str) -> int | list[int]:
    """Rows of a forward: of each phase, if they are not the same."""
    from plmctl.training.data import auto_micro_batch

    train = config.train
    if isinstance(config, PretrainConfig):
        lengths = [phase.seq_len for phase in config.train.phases]
    else:
        lengths = [config.train.max_length]
    rows = -(-train.batch_size // processes)
    sizes = [auto_micro_batch(train.micro_batch_size, rows, size, device) for size in lengths]
    return sizes[0] if len(set(sizes)) == 1 else sizes


# --- Saving and failure handling, as the loop takes them ---


def retention(config: CheckpointConfig) -> Retention:
    """Which checkpoints stay."""
    from plmctl.training.checkpoint import Retention

    return Retention(config.keep, config.keep_every, config.keep_best)


def failure_handling(config: PretrainConfig | FinetuneConfig) -> dict[str, Any]:
    """Fields of a ``Plan``: when it saves, and what it does where it cannot go on as it is."""
    from plmctl.training.loop import Guard

    return {
        "save_every": config.checkpoint.every,
        "save_best": config.checkpoint.keep_best,
        "background": config.checkpoint.background,
        "guard": Guard(**config.divergence.model_dump()),
        # Without all processes nothing of a sharded network can be tried, or tried again.
        "elastic": config.train.micro_batch_size == "auto" and config.launch.strategy == "ddp",
    }
