"""The keys that a kind of config can have, read from its JSON Schema.

For the reference page, ``plmctl config explain`` and shell completion.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from plmctl.errors import near_names

Schema = dict[str, Any]

_TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true, false",
    "null": "empty",
    "object": "keys",
}
_LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


@dataclass(frozen=True)
class ConfigKey:
    """A key that a config can have.

    Attributes:
        name: Dotted; ``[]`` stands for an item of a list: ``train.phases[].steps``.
        member: What the config must name to have it, as in ``objective: {name: mlm}``; empty:
            every config of the kind has it.
        value: What can be written there, for people; a number with its unit or its limits.
        choices: The values, if they can be listed.
        default: As it is written in a config; empty: required, or it depends on other keys.
        required: Whether it must be given; in a section, wherever the section is given.
        section: Whether it only groups the keys below it.
    """

    name: str
    member: str
    value: str
    choices: tuple[str, ...]
    default: str
    required: bool
    help: str
    section: bool


def keys_of(schema: Schema) -> Iterator[ConfigKey]:
    """All keys of a kind of config, and then those of the members that its keys can name."""
    yield from _keys(schema, schema)
    for member, tag, prefix, model, given in members_of(schema):
        for one in _keys(model, schema, prefix, member, given):
            if one.name != prefix + tag:
                yield one


def members_of(schema: Schema) -> Iterator[tuple[str, str, str, Schema, Schema]]:
    """What the keys of a config can name.

    Yields, per member: how a config names it, the key with its name, the prefix of its keys, its
    own schema, and the defaults that the kind has for its keys.
    """
    for key, field in schema["properties"].items():
        union, listed = union_of(field), field.get("type") == "array"
        given = field.get("default") if union else None
        own = resolve({"$ref": union.get("defaultMapping")}, schema) if given else {}
        different = {
            name: value
            for name, value in (given or {}).items()
            if value != own["properties"][name].get("default")
        }
        for name, reference in union.get("mapping", {}).items():
            tag = union["propertyName"]
            written = f"[{{{tag}: {name}}}]" if listed else f"{{{tag}: {name}}}"
            prefix = f"{key}[]." if listed else f"{key}."
            model = resolve({"$ref": reference}, schema)
            yield f"{key}: {written}", tag, prefix, model, different


def _keys(
    model: Schema, schema: Schema, prefix: str = "", member: str = "", given: Schema | None = None
) -> Iterator[ConfigKey]:
    """The keys of a model; ``given`` has defaults that differ from its own."""
    for name, field in model["properties"].items():
        if name in (given or {}):
            field = {**field, "default": (given or {})[name]}
        inner = _section(field, schema)
        items = resolve(field.get("items", {}), schema)
        section = "properties" in resolve(field, schema)
        flat = {**resolve(field, schema), **field}
        yield ConfigKey(
            prefix + name,
            member,
            "keys" if section else _value(flat, schema),
            tuple(_choices(flat, schema)),
            "" if section else _default(flat),
            name in model.get("required", ()),
            flat.get("description", ""),
            section,
        )
        if inner:
            yield from _keys(inner, schema, f"{prefix}{name}.", member)
        elif "properties" in items:
            yield from _keys(items, schema, f"{prefix}{name}[].", member)
        tag = union_of(field).get("propertyName")
        if tag:
            below = f"{prefix}{name}[]." if field.get("type") == "array" else f"{prefix}{name}."
            names = tuple(union_of(field)["mapping"])
            value = f"one of {', '.join(f'`{one}`' for one in names)}"
            default = (field.get("default") or {}).get(tag, "")
            help_ = flat.get("description", "")
            yield ConfigKey(below + tag, member, value, names, default, not default, help_, False)


def _section(field: Schema, schema: Schema) -> Schema:
    """The keys that a field holds, also if it can be empty; none: {}."""
    for part in [field, *field.get("anyOf", ())]:
        model = resolve(part, schema)
        if "properties" in model:
            return model
    return {}


def _value(field: Schema, schema: Schema) -> str:
    """What can stand there, for people."""
    field = {**resolve(field, schema), **field}
    union = union_of(field)
    if union:
        names = ", ".join(f"`{name}`" for name in union["mapping"])
        return f"one or more of {names}" if field.get("type") == "array" else f"one of {names}"
    if "examples" in field:  # a number with a unit
        return "such as " + " or ".join(f"`{example}`" for example in field["examples"])
    if "const" in field or "enum" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if "anyOf" in field:
        return ", or ".join(_value(part, schema) for part in field["anyOf"])
    if field["type"] == "array" and "prefixItems" in field:
        return f"list of {len(field['prefixItems'])}: {_value(field['prefixItems'][0], schema)}"
    if field["type"] == "array":
        items = resolve(field["items"], schema)
        return "list of keys" if "properties" in items else f"list of {_value(items, schema)}"
    limits = [f"{sign} {field[word]:g}" for word, sign in _LIMITS.items() if word in field]
    return " ".join([_TYPES[field["type"]], ", ".join(limits)]).strip()


def _choices(field: Schema, schema: Schema) -> Iterator[str]:
    """The values that can be listed."""
    field = {**resolve(field, schema), **field}
    if field.get("type") == "boolean":
        yield from ("true", "false")
    for value in field.get("enum", [field["const"]] if "const" in field else []):
        yield str(value)
    for part in field.get("anyOf", ()):
        yield from _choices(part, schema)


def _default(field: Schema) -> str:
    value = field.get("default")
    if value is None:
        return "empty" if "default" in field else ""
    # A text that is empty or has line ends cannot be seen without quotes.
    plain = isinstance(value, str) and value.strip() == value and value
    return str(value) if plain else json.dumps(value, ensure_ascii=False)


def union_of(field: Schema) -> Schema:
    """The discriminator of a field that names a member, or of the items of its list; else {}."""
    items = field.get("items", {})
    union: Schema = field.get("discriminator") or items.get("discriminator") or {}
    return union


def resolve(field: Schema, schema: Schema) -> Schema:
    """What a reference refers to; any other field as it is."""
    reference = field.get("$ref")
    target: Schema = schema["$defs"][reference.removeprefix("#/$defs/")] if reference else field
    return target


# --- Finding a key by what was typed ---


def plain_name(name: str) -> str:
    """A key without the places in lists: ``train.phases.0.steps`` is ``train.phases.steps``."""
    parts = (part for part in re.split(r"[.\[\]]+", name) if part and not part.isdecimal())
    return ".".join(parts)


def same_key(keys: Iterable[ConfigKey], name: str) -> list[ConfigKey]:
    """The keys that a name means: several members can have a key of the same name."""
    return [one for one in keys if plain_name(one.name) == plain_name(name)]


def near_keys(keys: Sequence[ConfigKey], name: str, most: int = 3) -> list[str]:
    """Names like one that no key has: first those that end with it, then similar ones."""
    wanted = plain_name(name)
    known = {plain_name(one.name): one.name for one in keys}
    ends = [plain for plain in known if plain.endswith(f".{wanted}")]
    last = [plain for plain in known if near_names(wanted, [plain.rpartition(".")[2]])]
    nearest = dict.fromkeys([*ends, *near_names(wanted, list(known), most), *last])
    return [known[plain] for plain in nearest][:most]
