"""Configs of model folders, those of plmctl's own networks among them."""

from transformers import AutoConfig, PreTrainedConfig

# These make transformers' Auto classes know them.
import plmctl.modeling.elmo
import plmctl.modeling.heads.elmo
import plmctl.modeling.heads.mixed  # noqa: F401


def config_of(source: str) -> PreTrainedConfig:
    """The config of a model folder or Hub id."""
    config: PreTrainedConfig = AutoConfig.from_pretrained(source)
    return config
