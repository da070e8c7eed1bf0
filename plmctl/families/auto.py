"""Any architecture that transformers has and no other file here: encoders, decoders, or both."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from plmctl.config.base import ModelConfig
from plmctl.errors import ConfigError, did_you_mean
from plmctl.families._generic import (
    FORMS,
    Config,
    Generic,
    GenericEncoder,
    form_of_folder,
    network_classes,
)
from plmctl.folders import check_model

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


class Auto(GenericEncoder, config=Config):
    """What a config with `family: auto` chooses, and what a folder of another architecture is."""

    @classmethod
    def chosen(cls, config: ModelConfig) -> Generic:
        """The form of the architecture, or of the folder of ``init_from``.

        Raises:
            ConfigError: transformers has no such language model; neither is named.
        """
        assert isinstance(config, Config)
        kind, form = config.architecture, config.network
        if config.init_from is not None:
            from plmctl.models.load import config_of

            there = config_of(check_model(config.init_from))
            kind, form = str(there.model_type), form or form_of_folder(there)
        elif kind is None:
            raise ConfigError(
                "model.architecture: missing; the family auto has no network of its own",
                "name one of transformers' architectures, such as `architecture: xlm-roberta`, or "
                "a folder to start from in `init_from`",
            )
        forms = list(network_classes(kind))
        if not forms:
            raise ConfigError(
                f"model.architecture: transformers has no language model of text alone that is "
                f"named {kind!r}{did_you_mean(similar(kind)[:3])}",
                "its names are those of `model_type` in config.json; code from the Hub is not run",
            )
        if form is not None and form not in forms:
            raise ConfigError(
                f"model.network: transformers has no {form.replace('_', '-')} of {kind} with a "
                "language-model head",
                f"it has: {', '.join(forms)}",
            )
        return FORMS[form or forms[0]](config, kind)

    @classmethod
    def of_other(cls, network: PreTrainedConfig) -> Generic | None:
        """See the base class."""
        form = form_of_folder(network)
        return None if form is None else FORMS[form](None, str(network.model_type))


def similar(name: str) -> list[str]:
    """Names of architectures of text like this one; others' configs are not imported for it."""
    from transformers import CONFIG_MAPPING

    names = get_close_matches(name, list(CONFIG_MAPPING.keys()), n=8)
    return [kind for kind in names if network_classes(kind)]
