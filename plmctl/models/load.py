"""Opening a model folder: its config, its weights, and what becomes of a head for other labels.

transformers draws at random what a file of weights lacks, leaves out what has no place in the
network, and only logs both. Here each is an error, but for heads: those of another task may be in
the file, and those that a command creates may be missing from it. ``load_network`` is the one
function of plmctl that reads weights.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_MAPPING,
    AutoConfig,
    AutoModel,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.hub import cached_file

from plmctl import hub
from plmctl.errors import DataError, PlmError, machine_error, read_error
from plmctl.files import read_json
from plmctl.folders import refuse_links
from plmctl.models import elmo  # noqa: F401  # transformers' Auto classes know it then
from plmctl.models.fast import use_fused_attention

# --- The config of a folder, plmctl's own networks among them ---


def config_of(source: str) -> PreTrainedConfig:
    """The config of a model folder or Hub id.

    Raises:
        ConfigError: As ``folders.refuse_links``.
        DataError: It cannot be read, or is of no known kind of model.
    """
    refuse_links(Path(hub.local(source)))
    try:
        config: PreTrainedConfig = _own_head(source) or AutoConfig.from_pretrained(
            hub.local(source), trust_remote_code=False
        )
    except Exception as error:  # noqa: BLE001 - a damaged file can raise anything in there
        raise machine_error(error) or DataError(
            f"{source}: its config.json cannot be used: {_first_line(error)}",
            "copy or export the folder again",
        ) from error
    _check_complete(source, config)
    layers = getattr(config, "num_hidden_layers", 1)
    if not isinstance(layers, int) or not 0 <= layers <= MOST_LAYERS:
        raise DataError(
            f"{source}: its config.json has {layers} layers; at most {MOST_LAYERS:,} can be built",
            "copy or export the folder again",
        )
    return config


def changed_config(source: str, changes: Mapping[str, Any]) -> Any:
    """The config of a folder with other values, such as dropout; new fields too."""
    config = config_of(source)
    for name, value in changes.items():
        setattr(config, name, value)
    return config


class OwnHeadConfig(PreTrainedConfig):
    """Config of an encoder and of a head that transformers does not have: ``models.own_heads``.

    Attributes:
        encoder: The encoder's own config, with its ``model_type``.
    """

    model_type = "own-head"

    encoder: dict[str, Any] | PreTrainedConfig | None = None

    def of_encoder(self) -> Any:
        """The encoder's config."""
        if isinstance(self.encoder, PreTrainedConfig):
            return self.encoder
        return AutoConfig.for_model(**(self.encoder or {"model_type": "bert"}))


def _own_head(source: str) -> OwnHeadConfig | None:
    """The config of an encoder with a head that no loaded file declares; None: it is of another."""
    document, _ = PreTrainedConfig.get_config_dict(hub.local(source))
    kind, encoder = document.get("model_type"), document.get("encoder")
    if kind in CONFIG_MAPPING or not isinstance(encoder, dict) or "model_type" not in encoder:
        return None
    return OwnHeadConfig.from_dict(document)


def _check_complete(source: str, config: PreTrainedConfig) -> None:
    """Refuse a config.json without what the shapes of the weights do not show.

    transformers has a default for every key. That of the number of attention heads gives a network
    that the weights fit, and that says something else.

    Raises:
        DataError: The number of heads is missing.
    """
    path = Path(hub.local(source)) / "config.json"
    name = "num_attention_heads"
    names = {name, config.attribute_map.get(name, name)}
    if not path.is_file() or not any(hasattr(config, one) for one in names):
        return
    if not names & read_json(path).keys():
        raise DataError(
            f"{path}: lacks {' or '.join(sorted(names))}, which the weights do not show",
            "copy or export the folder again",
        )


MOST_LAYERS = 10_000
"""More layers than this cannot be built in a minute, even without weights."""


# --- The weights of a folder, all of them ---


NewHeads = Callable[[str], None]
"""Called with one line about the heads that a command creates."""


@dataclass(frozen=True)
class HeadSource:
    """What a network with a task's head starts from.

    Attributes:
        model: A model folder or Hub id. A finetuned one has its head already.
        labels: By id; empty: the task has none.
        pretrained: False keeps the architecture and initialises all weights from scratch.
        changes: Fields of the model's config to set, such as dropout.
        new_heads: Called with a message if the head is new. None: the folder must have a head.
    """

    model: str
    tokenizer: PreTrainedTokenizerBase
    labels: tuple[str, ...] = ()
    pretrained: bool = True
    changes: Mapping[str, Any] = field(default_factory=dict)
    new_heads: NewHeads | None = None


