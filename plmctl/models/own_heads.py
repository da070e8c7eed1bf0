"""Encoders with a head that transformers has no class for: building, loading and opening them.

The finetuned folder has the encoder's config inside its own, so that ``models.load.config_of``
opens every such folder, whatever head it has; the task's ``load`` knows the head. The encoder has
no pooler: it would get no gradient, which several processes wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from transformers import AutoModel, PreTrainedModel

from plmctl.errors import ConfigError
from plmctl.models.load import (
    HeadSource,
    OwnHeadConfig,
    config_of,
    load_network,
    load_with_labels,
    report_or_refuse,
)


class EncoderWithHead(PreTrainedModel):
    """An encoder and a head of a task, which calls both; see ``with_head``.

    A subclass has a config with a ``model_type`` of its own, so that no other class reads its
    weights as those of the encoder's usual head.
    """

    config_class: type[OwnHeadConfig] = OwnHeadConfig
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    _supports_sdpa = True

    def __init__(
        self, config: OwnHeadConfig, head: Callable[[Any], nn.Module] | None = None
    ) -> None:
        super().__init__(config)
        build: Any = AutoModel.from_config
        self.encoder = _without_pooler(build(config.of_encoder()))
        if head is not None:
            self.head = head(self.encoder.config)
            self.post_init()


def with_head(start: HeadSource, head: Callable[[Any], nn.Module]) -> PreTrainedModel:
    """An ``encoder`` and a ``head``, in float32: what a task calls whose head is its own.

    Args:
        start: An encoder, or a folder that was finetuned with this head.
        head: Makes the head from the encoder's config, as in
            ``lambda encoder: nn.Linear(encoder.hidden_size, 3)``.

    Raises:
        DataError: As ``load_network``.
    """
    encoder = encoder_config(config_of(start.model))
    for name, value in start.changes.items():
        setattr(encoder, name, value)
    labels: dict[str, Any] = {}
    if start.labels:
        labels["id2label"] = dict(enumerate(start.labels))
        labels["label2id"] = {name: number for number, name in enumerate(start.labels)}
    config = OwnHeadConfig(encoder=encoder.to_dict(), **labels)
    return load_own_head(EncoderWithHead, start, config, parts={"head": head})


def no_head(model: str, network: Any, task: str, hint: str = "") -> ConfigError:
    """What to say of a folder that cannot have the head of a task.

    Args:
        network: The folder's config.
        hint: What to take in its place.
    """
    if isinstance(network, OwnHeadConfig):
        return ConfigError(
            f"{model}: this folder has an encoder with a head of another task, and no {task}",
            "take the folder from which it was finetuned",
        )
    named = f"{'an' if network.model_type[0] in 'aeiou' else 'a'} {network.model_type}"
    return ConfigError(f"{model}: {named} has no head for {task}", hint)


def load_own_head(
    cls: type[EncoderWithHead],
    start: HeadSource,
    config: OwnHeadConfig,
    *,
    parts: Mapping[str, Any] | None = None,
    initialize: Callable[[nn.Module], None] | None = None,
) -> PreTrainedModel:
    """A network with a head of its own, in float32.

    Args:
        start: An encoder with any head, which is left out; or a folder with this head.
        initialize: Draws the weights of a new network as the encoder's family does.

    Raises:
        DataError: As ``load_network``, or ``start`` must have the head.
    """
    network: PreTrainedModel
    if start.pretrained and config_of(start.model).model_type == config.model_type:
        network, _ = load_with_labels(cls, start, config, **(parts or {}))
        return network
    network = cls(config, **(parts or {}))
    if initialize is not None:
        initialize(network)
    if start.pretrained:
        new = [name for name, _ in network.named_children() if name not in ("encoder", "dropout")]
        report_or_refuse(start.model, network, new, start.new_heads)
        inner = config.of_encoder()
        loaded = load_network(AutoModel, start.model, config=inner, pooler_used=False)
        network.encoder = _without_pooler(loaded.network)
    return network


def encoder_config(config: Any) -> Any:
    """The config of the encoder alone; any other config as it is."""
    return config.of_encoder() if isinstance(config, OwnHeadConfig) else config


def _without_pooler(encoder: Any) -> Any:
    """The same encoder; its pooler, if it has one, is taken away."""
    if "pooler" in dict(encoder.named_children()):
        encoder.pooler = None
    return encoder
