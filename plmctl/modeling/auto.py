"""Configs of model folders, those of plmctl's own networks among them."""

from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from plmctl.errors import ConfigError, DataError

_AFTER_PADDING = ("roberta", "xlm-roberta", "camembert")


def config_of(source: str) -> PreTrainedConfig:
    """The config of a model folder or Hub id.

    Raises:
        DataError: It cannot be read, or is of no known kind of model.
    """
    _register_own_networks()
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(source)
    except (OSError, ValueError, KeyError, TypeError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"{source}: its config.json cannot be used: {said}", "copy or export the folder again"
        ) from error
    return config


def _register_own_networks() -> None:
    """Import them, which makes transformers' Auto classes know them."""
    from plmctl.modeling.elmo.network import ElmoModel  # noqa: F401
    from plmctl.modeling.heads.elmo import ElmoForTokenClassification  # noqa: F401
    from plmctl.modeling.heads.mixed import MixedConfig  # noqa: F401
    from plmctl.modeling.heads.pooled import PooledConfig  # noqa: F401


def longest_input(config: PreTrainedConfig) -> int | None:
    """Tokens that a network has positions for; None: any number (T5, ELMo).

    RoBERTa counts its positions from after its padding id.
    """
    from plmctl.modeling.heads.pooled import PooledConfig

    whole: Any = config
    inner = getattr(whole, "encoder", None)
    if isinstance(whole, PooledConfig):
        return longest_input(whole.of_encoder())
    if isinstance(inner, PreTrainedConfig):  # a tagger on a mix of layers
        return longest_input(inner)
    rows = getattr(whole, "max_position_embeddings", None)
    if rows is None:
        return None
    unused = int(whole.pad_token_id or 0) + 1 if whole.model_type in _AFTER_PADDING else 0
    return int(rows) - unused


def refuse_longer(model: str, asked: int, key: str) -> None:
    """Refuse inputs that are longer than a network has positions for.

    Args:
        model: A model folder or Hub id.
        asked: Tokens, special ones included.
        key: The key of the config that asks for them.

    Raises:
        ConfigError: They are too many.
    """
    longest = longest_input(config_of(model))
    if longest is not None and asked > longest:
        raise ConfigError(
            f"{key}: {asked:,} tokens, but {model} has positions for {longest:,}",
            f"{longest} at most; what is longer is cut, or read in windows",
        )
