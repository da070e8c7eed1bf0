"""Loading networks with a head on every piece."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForTokenClassification

from plmctl.errors import ConfigError
from plmctl.modeling.auto import config_of
from plmctl.modeling.heads.mixed import MixedConfig, mixed
from plmctl.modeling.heads.relabel import load_over
from plmctl.modeling.initialization import truncated_normal_
from plmctl.modeling.load import NewHeads


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
        pretrained: False keeps the architecture and draws every weight anew.
        mix: The head reads a mix of all layers; a network that was saved so does anyhow.
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
        return mixed(
            model,
            names,
            pretrained=pretrained,
            dropout=dropout,
            changes=changes,
            new_heads=new_heads,
        )
    config = AutoConfig.from_pretrained(model, **names, **changes)
    cls: Any = AutoModelForTokenClassification
    if not pretrained:
        return _published(cls.from_config(config, dtype=torch.float32))
    made, fresh = load_over(cls, model, config, new_heads)
    return _published(made) if "classifier" in fresh else made


def _published(made: Any) -> Any:
    """The new head as BERT's and ALBERT's code draws it."""
    if made.config.model_type in ("bert", "albert"):
        truncated_normal_(made.classifier, made.config.initializer_range)
    return made
