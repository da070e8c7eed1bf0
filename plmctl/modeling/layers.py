"""The layers of any network: how deep each parameter lies, which to freeze, which to draw anew.

A stack is the list of a network's blocks (BERT's ``encoder.layer``, GPT-2's ``h``, T5's two
``block``; ALBERT's one group of shared weights is a stack of one). What the network registers
before its first stack are its embeddings; what stands outside its base model is the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import nn
from transformers.pytorch_utils import Conv1D

from plmctl.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
    """Of every parameter, by its place in the network.

    Raises:
        ConfigError: The network has no layers that could be told apart.
    """
    stacks = layer_stacks(model)
    if not stacks:
        raise ConfigError(f"{type(model).__name__} has no stack of layers")
    layers = max(map(len, stacks.values()))
    base = model.base_model
    prefix = "" if base is model else f"{model.base_model_prefix}."
    found, seen = {}, False
    for name, _ in model.named_parameters():
        stack = next((path for path in stacks if name.startswith(f"{path}.")), None)
        if stack is not None:
            seen = True
            within = int(name[len(stack) + 1 :].partition(".")[0])
            found[name] = within + 1 + layers - len(stacks[stack])
        else:
            found[name] = 0 if name.startswith(prefix) and not seen else layers + 1
    return Depths(layers, found)


def rates(depth: Depths, decay: float) -> dict[str, float]:
    """By parameter name, its share of the learning rate: decay ** (layers + 1 - depth).

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
    _refuse_more(f"train.freeze: {what}", int(up_to), depth.layers)
    for name, parameter in model.named_parameters():
        if depth.of[name] <= int(up_to):
            parameter.requires_grad_(False)


def reinit(model: PreTrainedModel, count: int) -> None:
    """Draw the top layers anew, and the pooler or norm above them (Zhang et al., 2021).

    Source: Revisiting Few-sample BERT Fine-tuning, arXiv:2006.05987. Seed the generator before.

    Raises:
        ConfigError: More layers than there are.
    """
    stacks = layer_stacks(model)
    _refuse_more(f"train.reinit_layers: {count}", count, depths(model).layers)
    anew = [layer for stack in stacks.values() for layer in list(stack)[-count:]]
    anew += _above(model, list(stacks))
    for module in anew:
        for parameter in module.parameters():
            # transformers marks what it has loaded, so that its own start leaves it alone.
            parameter._is_hf_initialized = False  # type: ignore[attr-defined]
        for inner in module.modules():
            if isinstance(inner, Conv1D):  # GPT-1's draws its weights when it is made, only then
                nn.init.normal_(inner.weight, std=model.config.initializer_range)
                nn.init.zeros_(inner.bias)
            inner._is_hf_initialized = False  # type: ignore[assignment]
            model._init_weights(inner)  # type: ignore[no-untyped-call]  # theirs


def _above(model: PreTrainedModel, stacks: list[str]) -> list[nn.Module]:
    """The children of the base model, and of the stacks' owners, that come after a stack."""
    names = dict(model.named_modules())
    owners = {path.rpartition(".")[0] for path in stacks} | {
        "" if model.base_model is model else model.base_model_prefix
    }
    found: list[nn.Module] = []
    for owner in sorted(owners):
        seen = False
        for name, child in names[owner].named_children():
            path = f"{owner}.{name}" if owner else name
            holds = any(f"{stack}.".startswith(f"{path}.") for stack in stacks)
            if seen and not holds:
                found.append(child)
            seen = seen or holds
    heads: Any = model  # of T5 it is tied to the embeddings
    output = heads.get_output_embeddings()
    return [child for child in found if child is not output]


def layer_stacks(model: Any) -> dict[str, nn.ModuleList]:
    """Module lists of blocks in the base model, the outermost ones, by their paths."""
    base = model.base_model
    prefix = "" if base is model else f"{model.base_model_prefix}."
    found: dict[str, nn.ModuleList] = {}
    for name, module in base.named_modules():
        path = prefix + name
        inside = any(path.startswith(f"{other}.") for other in found)
        # A block holds modules of its own: convolutions of a character encoder are no blocks.
        if isinstance(module, nn.ModuleList) and len(module) and not inside and _blocks(module):
            found[path] = module
    return found


def _blocks(modules: nn.ModuleList) -> bool:
    if type(modules[0]).__name__ in ("Highway", "Conv1d"):
        return False
    return len(set(map(type, modules))) == 1


def _refuse_more(asked: str, count: int, layers: int) -> None:
    if count > layers:
        shared = " (ALBERT's layers share one set of weights)" if layers == 1 else ""
        raise ConfigError(f"{asked} of a model with {layers} layers{shared}")
