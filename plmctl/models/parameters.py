"""The parameters of a network, before it is trained: initial values, layers, new tokens, LoRA.

Initial values: as published, such that attention starts local, or embeddings from counts in a text.

Layers: how deep each parameter lies, which to freeze, which to draw from scratch. A stack is the
list of a network's blocks (BERT's ``encoder.layer``, GPT-2's ``h``, T5's two ``block``; ALBERT's
one group of shared weights is a stack of one). What the network registers before its first stack
are its embeddings; what stands outside its base model is the head.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from plmctl.errors import ConfigError, PlmError

if TYPE_CHECKING:
    from plmctl.config.sections import LoraConfig


# --- Initial weights as published, where the library's differ ---


@torch.no_grad()
def truncated_normal_(model: nn.Module, std: float) -> None:
    """Every weight matrix and embedding ~ N(0, std), cut at two standard deviations (BERT).

    Biases and LayerNorm parameters are left as they are (zero and one). Source:
    google-research/bert, modeling.py (``create_initializer``).
    """
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)


# --- Initial weights with which the heads of the first layer look at near positions ---


_SCORE = 8.0
"""The score, before the softmax, of the position that a head looks at; others have about 0."""
_POSITIONS_TO_TOKENS = 2.0
"""Position embeddings are so many times as large as token embeddings."""


@torch.no_grad()
def local_attention_(
    positions: nn.Embedding, query: Tensor, key: Tensor, *, heads: int, std: float, causal: bool
) -> None:
    """Change initial weights so that each head of a layer looks at one near token.

    With published weights attention starts uniform, and a masked model must find out which of its
    position embeddings are neighbours before it can use what stands there: the plateau of its loss
    (docs/learning.md). Here positions are waves, ``cos(f i + p)`` and ``sin(f i + p)`` with random
    frequencies f and phases p. A head reads some of the waves, its key as they are and its query
    turned by ``offset * f``, so that their product, the sum of ``cos(f (i + offset - j))``, is
    large for j = i + offset alone. The offsets are -1, 1, -2, 2, ... (causal: -1, -2, ...). Nothing
    is fixed: all weights are trained, and the network stays the same.

    For the first layer alone: a network whose layers are all local classifies whole texts badly.

    Args:
        positions: The position embeddings [P, H], replaced; a padding row stays zero.
        query: Its weights [H, H], a row per output. Its inputs are normalised sums of token and
            position embeddings. What is published is added to.
        key: The same of the key. Both may be views of one parameter.
        std: Of the token embeddings.
    """
    count, size = positions.weight.shape
    waves, per_head = size // 2, size // heads // 2
    # Spread evenly but not regularly: no two distances give nearly the same products.
    frequency = math.pi * (torch.arange(waves) + torch.rand(waves)) / waves
    angle = torch.arange(count)[:, None] * frequency + 2 * math.pi * torch.rand(waves)
    unit = math.sqrt(2) * torch.stack((angle.cos(), angle.sin()), -1).flatten(1)
    positions.weight[:, : 2 * waves] = _POSITIONS_TO_TOKENS * std * unit
    if positions.padding_idx is not None:
        positions.weight[positions.padding_idx] = 0.0

    # Of the variance of a normalised sum, the share of its position.
    share = _POSITIONS_TO_TOKENS**2 / (1 + _POSITIONS_TO_TOKENS**2)
    scale = math.sqrt(_SCORE / (share * math.sqrt(size // heads)))
    for head in range(heads):
        distance = 1 + (head if causal else head // 2)
        offset = distance if head % 2 and not causal else -distance
        read = torch.arange(head, head + heads * per_head, heads)  # each head other waves
        cos, sin = 2 * read, 2 * read + 1
        first = head * (size // heads) + 2 * torch.arange(per_head)
        turn = offset * frequency[read]
        query[first, cos] += scale * turn.cos()
        query[first, sin] -= scale * turn.sin()
        query[first + 1, cos] += scale * turn.sin()
        query[first + 1, sin] += scale * turn.cos()
        key[first, cos] += scale
        key[first + 1, sin] += scale


# --- Initial token embeddings from counts in the text (``corpus/cooccurrence.py``) ---


_COUNTED = 0.1
"""Standard deviation of the embeddings; of published ones mostly 0.02 (docs/learning.md)."""


@torch.no_grad()
def start_embeddings_(table: Tensor, rows: NDArray[np.float32]) -> None:
    """Change initial weights: token embeddings are these rows; where a row is 0, as published.

    Args:
        table: The embeddings [V, H]; an output layer that shares them changes with them.
        rows: [V, H] of the size 1.
    """
    counted = torch.from_numpy(rows.copy())
    std = counted_std(table.square().mean().sqrt().item())
    table.copy_(torch.where(counted.any(1, keepdim=True), std * counted, table))


def counted_std(published: float) -> float:
    """Standard deviation of embeddings from counts, where the published one is ``published``.

    T5's published 1 stays: its layers add to embeddings that no LayerNorm has scaled.
    """
    return max(_COUNTED, published)


# --- Layers: depths, learning rates by depth, freezing, new weights for the top ---


@dataclass(frozen=True)
class Depths:
    """How deep the parameters of a network lie.

    Attributes:
        layers: In the deepest stack.
        of: By parameter name: 0 embeddings, 1 the lowest layer, ``layers + 1`` what stands above.
    """

    layers: int
    of: dict[str, int]


def depths(model: PreTrainedModel) -> Depths:
    """The depth of every parameter, by its place in the network.

    Raises:
        ConfigError: The network has no layers that could be told apart.
    """
    stacks = layer_stacks(model)
    if not stacks:
        raise ConfigError(f"{type(model).__name__} has no stack of layers")
    layers = max(map(len, stacks.values()))
    base = model.base_model
    prefix = "" if base is model else f"{model.base_model_prefix}."
    below = tuple(f"{path}." for path in _below_layers(model))
    depth_of, seen = {}, False
    for name, _ in model.named_parameters():
        stack = next((path for path in stacks if name.startswith(f"{path}.")), None)
        if stack is not None:
            seen = True
            within = int(name[len(stack) + 1 :].partition(".")[0])
            depth_of[name] = within + 1 + layers - len(stacks[stack])
        else:
            first = name.startswith(below) or (name.startswith(prefix) and not seen)
            depth_of[name] = 0 if first else layers + 1
    return Depths(layers, depth_of)


def _below_layers(model: nn.Module) -> set[str]:
    """What layers share, and is registered after them: DeBERTa's table of distances, its norm."""
    names = ("rel_embeddings", "LayerNorm", "conv")
    owners = ("DebertaEncoder", "DebertaV2Encoder")  # of transformers
    return {
        f"{path}.{name}"
        for path, module in model.named_modules()
        for name in names
        if type(module).__name__ in owners
    }


