"""Heads that classify whole texts, and choose among texts (multiple choice).

First loading a network with its head; then the forward of each kind of head: encoders with
transformers' own head, decoders on the last token of a text, encoders with a head over all vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
    GPT2DoubleHeadsModel,
    OpenAIGPTDoubleHeadsModel,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput

from plmctl import hub
from plmctl.errors import ConfigError
from plmctl.models.decoder import hidden_states
from plmctl.models.load import (
    NewHeads,
    config_of,
    load_encoder,
    load_with_labels,
    report_or_refuse,
    without_pooler,
)
from plmctl.models.parameters import add_token_embeddings, initialize_head_as_published

# --- Loading a network with its head ---


_CHOICE = {"openai-gpt": OpenAIGPTDoubleHeadsModel, "gpt2": GPT2DoubleHeadsModel}
"""Where AutoModelForMultipleChoice has none."""


@dataclass(frozen=True)
class TokenIds:
    """What a network gets from its tokenizer.

    Attributes:
        pad: The padding token, for a network whose config names none.
        new: Tokens that finetuning adds to the family's vocabulary (GPT-1).
    """

    pad: int | None
    new: tuple[int, ...]


def load_classifier(
    model: str,
    tokens: TokenIds,
    *,
    pretrained: bool,
    changes: Mapping[str, Any],
    choice: bool = False,
    new_heads: NewHeads | None = None,
) -> PreTrainedModel:
    """A network with a head on whole texts, in float32.

    Args:
        model: A model folder or Hub id.
        tokens: The special tokens of its tokenizer, with its family's template.
        pretrained: False keeps the architecture and draws random weights.
        changes: Changes to its config.
        choice: One number per option, for multiple choice.
        new_heads: Called with a new head; None: the folder has to have one.

    Raises:
        ConfigError: The family has no such head.
        DataError: As ``load_network``.
    """
    config: Any = config_of(model)
    cls = _class_with_head(model, config, choice)
    if config.pad_token_id is None:  # transformers' GPT classes find the last token by it
        config.pad_token_id = tokens.pad
    for name, value in changes.items():
        setattr(config, name, value)
    if pretrained:
        network, fresh = load_with_labels(cls, model, config, new_heads)
    else:
        network = cls.from_config(config, dtype=torch.float32) if _is_auto(cls) else cls(config)
        fresh = [""]  # all of it
    for module in map(network.get_submodule, fresh):
        initialize_head_as_published(module, config)
    if tokens.new and max(tokens.new) >= network.get_input_embeddings().num_embeddings:
        add_token_embeddings(network, list(tokens.new))
    classifier: PreTrainedModel = network
    return classifier


def _class_with_head(model: str, config: Any, choice: bool) -> Any:
    """The class of the network with its head.

    Raises:
        ConfigError: There is none.
    """
    task = "multiple_choice" if choice else "classification"
    if config.is_encoder_decoder:
        raise ConfigError(
            f"{model}: a {config.model_type} writes text and has no head for {task}",
            "use the task text_to_text",
        )
    if choice and config.model_type in _CHOICE:
        return _CHOICE[config.model_type]
    auto: Any = AutoModelForMultipleChoice if choice else AutoModelForSequenceClassification
    if type(config) not in auto._model_mapping:  # noqa: SLF001  # transformers has no accessor
        raise ConfigError(f"{model}: a {config.model_type} has no head for {task}")
    return auto


def _is_auto(cls: Any) -> bool:
    return cls in (AutoModelForMultipleChoice, AutoModelForSequenceClassification)


# --- Encoders: transformers' own forward, with the inputs that the network takes ---


def classify_with_encoder(model: Any, **inputs: Tensor) -> dict[str, Tensor]:
    """Logits of a network ``...ForSequenceClassification``.

    Args:
        model: An encoder with its head.
        **inputs: input_ids, attention_mask and, of some tokenizers, token_type_ids, [B, L].

    Returns:
        label: [B, C].
    """
    return {"label": model(**_known_inputs(model, inputs)).logits}


def choose_with_encoder(model: Any, options: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
    """Logits of a network ``...ForMultipleChoice``.

    Args:
        model: An encoder with its head.
        options: [B, O], false where an item has fewer options.
        **inputs: As ``classify``, [B, O, L].

    Returns:
        choice: [B, O], minus infinity where there is no option.
    """
    logits: Tensor = model(**_known_inputs(model, inputs)).logits
    return {"choice": logits.masked_fill(~options, float("-inf"))}


def _known_inputs(model: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without segments where the network has one only (RoBERTa) or none (DistilBERT)."""
    if getattr(model.config, "type_vocab_size", None) in (None, 1):
        return {name: value for name, value in inputs.items() if name != "token_type_ids"}
    return inputs


