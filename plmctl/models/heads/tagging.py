"""Heads on every token, for tagging: one linear layer over the last layer or over a mix of all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForTokenClassification,
)
from transformers import initialization as init
from transformers.modeling_outputs import TokenClassifierOutput

from plmctl.models.elmo import ElmoConfig, ScalarMix
from plmctl.models.heads.classification import InitializeHead
from plmctl.models.load import (
    HeadSource,
    OwnHeadConfig,
    changed_config,
    config_of,
    load_with_labels,
)
from plmctl.models.own_heads import EncoderWithHead, encoder_config, load_own_head

# --- Loading a network with its head ---


def load_tagger(
    start: HeadSource, changes: Mapping[str, Any], initialize: InitializeHead, *, mix: bool
) -> Any:
    """A network with a head on every piece, in float32, whose config names the tags.

    Args:
        start: The model that it starts from; its labels are the tags.
        mix: The head reads a mix of all layers; a network that was saved with one always does.

    Raises:
        DataError: As ``load_network``.
    """
    labels: dict[str, Any] = {
        "num_labels": len(start.labels),
        "id2label": dict(enumerate(start.labels)),
        "label2id": {name: number for number, name in enumerate(start.labels)},
    }
    if mix and not isinstance(config_of(start.model), ElmoConfig | MixedConfig):
        encoder = changed_config(start.model, changes)
        mixed = MixedConfig(encoder=encoder, dropout=_rate(changes), **labels)
        return load_own_head(MixedForTokenClassification, start, mixed)
    config = changed_config(start.model, labels)
    for name, value in changes.items():
        setattr(encoder_config(config), name, value)
    network, new = load_with_labels(AutoModelForTokenClassification, start, config)
    if not start.pretrained or "classifier" in new:
        initialize(network.classifier, config)
    return network


def _rate(changes: Mapping[str, Any]) -> float:
    """The dropout among the changes of a config."""
    return next((rate for rate in changes.values() if isinstance(rate, float)), 0.1)


# --- A learned mix of all layers of an encoder, in place of its last one ---
#
# The mix is ELMo's (Peters et al., 2018, equation 1), over the embeddings and every layer. The
# class has its own model type, so that no other class loads the weights without the mix. Importing
# this module makes transformers' Auto classes know it.


class MixedConfig(OwnHeadConfig):
    """An encoder's config, and the dropout before the tags.

    Attributes:
        encoder: The config of the encoder, with its ``model_type``.
        dropout: The dropout rate of the mixed vectors.
    """

    model_type = "mixed_layers"
    sub_configs = {"encoder": AutoConfig}

    dropout: float = 0.1

    def __post_init__(self, **kwargs: Any) -> None:
        if isinstance(self.encoder, dict):
            self.encoder = self.of_encoder()
        super().__post_init__(**kwargs)


class MixedForTokenClassification(EncoderWithHead):
    """An encoder, the mix of its layers, dropout, and a linear layer per token."""

    config_class = MixedConfig

    def __init__(self, config: MixedConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        inner: Any = self.encoder.config
        self.mix = ScalarMix(inner.num_hidden_layers + 1)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(inner.hidden_size, len(config.id2label or ()))
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **options: Any,
    ) -> TokenClassifierOutput:
        """Logits [B, L, labels] of ids [B, L]."""
        if token_type_ids is not None:
            options["token_type_ids"] = token_type_ids
        read = self.encoder(
            input_ids, attention_mask=attention_mask, output_hidden_states=True, **options
        )
        mixed_BLH = self.mix(read.hidden_states, attention_mask)
        return TokenClassifierOutput(logits=self.classifier(self.dropout(mixed_BLH)))

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialize the head; the encoder's modules are initialized by its own class."""
        if isinstance(module, ScalarMix):
            init.zeros_(module.weights)
            init.ones_(module.gamma)
        else:
            super()._init_weights(module)


AutoConfig.register(MixedConfig.model_type, MixedConfig)
AutoModelForTokenClassification.register(MixedConfig, MixedForTokenClassification)