def layer_rates(depth: Depths, decay: float) -> dict[str, float]:
    """Learning-rate factor of each parameter: decay ** (layers + 1 - depth).

    The head learns at the full rate, the top layer at ``decay`` times it. Discriminative learning
    rates: Howard and Ruder, 2018 (arXiv:1801.06146).
    """
    return {name: decay ** (depth.layers + 1 - at) for name, at in depth.of.items()}


def freeze(model: PreTrainedModel, what: Literal["embeddings", "all"] | int) -> None:
    """Keep the embeddings, or them and the lowest layers, as they are.

    Raises:
        ConfigError: More layers than there are.
    """
    depth = depths(model)
    up_to = {"embeddings": 0, "all": depth.layers}.get(str(what), what)
    _refuse_more_layers(f"train.freeze: {what}", int(up_to), depth.layers)
    for name, parameter in model.named_parameters():
        if depth.of[name] <= int(up_to):
            parameter.requires_grad_(False)


def reinit(model: PreTrainedModel, count: int) -> None:
    """Reinitialise the top layers, and the pooler or norm above them (Zhang et al., 2021).

    Source: Revisiting Few-sample BERT Fine-tuning, arXiv:2006.05987. Seed the generator before.

    Raises:
        ConfigError: More layers than there are.
    """
    stacks = layer_stacks(model)
    _refuse_more_layers(f"train.reinit_layers: {count}", count, depths(model).layers)
    redrawn = [layer for stack in stacks.values() for layer in list(stack)[-count:]]
    redrawn += _modules_above(model, list(stacks))
    for module in redrawn:
        for parameter in module.parameters():
            # transformers marks what it has loaded, so that its own start leaves it alone.
            parameter._is_hf_initialized = False  # type: ignore[attr-defined]
        for inner in module.modules():
            if isinstance(inner, Conv1D):  # GPT-1's draws its weights when it is made, only then
                nn.init.normal_(inner.weight, std=model.config.initializer_range)
                nn.init.zeros_(inner.bias)
            inner._is_hf_initialized = False  # type: ignore[assignment]
            model._init_weights(inner)


