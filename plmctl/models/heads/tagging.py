"""Heads on every token, for tagging: one linear layer over the last layer or over a mix of all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.modeling_outputs import TokenClassifierOutput

from plmctl import hub
from plmctl.errors import ConfigError
from plmctl.models.elmo import ScalarMix
from plmctl.models.load import (
    NewHeads,
    config_of,
    load_encoder,
    load_with_labels,
    report_or_refuse,
    without_pooler,
)
from plmctl.models.parameters import initialize_head_as_published

# --- Loading a network with its head ---


def check_tagger(model: str) -> str:
    """The type of a model that can tag.

    Raises:
        ConfigError: The family has no such head.
    """
    network: Any = config_of(model)
    auto: Any = AutoModelForTokenClassification
    # transformers has no accessor for what an Auto class knows.
    if network.is_encoder_decoder or type(network) not in auto._model_mapping:  # noqa: SLF001
        raise ConfigError(
            f"{model}: a {network.model_type} has no head for tagging",
            "take a BERT, RoBERTa, ALBERT, DistilBERT, SpanBERT, GPT-2, GPT-3 or ELMo",
        )
    return str(network.model_type)


def load_tagger(
    model: str,
    labels: tuple[str, ...],
    *,
    pretrained: bool,
    mix: bool,
    changes: Mapping[str, Any],
    new_heads: NewHeads | None = None,
) -> Any:
    """A network with a head on every piece, in float32, whose config names the tags.

    Args:
        model: A model folder or Hub id.
        labels: By id.
        pretrained: False keeps the architecture and draws random weights.
        mix: The head reads a mix of all layers; a network that was saved with a mix always does.
        changes: To the config.
        new_heads: Called with a new head; None: the folder has to have one.

    Raises:
        DataError: As ``load_network``.
    """
    kind = check_tagger(model)
    names: dict[str, Any] = {
        "num_labels": len(labels),
        "id2label": dict(enumerate(labels)),
        "label2id": {name: number for number, name in enumerate(labels)},
    }
    if mix and kind not in ("elmo", MixedConfig.model_type):
        dropout = next(iter(changes.values()), 0.1)
        return load_mixed(
            model,
            names,
            pretrained=pretrained,
            dropout=dropout,
            changes=changes,
            new_heads=new_heads,
        )
    config = AutoConfig.from_pretrained(hub.local(model), **names, **changes)
    cls: Any = AutoModelForTokenClassification
    if not pretrained:
        network, fresh = cls.from_config(config, dtype=torch.float32), ["classifier"]
    else:
        network, fresh = load_with_labels(cls, model, config, new_heads)
    if "classifier" in fresh:
        initialize_head_as_published(network.classifier, config)
    return network


# --- A learned mix of all layers of an encoder, in place of its last one ---
#
# The mix is ELMo's (Peters et al., 2018, equation 1), over the embeddings and every layer. The
# class has its own model type, so that no other class loads the weights without the mix. Importing
# this module makes transformers' Auto classes know it.


class MixedConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]  # theirs
    """An encoder's config, and the dropout before the tags.

    Attributes:
        encoder: The config of the encoder, with its ``model_type``.
        dropout: The dropout rate of the mixed vectors.
    """

    model_type = "mixed_layers"
    sub_configs = {"encoder": AutoConfig}

    encoder: dict[str, Any] | PreTrainedConfig | None = None
    dropout: float = 0.1

    def __post_init__(self, **kwargs: Any) -> None:
        if isinstance(self.encoder, dict):
            fields = {name: value for name, value in self.encoder.items() if name != "model_type"}
            self.encoder = AutoConfig.for_model(self.encoder["model_type"], **fields)
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]  # theirs


class MixedForTokenClassification(PreTrainedModel):  # type: ignore[no-untyped-call]  # theirs
    """An encoder, the mix of its layers, dropout, and a linear layer per token."""

    config_class = MixedConfig
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    _supports_sdpa = True

    def __init__(self, config: MixedConfig) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        auto: Any = AutoModel
        self.encoder = without_pooler(auto.from_config(config.encoder))
        inner: Any = self.encoder.config
        self.mix = ScalarMix(inner.num_hidden_layers + 1)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(inner.hidden_size, len(config.id2label or ()))
        self.post_init()  # type: ignore[no-untyped-call]  # theirs

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
            super()._init_weights(module)  # type: ignore[no-untyped-call]  # theirs


AutoConfig.register(MixedConfig.model_type, MixedConfig)
AutoModelForTokenClassification.register(MixedConfig, MixedForTokenClassification)


def load_mixed(
    model: str,
    labels: dict[str, Any],
    *,
    pretrained: bool,
    dropout: float,
    changes: Mapping[str, Any],
    new_heads: NewHeads | None,
) -> MixedForTokenClassification:
    """The network over a model folder or Hub id.

    Args:
        model: An encoder's, with any head, which is left out.
        labels: num_labels, id2label and label2id.
        pretrained: False draws random weights.
        dropout: The dropout rate of the mixed vectors.
        changes: To the encoder's config.
        new_heads: Called with the head; None: the folder would have to have one.

    Raises:
        DataError: As ``load_network``.
    """
    config = AutoConfig.from_pretrained(hub.local(model), **changes)
    network = MixedForTokenClassification(MixedConfig(encoder=config, dropout=dropout, **labels))
    if pretrained:
        report_or_refuse(model, network, ["mix", "classifier"], new_heads)
        network.encoder = load_encoder(model, config)
    return network
