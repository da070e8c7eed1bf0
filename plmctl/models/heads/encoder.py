"""An encoder with a head of plmctl over all its vectors: what these networks share.

transformers' classes have no such heads. A network has its own model type, so that no other class
reads its weights as those of the encoder's usual head. The encoder has no pooler: it would get no
gradient, which several processes wait for.
"""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, AutoModel, PreTrainedConfig

from plmctl.models.load import Start, load_network, report_or_refuse


class OwnHeadConfig(PreTrainedConfig):
    """Config of an encoder and of the head over it.

    Attributes:
        encoder: The encoder's own config, with its ``model_type``.
    """

    encoder: dict[str, Any] | PreTrainedConfig | None = None

    def of_encoder(self) -> Any:
        """The encoder's config."""
        if isinstance(self.encoder, PreTrainedConfig):
            return self.encoder
        return AutoConfig.for_model(**(self.encoder or {"model_type": "bert"}))


def encoder_of(config: OwnHeadConfig) -> Any:
    """The encoder with random weights, without a pooler."""
    build: Any = AutoModel.from_config
    return _without_pooler(build(config.of_encoder()))


def load_encoder(network: Any, start: Start, new: list[str]) -> None:
    """Give a network with its own head the encoder of the model that it starts from, in place.

    Args:
        network: With ``encoder``, and a config ``OwnHeadConfig``.
        start: A model with any head, which is left out.
        new: The modules of the head, which the folder lacks.

    Raises:
        DataError: As ``load_network``, or ``start`` must have every head.
    """
    if not start.pretrained:
        return
    report_or_refuse(start.model, network, new, start.new_heads)
    config = network.config.of_encoder()
    loaded = load_network(AutoModel, start.model, config=config, pooler_used=False)
    network.encoder = _without_pooler(loaded.network)


def _without_pooler(encoder: Any) -> Any:
    """The same encoder; its pooler, if it has one, is taken away."""
    if "pooler" in dict(encoder.named_children()):
        encoder.pooler = None
    return encoder
