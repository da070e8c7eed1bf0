"""The schema and the reference page say what the models say."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plmctl import registry
from plmctl.config.load import KINDS, Kind
from plmctl.errors import ConfigError
from plmctl.run.configs import json_schema, model_of

ROOT = Path(__file__).parents[2]


def schema(kind: Kind) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(json_schema(kind))
    return parsed


def mappings(schema: Any) -> Iterator[dict[str, Any]]:
    for definition in [schema, *schema.get("$defs", {}).values()]:
        if "properties" in definition:
            yield definition


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_but_the_models_keys(kind: Kind) -> None:
    definition = schema(kind)
    assert list(definition["properties"]) == list(model_of(kind).model_fields)
    for mapping in mappings(definition):
        assert mapping["additionalProperties"] is False
        assert mapping["description"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_of_plmctl_is_described(kind: Kind) -> None:
    definition = schema(kind)
    for name, mapping in {"": definition, **definition.get("$defs", {})}.items():
        # Members are their owners'; a network's fields have transformers' own names.
        if name == "Config" or name.startswith("plmctl__"):
            continue
        for key, field in mapping.get("properties", {}).items():
            assert "description" in field or "$ref" in field, f"{name}.{key}"


def test_a_member_needs_its_tag_and_has_its_keys() -> None:
    definition = schema("pretrain")
    union = definition["properties"]["model"]["discriminator"]
    assert union["propertyName"] == "family"
    assert tuple(union["mapping"]) == registry.names("families")
    for name, reference in union["mapping"].items():
        member = definition["$defs"][reference.removeprefix("#/$defs/")]
        assert "family" in member["required"]
        assert member["properties"]["family"]["const"] == name
        config = registry.load("families", name).Config
        assert list(member["properties"]) == list(config.model_fields)


def test_units_may_be_text() -> None:
    steps = schema("pretrain")["$defs"]["Phase"]["properties"]["steps"]
    number, empty = steps["anyOf"]  # no steps with a budget
    assert {part["type"] for part in number["anyOf"]} == {"integer", "string"}
    assert empty == {"type": "null"}


def test_an_unknown_kind() -> None:
    with pytest.raises(ConfigError, match=r"no kind of config 'pretrian'; did you mean 'pretrain'"):
        json_schema("pretrian")


def test_the_reference_page_is_up_to_date() -> None:
    script = str(ROOT / "scripts" / "config_reference.py")
    done = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
