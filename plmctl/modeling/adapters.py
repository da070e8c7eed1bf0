"""Low-rank adapters by the peft library, put into a network and merged into it again."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from torch import nn

from plmctl.errors import ConfigError, PlmError
from plmctl.modeling.layers import depths

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from plmctl.config.finetune import LoraConfig

# What holds the attention's query and value, by the network's model_type.
_TARGETS = {
    "albert": ("query", "value"),
    "bert": ("query", "value"),
    "distilbert": ("q_lin", "v_lin"),
    "gpt2": ("c_attn",),
    "openai-gpt": ("c_attn",),
    "roberta": ("query", "value"),
    "t5": ("q", "v"),
}


def add_lora(config: LoraConfig, model: PreTrainedModel) -> None:
    """Put adapters into the layers, in place; they and what stands above the layers are trained.

    The network keeps its class. An adapter's first update is zero, so it begins as it was.

    Raises:
        PlmError: peft is not installed.
        ConfigError: No such linear layers.
    """
    if importlib.util.find_spec("peft") is None:
        raise PlmError("lora: the library peft is not installed", "pip install 'plmctl[peft]'")
    import peft

    targets = config.targets or _TARGETS.get(model.config.model_type)
    if targets is None:
        raise ConfigError(
            f"lora: which layers of {type(model).__name__} get an adapter?", "set lora.targets"
        )
    depth = depths(model)
    above = {name for name, at in depth.of.items() if at > depth.layers}
    linear = _linear(model)
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in linear):
            known = sorted({name.rpartition(".")[2] for name in linear})
            raise ConfigError(
                f"lora.targets: {type(model).__name__} has no linear layer {target!r}",
                f"there are: {', '.join(known)}",
            )
    asked = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=list(targets),
        fan_in_fan_out=model.config.model_type in ("gpt2", "openai-gpt"),
    )
    peft.inject_adapter_in_model(asked, model)
    for name, parameter in model.named_parameters():
        if name in above:
            parameter.requires_grad_(True)


def merge(model: nn.Module) -> None:
    """Add the adapters to the weights that they stand beside, and take them out, in place."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in list(model.named_modules()):
        if isinstance(module, BaseTunerLayer):
            adapted: Any = module
            adapted.merge()
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, adapted.get_base_layer())


def _linear(model: nn.Module) -> list[str]:
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
    ]
