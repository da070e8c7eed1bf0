"""Which parameters of a pretrained network are trained, and how fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plmctl.shaping.keys import fold, stream

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from transformers import PreTrainedModel

    from plmctl.config.finetune import FinetuneConfig


def ready(config: FinetuneConfig, model: PreTrainedModel) -> None:
    """Fresh top layers, frozen layers or adapters, as a config asks, in place.

    Raises:
        ConfigError: More layers than the network has, or no such layers.
        PlmError: peft is not installed.
    """
    import torch

    from plmctl.modeling import adapters, layers

    torch.manual_seed(int(fold(config.seed, stream("reinit"))) >> 1)
    if config.train.reinit_layers:
        layers.reinit(model, config.train.reinit_layers)
    if config.train.freeze is not None:
        layers.freeze(model, config.train.freeze)
    if config.lora is not None:
        adapters.add_lora(config.lora, model)


def slow_down(optimizer: Optimizer, model: PreTrainedModel, decay: float) -> None:
    """Cut the optimizer's groups up by layer, each with its share of the rate as ``scale``.

    The loop sets every group's rate to the schedule's times its scale.
    """
    from plmctl.modeling import layers

    shares = layers.rates(layers.depths(model), decay)
    by_id = {id(parameter): shares[name] for name, parameter in model.named_parameters()}
    made: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        parts: dict[float, list[Any]] = {}
        for parameter in group["params"]:
            parts.setdefault(by_id[id(parameter)], []).append(parameter)
        made += [{**group, "params": of, "scale": share} for share, of in parts.items()]
    optimizer.param_groups[:] = made
