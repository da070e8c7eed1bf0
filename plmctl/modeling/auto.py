"""Configs of model folders, those of our own networks among them."""

from transformers import AutoConfig, PreTrainedConfig

import plmctl.modeling.elmo  # makes transformers' Auto classes know ELMo
import plmctl.modeling.heads.pooled  # noqa: F401  # and pooled encoders


def config_of(source: str) -> PreTrainedConfig:
    """The config of a model folder or Hub id."""
    config: PreTrainedConfig = AutoConfig.from_pretrained(source)
    return config
