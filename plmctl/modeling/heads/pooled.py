"""A classifier on all vectors of an encoder: their mean, their maximum, or the first one's.

transformers' classes have no such head. Importing this module makes its Auto classes know ours; a
folder has its own model type, so that nothing else reads the weights as BERT's own head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput

from plmctl.errors import ConfigError
from plmctl.modeling.heads.relabel import load_over
from plmctl.modeling.initialization import truncated_normal_
from plmctl.modeling.load import NewHeads, load_network, tell_or_refuse

_OF_THE_HEAD = ("num_labels", "id2label", "label2id", "problem_type")
_NO_ENCODERS = ("openai-gpt", "gpt2", "elmo")


class PooledConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]  # theirs
    """Config of an encoder and of what is made of its vectors.

    Attributes:
        encoder: The encoder's own config, as a dictionary.
        pooling: "cls", "mean" or "max".
        classifier_dropout: Before the linear layer.
    """

    model_type = "pooled-encoder"

    encoder: dict[str, Any] | None = None
    pooling: str = "mean"
    classifier_dropout: float = 0.1
    initializer_range: float = 0.02
    type_vocab_size: int = 1

    def of_encoder(self) -> Any:
        """The encoder's config."""
        return AutoConfig.for_model(**(self.encoder or {"model_type": "bert"}))


class PooledForSequenceClassification(PreTrainedModel):
    """Encoder, pooling, dropout, and a linear layer."""

    config_class = PooledConfig
    base_model_prefix = "encoder"
    config: PooledConfig

    def __init__(self, config: PooledConfig) -> None:
        super().__init__(config)
        inner: Any = config.of_encoder()
        build: Any = AutoModel.from_config
        self.encoder = build(inner)
        self.encoder.pooler = None  # BERT's, which is not used
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(inner.hidden_size, config.num_labels or 2)
        self.post_init()  # type: ignore[no-untyped-call]  # theirs

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Logits [B, C] of rows [B, L], 0 in the mask at padding."""
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        segments = {} if self.config.type_vocab_size == 1 else {"token_type_ids": token_type_ids}
        encoded = self.encoder(input_ids, attention_mask=attention_mask, **segments)
        vector = pool(encoded.last_hidden_state, attention_mask, self.config.pooling)
        return SequenceClassifierOutput(logits=self.classifier(self.dropout(vector)))


AutoConfig.register(PooledConfig.model_type, PooledConfig)
AutoModelForSequenceClassification.register(PooledConfig, PooledForSequenceClassification)


def pool(states: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """One vector a row, of its real tokens, special ones among them.

    Args:
        states: [B, L, H].
        mask: [B, L], 0 at padding.
        pooling: "cls", "mean" or "max".

    Returns:
        [B, H].
    """
    if pooling == "cls":
        return states[:, 0]
    real = mask[:, :, None].bool()
    if pooling == "max":
        return states.masked_fill(~real, float("-inf")).amax(1)
    return states.masked_fill(~real, 0.0).sum(1) / real.sum(1)


def load_pooled(
    model: str,
    pooling: str,
    *,
    pretrained: bool,
    changes: Mapping[str, Any],
    new_heads: NewHeads | None = None,
) -> PreTrainedModel:
    """A network with a pooled head, in float32.

    Args:
        model: A folder or Hub id of an encoder, or a finetuned folder with this head.
        pooling: "cls", "mean" or "max".
        pretrained: False keeps the architecture and draws every weight anew.
        changes: To the config.
        new_heads: Called with a new head; None: the folder has to have one.

    Raises:
        ConfigError: The family has no encoder to pool.
        DataError: As ``load_network``.
    """
    inner: Any = AutoConfig.from_pretrained(model)
    again = pretrained and isinstance(inner, PooledConfig)
    if isinstance(inner, PooledConfig):
        inner = inner.of_encoder()
    if inner.is_encoder_decoder or inner.model_type in _NO_ENCODERS:
        raise ConfigError(
            f"task.pooling: {model} is a {inner.model_type}, and pooling is for encoders",
            "leave it out: the head is the family's own",
        )
    for name in changes.keys() - set(_OF_THE_HEAD):
        setattr(inner, name, changes[name])
    rate: Any = getattr(inner, "classifier_dropout", None)
    if rate is None:
        rate = getattr(inner, "hidden_dropout_prob", getattr(inner, "dropout", 0.1))
    config = PooledConfig(
        encoder=inner.to_dict(),
        pooling=pooling,
        classifier_dropout=rate,
        initializer_range=inner.initializer_range,
        type_vocab_size=getattr(inner, "type_vocab_size", 1),
        **{name: changes[name] for name in _OF_THE_HEAD if name in changes},
    )
    config.pad_token_id = inner.pad_token_id
    if again:
        loaded: PreTrainedModel = load_over(
            PooledForSequenceClassification, model, config, new_heads
        )[0]
        return loaded
    made = PooledForSequenceClassification(config)
    if inner.model_type in ("bert", "albert"):  # whose published code draws so
        truncated_normal_(made, inner.initializer_range)
    if pretrained:
        tell_or_refuse(model, made, ["classifier"], new_heads)
        source: Any = load_network(AutoModel, model, config=inner, pooler_used=False).network
        source.pooler = None
        made.encoder.load_state_dict(source.state_dict())
    return made