def _modules_above(model: PreTrainedModel, stacks: list[str]) -> list[nn.Module]:
    """The children of the base model, and of the stacks' owners, that come after a stack."""
    names = dict(model.named_modules())
    owners = {path.rpartition(".")[0] for path in stacks} | {
        "" if model.base_model is model else model.base_model_prefix
    }
    modules: list[nn.Module] = []
    below = _below_layers(model)
    for owner in sorted(owners):
        seen = False
        for name, child in names[owner].named_children():
            path = f"{owner}.{name}" if owner else name
            holds = any(f"{stack}.".startswith(f"{path}.") for stack in stacks)
            if seen and not holds and path not in below:
                modules.append(child)
            seen = seen or holds
    heads: Any = model  # of T5 it is tied to the embeddings
    output = heads.get_output_embeddings()
    return [child for child in modules if child is not output]


def layer_stacks(model: Any) -> dict[str, nn.ModuleList]:
    """Module lists of blocks in the base model, the outermost ones, by their paths."""
    base = model.base_model
    prefix = "" if base is model else f"{model.base_model_prefix}."
    stacks: dict[str, nn.ModuleList] = {}
    for name, module in base.named_modules():
        path = prefix + name
        inside = any(path.startswith(f"{other}.") for other in stacks)
        # A block holds modules of its own: convolutions of a character encoder are no blocks.
        if isinstance(module, nn.ModuleList) and len(module) and not inside and _blocks(module):
            stacks[path] = module
    return stacks


def _blocks(modules: nn.ModuleList) -> bool:
    if type(modules[0]).__name__ in ("Highway", "Conv1d"):
        return False
    return len(set(map(type, modules))) == 1


def check_layers(
    config: PreTrainedConfig, reinit_layers: int, frozen: Literal["embeddings", "all"] | int | None
) -> None:
    """Refuse to reinitialise or to freeze more layers than a network has; no weight is read.

    Args:
        reinit_layers: See ``reinit``.
        frozen: See ``freeze``.

    Raises:
        ConfigError: With the number of layers.
    """
    if not reinit_layers and not isinstance(frozen, int):
        return
    from plmctl.models.own_heads import encoder_config

    encoder = encoder_config(config)
    build: Any = AutoModel.from_config
    with torch.device("meta"):
        layers = depths(build(encoder)).layers
    _refuse_more_layers(f"train.reinit_layers: {reinit_layers}", reinit_layers, layers)
    if isinstance(frozen, int):
        _refuse_more_layers(f"train.freeze: {frozen}", frozen, layers)


def _refuse_more_layers(setting: str, count: int, layers: int) -> None:
    if count > layers:
        shared = " (ALBERT's layers share one set of weights)" if layers == 1 else ""
        raise ConfigError(f"{setting} of a model with {layers} layers{shared}")


# --- New tokens: rows for their ids, the old rows untouched ---


@torch.no_grad()
def extend_vocabulary(model: PreTrainedModel, new: Mapping[int, Sequence[int]]) -> None:
    """Give new ids their rows: in the embeddings, in a separate output matrix, in its bias.

    A new row is the mean of the rows it is made from, so that nothing is drawn at random. That
    makes every logit of a new token the mean of the logits of those, where the output has no more
    than a matrix and a bias over the last hidden state.

    Args:
        new: For each new id the old ids that its row is the mean of; none: of all old rows.

    Raises:
        ConfigError: The network has no embeddings of tokens (ELMo).
    """
    if not new:
        return
    try:
        embeddings: Any = model.get_input_embeddings()
        old = int(embeddings.num_embeddings)
    except (AttributeError, NotImplementedError):  # as transformers says that there are none
        raise ConfigError(
            "model.extend_vocab: this network reads characters and has no embeddings of tokens",
            "leave it out",
        ) from None
    size = max(*new, old - 1) + 1
    if size > old:  # transformers draws the new rows at random; they are set below
        with torch.random.fork_rng(devices=[]):
            model.resize_token_embeddings(size, mean_resizing=False)
    known = min(min(new), old)
    for table in _vocabulary_tables(model):
        overall = table[:known].mean(0)
        rows = {id_: table[list(ids)].mean(0) if ids else overall for id_, ids in new.items()}
        for id_, row in rows.items():
            table[id_] = row


