"""Heads that classify whole texts, and choose among texts (multiple choice).

First loading a network with its head; then the forward of each kind of head: encoders with
transformers' own head, decoders on the last token of a text, encoders with a head over all vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModelForSequenceClassification,
    OpenAIGPTForSequenceClassification,
    PreTrainedModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput

from plmctl.models.decoder import hidden_states, states_at
from plmctl.models.encoder import first_tokens_only
from plmctl.models.load import (
    HeadSource,
    OwnHeadConfig,
    changed_config,
    config_of,
    load_with_labels,
)
from plmctl.models.own_heads import EncoderWithHead, encoder_config, load_own_head
from plmctl.models.parameters import add_token_embeddings

# --- Loading a network with its head ---


InitializeHead = Callable[[nn.Module, Any], None]
"""``Family.initialize_head``: of a head, or of a whole network, and its config."""


def load_classifier(
    cls: Any,
    start: HeadSource,
    changes: Mapping[str, Any],
    *,
    new_ids: Sequence[int] = (),
    initialize: InitializeHead,
) -> PreTrainedModel:
    """A network with a head on whole texts, in float32.

    Args:
        cls: A class with the head, or an Auto class.
        start: The model that it starts from; its tokenizer has its family's template.
        new_ids: Tokens that finetuning adds to the family's vocabulary (GPT-1).

    Raises:
        DataError: As ``load_network``.
    """
    config = changed_config(start.model, changes)
    if config.pad_token_id is None:  # transformers' GPT classes find the last token by it
        config.pad_token_id = start.tokenizer.pad_token_id
    network, new = load_with_labels(cls, start, config)
    for module in map(network.get_submodule, new):
        initialize(module, config)
    if new_ids and max(new_ids) >= network.get_input_embeddings().num_embeddings:
        add_token_embeddings(network, list(new_ids))
    classifier: PreTrainedModel = network
    return classifier


# --- Encoders: transformers' own forward, with the inputs that the network takes ---


def classify_with_encoder(model: Any, **inputs: Tensor) -> dict[str, Tensor]:
    """Logits of a network ``...ForSequenceClassification``.

    Args:
        **inputs: input_ids, attention_mask and, of some tokenizers, token_type_ids, [B, L].

    Returns:
        label: [B, C].
    """
    known = _known_inputs(model, inputs)
    return {"label": model(**known, **_first_tokens_only(model, known)).logits}


def choose_with_encoder(model: Any, options: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
    """Logits of a network ``...ForMultipleChoice``.

    Args:
        options: [B, O], false where an item has fewer options.
        **inputs: As ``classify``, [B, O, L].

    Returns:
        choice: [B, O], minus infinity where there is no option.
    """
    known = _known_inputs(model, inputs)
    logits: Tensor = model(**known, **_first_tokens_only(model, known)).logits
    return {"choice": logits.masked_fill(~options, float("-inf"))}


def _known_inputs(model: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inputs without segments if the network has one only (RoBERTa) or none (DistilBERT)."""
    if getattr(model.config, "type_vocab_size", None) in (None, 1):
        return {name: value for name, value in inputs.items() if name != "token_type_ids"}
    return inputs


def _first_tokens_only(model: Any, inputs: dict[str, Tensor]) -> dict[str, Any]:
    """Options with which a network leaves out what its head on the first token does not read."""
    if isinstance(model, PooledForSequenceClassification):  # it may read more, and asks by itself
        return {}
    return first_tokens_only(model.base_model, inputs)


# --- Decoders: the last token of a text (GPT, Llama) ---
#
# The weights are those of transformers' classes. What is computed between them is here, since
# theirs takes the last token that is not the padding token, which passes over a text's own
# end-of-text, and has neither GPT-1's dropout before the head nor its language model beside it.


def is_decoder(model: Any) -> bool:
    """Whether a network reads from left to right: its heads look at a text's last token."""
    kind = type(model.base_model.config)
    masked = kind in MODEL_FOR_MASKED_LM_MAPPING  # BERT's can be made causal, too
    return kind in MODEL_FOR_CAUSAL_LM_MAPPING and not masked


def classify_with_decoder(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    lm_cells: Tensor | None = None,
    options: Tensor | None = None,
) -> dict[str, Tensor]:
    """Logits of a decoder's class ``...ForSequenceClassification``.

    Args:
        input_ids: [B, L], or [B, 2, L] for a pair in both orders, whose vectors are added.
        attention_mask: As input_ids, 0 at padding, which is at the end.
        lm_cells: [K] positions in the flattened batch whose next token is predicted; None: of none.
        options: Not used: a pair has both its orders.

    Returns:
        label: [B, C]; lm: [K, V], from the token embeddings, which GPT-1 ties.
    """
    last, predicted = _last_and_next(model, input_ids, attention_mask, lm_cells)
    vector = last.view(*input_ids.shape[:-1], -1)
    vector = vector.sum(1) if input_ids.dim() == 3 else vector
    if isinstance(model, OpenAIGPTForSequenceClassification):
        vector = dropout(vector, model.config.summary_first_dropout, model.training)
    *_, head = (part for part in model.children() if isinstance(part, nn.Linear))  # score, mostly
    return {"label": head(vector), **predicted}


