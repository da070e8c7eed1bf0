"""The configs described from their models: JSON Schema for editors, a reference page for people."""

import json

from plmctl.config.load import KINDS, model_of
from plmctl.errors import ConfigError
from plmctl.registry import nearest


def json_schema(kind: str) -> str:
    """The JSON Schema of a kind of config.

    Raises:
        ConfigError: No such kind.
    """
    for known in KINDS:
        if kind == known:
            return json.dumps(model_of(known).model_json_schema(), indent=1, ensure_ascii=False)
    raise ConfigError(f"no kind of config {kind!r}{nearest(kind, KINDS)}")