def _vocabulary_tables(model: PreTrainedModel) -> list[Tensor]:
    """The tensors with a row per token: [V, H] matrices and the output's bias [V], each once."""
    whole: Any = model  # whose accessors have no types
    output = whole.get_output_embeddings()
    inside: list[Any] = [part for part in model.children() if isinstance(part, PreTrainedModel)]
    tables = [whole.get_input_embeddings().weight]
    others = [network.get_input_embeddings().weight for network in inside]
    if output is not None:
        others += [output.weight]
        others += [output.bias] if getattr(output, "bias", None) is not None else []
    for table in others:
        if all(table is not one for one in tables):
            tables.append(table)
    return tables


@torch.no_grad()
def add_token_embeddings(model: Any, ids: list[int], deviation: float = 0.02) -> None:
    """Give new tokens their embeddings, drawn from N(0, ``deviation``) by the global generator.

    Args:
        model: With token embeddings, tied ones if it has an output matrix.
        ids: The ids of the new tokens, which may be rows that the matrix already has room for.
        deviation: The deviation of GPT-1's embeddings.
    """
    if (size := max(ids) + 1) > model.get_input_embeddings().num_embeddings:
        with torch.random.fork_rng(devices=[]):  # transformers' own draws, which are replaced
            model.resize_token_embeddings(size, mean_resizing=False)
    table = model.get_input_embeddings().weight
    table[ids] = nn.init.normal_(torch.empty(len(ids), table.shape[1]), std=deviation)


# --- Low-rank adapters (LoRA) of the peft library, put in and merged again ---


def add_lora(config: LoraConfig, model: PreTrainedModel, usual_targets: Sequence[str]) -> None:
    """Put adapters into the layers, in place; they and what stands above the layers are trained.

    The network keeps its class. An adapter adds zero at first, so the network starts as it was.

    Args:
        usual_targets: Names of linear layers, if the config names none.

    Raises:
        PlmError: peft is not installed.
        ConfigError: No such linear layers.
    """
    require_peft()
    import peft

    usual = usual_targets or _targets_of_peft(model.config.model_type)
    targets = config.targets or usual
    if not targets:
        raise ConfigError(
            f"lora: which layers of {type(model).__name__} get an adapter?", "set lora.targets"
        )
    depth = depths(model)
    above = {name for name, at in depth.of.items() if at > depth.layers}
    linear = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
    }
    adapted: list[nn.Module] = []
    for target in targets:
        layers = [one for name, one in linear.items() if f".{name}".endswith(f".{target}")]
        adapted += layers
        if not layers:
            known = sorted({name.rpartition(".")[2] for name in linear})
            raise ConfigError(
                f"lora.targets: {type(model).__name__} has no linear layer {target!r}",
                f"there are: {', '.join(known)}",
            )
    adapters = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=list(targets),
        # GPT's matrices are stored the other way round.
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in adapted),
    )
    peft.inject_adapter_in_model(adapters, model)
    for name, parameter in model.named_parameters():
        if name in above:
            parameter.requires_grad_(True)


def _targets_of_peft(architecture: str) -> Sequence[str]:
    """The layers that the library adapts by default; empty: it does not know the architecture."""
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as KNOWN

    return KNOWN.get(architecture, ())


def require_peft() -> None:
    """Refuse adapters without the library that makes them.

    Raises:
        PlmError: peft is not installed.
    """
    if importlib.util.find_spec("peft") is None:
        raise PlmError("lora: the library peft is not installed", "pip install 'plmctl[peft]'")


def merge_lora(model: nn.Module) -> None:
    """Add the adapters to the weights that they stand beside, and take them out, in place."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in list(model.named_modules()):
        if isinstance(module, BaseTunerLayer):
            adapted: Any = module
            adapted.merge()
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, adapted.get_base_layer())