_LISTED = 8


# Masks that earlier versions of transformers saved as if they were weights.
_BUFFERS = (".masked_bias", ".attn.bias", "position_ids", "token_type_ids")


_POOLER = "pooler."


@dataclass(frozen=True)
class Loaded:
    """A network from a folder.

    Attributes:
        network: In float32, in evaluation mode, GPT-1 and GPT-2 with fused attention.
        fresh: Parameters of heads with random weights: the folder lacks them, or has them in
            another shape.
    """

    network: Any
    fresh: tuple[str, ...]


def load_network(
    cls: Any,
    source: str,
    *,
    new_heads: NewHeads | None = None,
    pooler_used: bool = True,
    **options: Any,
) -> Loaded:
    """A network with the weights of a folder, in float32.

    Args:
        cls: A class of transformers or of plmctl, or an Auto class.
        source: A model folder or Hub id.
        new_heads: Called with the heads that the folder lacks, which get random weights: parameters
            outside the encoder, and its pooler. None: the folder has to have them all.
        pooler_used: False: it does not matter whether the folder has a pooler.
        **options: The options of ``from_pretrained``: a config, or changes to the folder's.

    Raises:
        DataError: The weights cannot be read; tensors are missing, have no place in the network, or
            have another shape than config.json says; or the folder's tokenizer has ids without an
            embedding. The message names the tensors.
    """
    refuse_links(Path(hub.local(source)))
    _check_index(hub.local(source))
    if new_heads is not None and _names_its_body_anew(cls, source):
        body = load_network(AutoModel, source, pooler_used=pooler_used, **options).network
        network = from_scratch(cls, body.config)
        setattr(network, network.base_model_prefix, body)
        heads = {name for name, _ in network.named_parameters() if _is_head(network, name)}
        report_or_refuse(source, network, _modules(network, heads), new_heads)
        return Loaded(network, tuple(sorted(heads)))
    try:
        network, info = cls.from_pretrained(
            hub.local(source),
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **options,
        )
    except PlmError:
        raise
    except Exception as error:  # noqa: BLE001 - a damaged file can raise anything in there
        raise machine_error(error) or DataError(
            f"{source}: the model cannot be loaded: {_first_line(error)}",
            "the folder is damaged or incomplete: copy or export it again",
        ) from error
    wrong_shape = {name: sizes for name, *sizes in info["mismatched_keys"]}
    missing = set(info["missing_keys"])
    if not pooler_used:
        missing = {name for name in missing if not _inside(network, name).startswith(_POOLER)}
    creates = new_heads is not None
    heads = {name for name in missing | set(wrong_shape) if creates and _is_head(network, name)}
    declared = _declared(network, source) if missing & heads else frozenset()
    lacking = (missing - heads) | (missing & declared)
    extra = [name for name in info["unexpected_keys"] if not _may_be_left_out(network, name)]
    misshapen = {name: sizes for name, sizes in wrong_shape.items() if name not in heads}
    _refuse(source, type(network).__name__, lacking, extra, misshapen)
    _check_vocabulary(network, source)
    _check_finite(network, source)
    if heads:
        report_or_refuse(source, network, _modules(network, heads), new_heads)
    use_fused_attention(network)
    return Loaded(network, tuple(sorted(heads)))


def _names_its_body_anew(cls: Any, source: str) -> bool:
    """Whether a network with this head has another name for what is below it than the folder.

    As those for questions on Llama's networks: transformers looks for the weights by their names,
    and would leave all of them random.
    """
    config: Any = config_of(source)
    usual: Any = MODEL_MAPPING.get(type(config), None)
    prefix = getattr(usual, "base_model_prefix", "")
    other = getattr(cls, "base_model_prefix", prefix) != prefix
    return bool(prefix) and other and _saved_class(config) != cls.__name__


def from_scratch(cls: Any, config: PreTrainedConfig) -> Any:
    """A network with random weights, in float32; ``cls`` as in ``load_network``."""
    if issubclass(cls, PreTrainedModel):
        return cls._from_config(config, dtype=torch.float32)
    return cls.from_config(config, dtype=torch.float32)  # an Auto class


def report_or_refuse(
    source: str, network: PreTrainedModel, names: Sequence[str], new_heads: NewHeads | None
) -> None:
    """Report heads that a folder lacks, or refuse the folder.

    Args:
        source: The folder or Hub id.
        new_heads: Called with them; None: the folder has to have them.

    Raises:
        DataError: The folder has to have them.
    """
    if new_heads is None:
        _refuse(source, type(network).__name__, set(names), [], {})
    else:
        new_heads(f"{source}: new, with random weights: {', '.join(names)}")