def choose_with_decoder(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    options: Tensor,
    lm_cells: Tensor | None = None,
) -> dict[str, Tensor]:
    """Logits of a ``GPT2DoubleHeadsModel`` or ``OpenAIGPTDoubleHeadsModel``.

    Args:
        input_ids: [B, O, L], a text an option.
        attention_mask: As input_ids, 0 at padding, which is at the end.
        options: [B, O], false where an item has fewer options.
        lm_cells: As in ``classify``.

    Returns:
        choice: [B, O], minus infinity where there is no option; lm: [K, V].
    """
    last, predicted = _last_and_next(model, input_ids, attention_mask, lm_cells)
    vectors = last.view(*input_ids.shape[:2], -1)
    rate = model.config.summary_first_dropout
    if model.training and rate > 0:  # one mask an item, so that its options are compared fairly
        vectors = vectors * dropout(torch.ones_like(vectors[:, :1]), rate)
    scores = model.multiple_choice_head.summary(vectors).squeeze(-1)
    return {"choice": scores.masked_fill(~options, float("-inf")), **predicted}


def _last_and_next(
    model: Any, input_ids: Tensor, attention_mask: Tensor, lm_cells: Tensor | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """The state [S, H] of the last token of S texts, and the logits "lm" of next tokens, if any.

    Padding is at the end, where no token of a causal network sees it: without a mask.
    """
    ids, real = input_ids.flatten(0, -2), attention_mask.flatten(0, -2)
    last_S = real.sum(1) - 1
    if lm_cells is None:
        return states_at(model, ids, last_S), {}
    states = hidden_states(model, ids, attention_mask=real)
    lm = linear(states.flatten(0, 1)[lm_cells], model.get_input_embeddings().weight)
    return states[torch.arange(len(ids), device=ids.device), last_S], {"lm": lm}


# --- Encoders with a classifier over all vectors: their mean, their maximum, or the first one's ---
#
# Importing this module makes transformers' Auto classes know the network.


_OF_THE_HEAD = ("num_labels", "id2label", "label2id", "problem_type")


class PooledConfig(OwnHeadConfig):
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


class PooledForSequenceClassification(EncoderWithHead):
    """Encoder, pooling, dropout, and a linear layer."""

    config_class = PooledConfig
    config: PooledConfig

    def __init__(self, config: PooledConfig) -> None:
        super().__init__(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(self.encoder.config.hidden_size, config.num_labels or 2)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Logits [B, C] of rows [B, L], 0 in the mask at padding."""
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        segments = {} if self.config.type_vocab_size == 1 else {"token_type_ids": token_type_ids}
        first = first_tokens_only(self.encoder, inputs) if self.config.pooling == "cls" else {}
        encoded = self.encoder(**inputs, **segments, **first)
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
    start: HeadSource, pooling: str, changes: Mapping[str, Any], initialize: InitializeHead
) -> PreTrainedModel:
    """A network with a pooled head, in float32.

    Args:
        start: An encoder, or a finetuned folder with this head.
        pooling: "cls", "mean" or "max".

    Raises:
        DataError: As ``load_network``.
    """
    encoder = pooled_encoder(config_of(start.model))
    for name in changes.keys() - set(_OF_THE_HEAD):
        setattr(encoder, name, changes[name])
    rate: Any = getattr(encoder, "classifier_dropout", None)
    if rate is None:
        rate = getattr(encoder, "hidden_dropout_prob", getattr(encoder, "dropout", 0.1))
    config = PooledConfig(
        encoder=encoder.to_dict(),
        pooling=pooling,
        classifier_dropout=rate,
        initializer_range=encoder.initializer_range,
        type_vocab_size=getattr(encoder, "type_vocab_size", 1),
        **{name: changes[name] for name in _OF_THE_HEAD if name in changes},
    )
    config.pad_token_id = encoder.pad_token_id
    return load_own_head(
        PooledForSequenceClassification,
        start,
        config,
        initialize=lambda network: initialize(network, encoder),
    )


def pooled_encoder(config: Any) -> Any:
    """The config of the encoder whose vectors are pooled, in a folder with this head or any."""
    return encoder_config(config) if config.model_type == PooledConfig.model_type else config
