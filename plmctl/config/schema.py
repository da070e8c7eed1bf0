"""The JSON Schema of each kind of config, for editors."""

import json
from typing import Any

from plmctl.config.load import KINDS, model_of
from plmctl.errors import ConfigError, nearest


def json_schema(kind: str) -> str:
    """The JSON Schema of a kind of config.

    Raises:
        ConfigError: No such kind.
    """
    for known in KINDS:
        if kind == known:
            return json.dumps(schema_of(model_of(known)), indent=2, ensure_ascii=False)
    raise ConfigError(f"no kind of config {kind!r}{nearest(kind, KINDS)}")


def schema_of(model: Any) -> dict[str, Any]:
    """A model's schema, in which a member's tag is required and help is in one line."""
    schema: dict[str, Any] = model.model_json_schema()
    tags = {
        reference.removeprefix("#/$defs/"): union["propertyName"]
        for union in _unions(schema)
        for reference in union["mapping"].values()
        if reference != union.get("defaultMapping")
    }
    for name, tag in tags.items():
        # The models have it as a default, so that code may leave it out; a file may not.
        required = schema["$defs"][name].setdefault("required", [])
        required.insert(0, tag)
    _tidy(schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _unions(schema: Any) -> list[dict[str, Any]]:
    """Every discriminator in a schema."""
    if isinstance(schema, list):
        return [union for part in schema for union in _unions(part)]
    if not isinstance(schema, dict):
        return []
    here = [schema["discriminator"]] if "mapping" in schema.get("discriminator", {}) else []
    return here + [union for part in schema.values() for union in _unions(part)]


def _tidy(schema: Any) -> None:
    """Drop the titles that pydantic makes of the names; unwrap the lines of the descriptions."""
    if isinstance(schema, list):
        for part in schema:
            _tidy(part)
    if isinstance(schema, dict):
        if isinstance(schema.get("title"), str):
            del schema["title"]
        if isinstance(schema.get("description"), str):
            schema["description"] = " ".join(schema["description"].split())
        for part in schema.values():
            _tidy(part)