def _check_index(source: str) -> None:
    """Refuse an index of weights that names files outside of its folder."""
    path = Path(source) / "model.safetensors.index.json"
    if not path.is_file():
        return
    names = read_json(path, "weight_map")["weight_map"]
    for name in names.values() if isinstance(names, dict) else [names]:
        if not isinstance(name, str) or Path(name).name != name:
            raise DataError(
                f"{path}: names the file {name!r}, which is not beside it",
                "copy or export the folder again",
            )


def _check_finite(network: PreTrainedModel, source: str) -> None:
    """Refuse weights that are not numbers: every answer would be NaN."""
    broken = [name for name, weight in network.named_parameters() if not weight.isfinite().all()]
    if broken:
        raise DataError(
            f"{source}: {_tensors(broken)} with NaN or infinite values: {_listed(broken)}",
            "the training that made it diverged: take an earlier checkpoint (`plmctl export`)",
        )


def _refuse(
    source: str,
    network: str,
    lacking: set[str],
    extra: Sequence[str],
    misshapen: dict[str, list[Any]],
) -> None:
    problems = []
    if lacking:
        problems.append(f"{_tensors(lacking)} of {network} missing: {_listed(lacking)}")
    if extra:
        problems.append(
            f"{_tensors(extra)} with no place in the network that config.json describes: "
            f"{_listed(extra)}"
        )
    if misshapen:
        shapes = [
            f"{name} (file {_shape(in_file)}, config.json {_shape(in_config)})"
            for name, (in_file, in_config) in misshapen.items()
        ]
        problems.append(f"{_tensors(shapes)} of the wrong shape: {_listed(shapes)}")
    if problems:
        raise DataError(
            f"{source}: the weights do not fit the model: {'; '.join(problems)}",
            "the folder is incomplete, or its config.json belongs to another model: copy or export "
            "it again, or train the model again",
        )


def _inside(network: PreTrainedModel, name: str) -> str:
    """The name of a parameter within the base model; empty for one of a head."""
    prefix = f"{network.base_model_prefix}."
    if network.base_model is network:  # the base model itself, or T5, whose head is inside
        return name.removeprefix(prefix)
    return name.removeprefix(prefix) if name.startswith(prefix) else ""


def _is_head(network: PreTrainedModel, name: str) -> bool:
    """Whether a parameter belongs to a head; a pooler does, though it is in the base model."""
    inside = _inside(network, name)
    return not inside or inside.startswith(_POOLER)


def _may_be_left_out(network: PreTrainedModel, name: str) -> bool:
    """Whether a tensor of the file that the network has no place for is none of the encoder's."""
    prefix = f"{network.base_model_prefix}."
    inside = name.removeprefix(prefix)
    first = inside.partition(".")[0]
    of_encoder = name.startswith(prefix) or first in dict(network.base_model.named_children())
    return not of_encoder or inside.startswith(_POOLER) or name.endswith(_BUFFERS)


def _declared(network: PreTrainedModel, source: str) -> frozenset[str]:
    """Parameters of the class that the folder's config names; empty if that class is not known."""
    config = config_of(source)
    name = (config.architectures or [""])[0]
    for base in type(network).__mro__:
        declared: Any = vars(sys.modules[base.__module__]).get(name)
        if isinstance(declared, type) and issubclass(declared, PreTrainedModel):
            with torch.device("meta"):
                return frozenset(declared(config).state_dict())
    return frozenset()


def _modules(network: PreTrainedModel, names: set[str]) -> list[str]:
    """The outermost modules of which all parameters are among ``names``."""
    outermost: list[str] = []
    parameters = [name for name, _ in network.named_parameters()]  # tied ones once
    for prefix, _ in network.named_modules():
        inside = {name for name in parameters if name.startswith(f"{prefix}.")}
        covered = any(f"{prefix}.".startswith(f"{one}.") for one in outermost)
        if inside and inside <= names and not covered:
            outermost.append(prefix)
    loose = {n for n in names if not any(n.startswith(f"{one}.") for one in outermost)}
    return [*outermost, *sorted(loose)]


