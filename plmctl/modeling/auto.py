"""Configs of model folders, those of ELMo among them."""

from transformers import AutoConfig, PreTrainedConfig

import plmctl.modeling.elmo  # noqa: F401  # makes transformers' Auto classes know ELMo


def config_of(source: str) -> PreTrainedConfig:
    """The config of a model folder or Hub id."""
    config: PreTrainedConfig = AutoConfig.from_pretrained(source)
    return config
