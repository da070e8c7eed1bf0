"""Loading networks with the heads that whole texts are classified by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
    GPT2DoubleHeadsModel,
    OpenAIGPTDoubleHeadsModel,
    PreTrainedModel,
)

from plmctl.errors import ConfigError
from plmctl.modeling.auto import config_of
from plmctl.modeling.gpt1_attention import fuse
from plmctl.modeling.heads.decoder import add_rows
from plmctl.modeling.heads.relabel import load_over
from plmctl.modeling.initialization import truncated_normal_
from plmctl.modeling.load import NewHeads

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
        tokens: Of its tokenizer, with its family's template.
        pretrained: False keeps the architecture and draws every weight anew.
        changes: To its config.
        choice: One number an option, for multiple choice.
        new_heads: Called with a new head; None: the folder has to have one.

    Raises:
        ConfigError: The family has no such head.
        DataError: As ``load_network``.
    """
    config: Any = config_of(model)
    cls = _class(model, config, choice)
    if config.pad_token_id is None:  # transformers' GPT classes find the last token by it
        config.pad_token_id = tokens.pad
    for name, value in changes.items():
        setattr(config, name, value)
    if pretrained:
        made, fresh = load_over(cls, model, config, new_heads)
    else:
        made = cls.from_config(config, dtype=torch.float32) if _is_auto(cls) else cls(config)
        fresh = [""]  # all of it
    if config.model_type in ("bert", "albert"):  # whose published code draws so
        for module in map(made.get_submodule, fresh):
            truncated_normal_(module, config.initializer_range)
    if tokens.new and max(tokens.new) >= made.get_input_embeddings().num_embeddings:
        add_rows(made, list(tokens.new))
    whole: PreTrainedModel = fuse(made) if config.model_type == "openai-gpt" else made
    return whole


def _class(model: str, config: Any, choice: bool) -> Any:
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