def _check_vocabulary(network: PreTrainedModel, source: str) -> None:
    """Refuse a tokenizer with more ids than embeddings; fewer are fine (T5's rows are padded)."""
    path = cached_file(
        hub.local(source), "tokenizer.json", _raise_exceptions_for_missing_entries=False
    )
    if path is None:
        return
    try:
        saved = json.loads(Path(path).read_text(encoding="utf-8"))
        vocab, added = saved["model"]["vocab"], saved["added_tokens"]
        ids = vocab.values() if isinstance(vocab, dict) else range(len(vocab))
        largest = max(-1, *ids, *(token["id"] for token in added))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        other = DataError(
            f"{path}: not a tokenizer: {_first_line(error)}", "copy or train it again"
        )
        raise read_error(error, other) from error
    table: Any = network.get_input_embeddings()
    rows = 0 if table is None else len(table.weight)
    if rows and largest >= rows:  # none: it reads characters
        raise DataError(
            f"{source}: the tokenizer has ids up to {largest:,}, and the model has embeddings for "
            f"{rows:,}",
            "put the tokenizer into the folder that the model was trained with",
        )


def _tensors(names: Sequence[str] | set[str]) -> str:
    return f"{len(names)} tensor{'' if len(names) == 1 else 's'}"


def _listed(names: Iterable[str]) -> str:
    several = sorted(names)
    more = len(several) - _LISTED
    return ", ".join(several[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def _shape(size: Sequence[int]) -> str:
    return f"[{', '.join(map(str, size))}]"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# --- Continuing from a finetuned folder: what becomes of a head that was made for other labels ---
#
# A head is kept where it was made for the same labels, its rows in their new order. For other
# labels its last layer starts from random weights, as where MNLI's network is finetuned for RTE.


_DEVIATION = 0.02

_WITH_LABELS = ("ForSequenceClassification", "ForTokenClassification")


def load_with_labels(
    cls: Any, start: HeadSource, config: Any, **parts: Any
) -> tuple[Any, list[str]]:
    """A network with a head for the labels of ``config``, in float32.

    Args:
        cls: A class with a head, of transformers or of plmctl, or an Auto class.
        config: The network's, with ``id2label`` as it is to be.

    Returns:
        The network, and the modules with random weights, by name: those that the folder does not
        have, or "" for the whole network.

    Raises:
        DataError: As ``load_network``.
    """
    if not start.pretrained:
        return from_scratch(cls, config), [""]
    model = start.model
    loaded = load_network(cls, model, config=config, new_heads=start.new_heads, **parts)
    network, below = loaded.network, f"{loaded.network.base_model_prefix}."
    # Sorted: they are drawn one after the other, and a set's order differs between processes.
    fresh = sorted({name.rpartition(".")[0] for name in loaded.fresh})
    before: Any = config_of(model)
    old_names = list((before.id2label or {}).values())
    names = list(config.id2label.values())
    last = _last_layer(network, below)
    same = _saved_class(before) in ("", type(network).__name__)
    if last is None or last[0] in fresh or config.num_labels == 1 or (same and old_names == names):
        return network, fresh
    name, layer = last
    if same and set(old_names) == set(names):
        _reorder(layer, [old_names.index(label) for label in names])
        return network, fresh
    if start.new_heads is None:
        raise DataError(
            f"{model}: its head is for {_label_list(names)}, and its config.json is of a "
            f"{_saved_class(before)} for {_label_list(old_names)}",
            "a file of the folder (config.json, task.json) is of another model: copy it again",
        )
    # Not by the network's own function, which skips loaded weights.
    nn.init.normal_(layer.weight, std=getattr(config, "initializer_range", _DEVIATION))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return network, [*fresh, name]


def _saved_class(config: Any) -> str:
    """The class that a folder's weights were saved from; empty where it does not say."""
    return str((config.architectures or [""])[0])


def new_head_message(model: str, labels: tuple[str, ...]) -> str | None:
    """The message about a finetuned folder whose head is not used; None: it is."""
    before: Any = config_of(model)
    if not _saved_class(before).endswith(_WITH_LABELS):
        return None
    old_names = list((before.id2label or {}).values())
    if set(old_names) == set(labels or ("score",)):
        return None
    return (
        f"{model} has a head for {_label_list(old_names)}; "
        f"a new one is created for {_label_list(labels)}"
    )


def _last_layer(network: Any, below: str) -> tuple[str, Any] | None:
    """The linear layer that gives the labels."""
    layers = [
        (name, module)
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear) and not name.startswith(below)
    ]
    return layers[-1] if layers else None


@torch.no_grad()
def _reorder(layer: nn.Linear, order: list[int]) -> None:
    layer.weight.copy_(layer.weight[order].clone())
    if layer.bias is not None:
        layer.bias.copy_(layer.bias[order].clone())


def _label_list(labels: Any) -> str:
    shown = list(labels) or ["a number"]
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")
