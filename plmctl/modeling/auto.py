"""Configs of model folders, those of plmctl's own networks among them."""

from transformers import AutoConfig, PreTrainedConfig

# These make transformers' Auto classes know them.
import plmctl.modeling.elmo
import plmctl.modeling.heads.elmo
import plmctl.modeling.heads.mixed
import plmctl.modeling.heads.pooled  # noqa: F401


def config_of(source: str) -> PreTrainedConfig:
    """The config of a model folder or Hub id."""
    config: PreTrainedConfig = AutoConfig.from_pretrained(source)
    return config


def longest_input(config: PreTrainedConfig) -> int:
    """Tokens that an encoder has positions for; RoBERTa counts them from after its padding id."""
    unused = config.pad_token_id + 1 if config.model_type == "roberta" else 0
    return int(config.max_position_embeddings - unused)