# --- Decoders: the last token of a text (GPT-1, GPT-2 and GPT-3) ---
#
# The weights are those of transformers' classes, the forward is here. transformers' own reads the
# last token that is not the padding token, and so skips an end-of-text token of the text; and it
# has neither GPT-1's dropout before the head nor its language model.


def is_decoder(model: Any) -> bool:
    """Whether a network reads from left to right: its heads look at a text's last token."""
    return str(model.config.model_type) in ("openai-gpt", "gpt2")


def classify_with_decoder(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    lm_cells: Tensor | None = None,
    options: Tensor | None = None,
) -> dict[str, Tensor]:
    """Logits of a ``GPT2ForSequenceClassification`` or ``OpenAIGPTForSequenceClassification``.

    Args:
        model: One of these.
        input_ids: [B, L], or [B, 2, L] for a pair in both orders, whose vectors are added.
        attention_mask: As input_ids, 0 at padding, which is at the end.
        lm_cells: [K] positions of the flattened batch whose next token is predicted; None: none.
        options: Not used: a pair has both its orders.

    Returns:
        label: [B, C]; lm: [K, V], from the token embeddings, which GPT-1 ties.
    """
    states, last = _states_and_last(model, input_ids, attention_mask)
    vector = last.view(*input_ids.shape[:-1], -1)
    vector = vector.sum(1) if input_ids.dim() == 3 else vector
    if model.config.model_type == "openai-gpt":
        vector = dropout(vector, model.config.summary_first_dropout, model.training)
    logits = {"label": model.score(vector)}
    if lm_cells is not None:
        logits["lm"] = _next_token_logits(model, states, lm_cells)
    return logits


def choose_with_decoder(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    options: Tensor,
    lm_cells: Tensor | None = None,
) -> dict[str, Tensor]:
    """Logits of a ``GPT2DoubleHeadsModel`` or ``OpenAIGPTDoubleHeadsModel``.

    Args:
        model: One of these.
        input_ids: [B, O, L], one text per option.
        attention_mask: As input_ids, 0 at padding, which is at the end.
        options: [B, O], false where an item has fewer options.
        lm_cells: As in ``classify``.

    Returns:
        choice: [B, O], minus infinity where there is no option; lm: [K, V].
    """
    states, last = _states_and_last(model, input_ids, attention_mask)
    vectors = last.view(*input_ids.shape[:2], -1)
    rate = model.config.summary_first_dropout
    if model.training and rate > 0:  # one mask per item, so that its options are compared fairly
        vectors = vectors * dropout(torch.ones_like(vectors[:, :1]), rate)
    scores = model.multiple_choice_head.summary(vectors).squeeze(-1)
    logits = {"choice": scores.masked_fill(~options, float("-inf"))}
    if lm_cells is not None:
        logits["lm"] = _next_token_logits(model, states, lm_cells)
    return logits


def _states_and_last(
    model: Any, input_ids: Tensor, attention_mask: Tensor
) -> tuple[Tensor, Tensor]:
    """States [S * L, H] of S texts, and the state [S, H] of each one's last token.

    Padding is at the end, where no token of a causal network sees it: without a mask.
    """
    ids, lengths = input_ids.flatten(0, -2), attention_mask.flatten(0, -2).sum(1)
    states = hidden_states(model, ids)
    rows = torch.arange(len(ids), device=ids.device)
    return states.flatten(0, 1), states[rows, lengths - 1]


def _next_token_logits(model: Any, states: Tensor, positions: Tensor) -> Tensor:
    return linear(states[positions], model.get_input_embeddings().weight)


# --- Encoders with a classifier over all vectors: their mean, their maximum, or the first one's ---
#
# transformers' classes have no such head. Importing this module makes its Auto classes know ours. A
# folder has its own model type, so that nothing else reads the weights as BERT's own head.


_OF_THE_HEAD = ("num_labels", "id2label", "label2id", "problem_type")

_NO_ENCODERS = ("openai-gpt", "gpt2", "elmo")


class PooledConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]  # theirs
    """Config of an encoder and of the pooling of its vectors.

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
        self.encoder = without_pooler(build(inner))
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
    """One vector per row, of its real tokens, special ones among them.

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
        pretrained: False keeps the architecture and draws random weights.
        changes: To the config.
        new_heads: Called with a new head; None: the folder has to have one.

    Raises:
        ConfigError: The family has no encoder to pool.
        DataError: As ``load_network``.
    """
    inner: Any = AutoConfig.from_pretrained(hub.local(model))
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
        loaded: PreTrainedModel = load_with_labels(
            PooledForSequenceClassification, model, config, new_heads
        )[0]
        return loaded
    network = PooledForSequenceClassification(config)
    initialize_head_as_published(network, inner)
    if pretrained:
        report_or_refuse(model, network, ["classifier"], new_heads)
        network.encoder.load_state_dict(load_encoder(model, inner).state_dict())
    return network
