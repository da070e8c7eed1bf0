"""pydantic's errors as messages for the person who wrote the file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from plmctl.config.base import MembersOf, members_in, models_in
from plmctl.config.document import ConfigFile, Fault, Key, dotted, take_as_text
from plmctl.errors import did_you_mean, near_names, nearest

# What was expected, by pydantic's type of error and the values of its context.
_EXPECTED = {
    "string_type": "text",
    "string_too_short": "a text that is not empty",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of fewer digits",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list, as in [a, b]",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "{ge:g} or more",
    "less_than": "less than {lt:g}",
    "less_than_equal": "{le:g} or less",
    "too_short": "{min_length} or more items",
    "too_long": "{max_length} items or fewer",
    "literal_error": "{expected}",
}

_MAPPING = "keys with values, as in {{key: value}}"
_EXPECTED |= dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), _MAPPING)


def faults(
    model: type[BaseModel], document: ConfigFile, errors: Iterable[ErrorDetails]
) -> list[Fault]:
    """One fault per key, even if several branches of a union failed at it."""
    by_key: dict[Key, list[ErrorDetails]] = {}
    for error in errors:
        # Not a mistake: this default depends on other keys, and one of those is wrong.
        if error["type"] != "default_factory_not_called":
            by_key.setdefault(_path(model, document.data, error), []).append(error)
    # A misspelt key is one mistake, not an unknown key and a missing one.
    misspelt = {
        (*path[:-1], near)
        for path, (error, *_) in by_key.items()
        if error["type"] == "extra_forbidden"
        for near in near_names(str(path[-1]), _keys(model, document.data, path[:-1]))
    }
    mistakes = []
    for path, errors_here in by_key.items():
        # What counts is the wrong item, not that its list is no number, or too short without it.
        if any(other != path and other[: len(path)] == path for other in by_key):
            errors_here = [e for e in errors_here if not e["type"].endswith(("_type", "_short"))]
        if errors_here and not (path in misspelt and errors_here[0]["type"] == "missing"):
            what = _explain(model, document.data, path, errors_here)
            mistakes.append(Fault(document.place(path), dotted(path), what))
    return mistakes


def texts_typed(
    model: type[BaseModel], document: ConfigFile, errors: Iterable[ErrorDetails]
) -> bool:
    """Take overrides as text where a text was expected, as in ``task.tags=1``; False: no such."""
    paths = [_path(model, document.data, e) for e in errors if e["type"] == "string_type"]
    return bool([path for path in paths if take_as_text(document, path)])


def _path(model: type[BaseModel], data: Any, error: ErrorDetails) -> Key:
    """The key path of an error: pydantic's location without the branches of its unions."""
    path: list[str | int] = []
    root, member_named = data, False
    for part in error["loc"]:
        # The branch that a tag names comes first; a key may have the same name as the branch.
        if not member_named and _is_member(model, root, tuple(path), part):
            member_named = True
            continue
        inside = part in data if isinstance(data, dict) else False
        if isinstance(data, list) and isinstance(part, int):
            inside = part < len(data)
        if inside:
            path.append(part)
            data, member_named = data[part], False
    last = error["loc"][-1] if error["loc"] else ""
    if error["type"] == "missing" and isinstance(last, str):
        path.append(last)
    if error["type"] == "union_tag_invalid":
        path.append(_tag(error))
    return tuple(path)


def _is_member(model: type[BaseModel], root: Any, path: Key, part: str | int) -> bool:
    members, _, at = _field(model, root, path)
    return members is not None and isinstance(at, dict) and members.named(at) == part


def _tag(error: ErrorDetails) -> str:
    return str(error["ctx"]["discriminator"]).strip("'()")


def _explain(model: type[BaseModel], data: Any, path: Key, errors: list[ErrorDetails]) -> str:
    error = errors[0]
    kind, value = error["type"], error["input"]
    if kind == "extra_forbidden":
        return f"unknown key{nearest(str(path[-1]), _keys(model, data, path[:-1]))}"
    if kind == "missing":
        item = isinstance(error["loc"][-1], int)
        return f"expected more items, not {_short(value)}" if item else "this key is needed"
    if kind == "union_tag_not_found":
        return f"needs `{_tag(error)}:`; one of {', '.join(_names(model, data, path))}"
    if kind == "union_tag_invalid":
        tag = value[path[-1]]
        return f"unknown name {_short(tag)}{nearest(str(tag), _names(model, data, path[:-1]))}"
    messages = [_validator_message(error) for error in errors]
    plain = [text for text in messages if not text.startswith("expected ")]
    if plain:  # a model's own words about several keys
        return "; ".join(plain)
    expected = ", or ".join(dict.fromkeys(text.removeprefix("expected ") for text in messages))
    names = re.findall("'([^']+)'", expected) if kind == "literal_error" else []
    near = did_you_mean(near_names(str(value), names))
    return f"expected {expected}, not {_short(value)}{near}{_example(path, value)}"


def _example(path: Key, value: Any) -> str:
    """How to write what was probably meant, for a value that the command line cannot say."""
    if path[:1] == ("grid",) and isinstance(value, dict):
        name, values = next(iter(value.items()), ("KEY", "[a, b]"))
        return f"; name the whole key: grid='{{{dotted((*path[1:], name))}: {_short(values)}}}'"
    return ""


def _validator_message(error: ErrorDetails) -> str:
    kind = error["type"]
    if kind == "value_error":
        return error["msg"].removeprefix("Value error, ")
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind].format(**error.get('ctx', {}))}"
    return f"expected {error['msg'].removeprefix('Input should be ')}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _names(model: type[BaseModel], data: Any, path: Key) -> list[str]:
    """The members that a field can name."""
    members, _, _ = _field(model, data, path)
    return list(members.models()) if members else []


def _keys(model: type[BaseModel], data: Any, path: Key) -> list[str]:
    """The keys that a mapping can have."""
    members, models, at = _field(model, data, path)
    return list((members.model(at) if members else models[0]).model_fields)


def _field(
    model: type[BaseModel], data: Any, path: Key
) -> tuple[MembersOf | None, list[type[BaseModel]], Any]:
    """What the value at a path can be, and the value."""
    members: MembersOf | None = None
    models = [model]
    for part in path:
        if isinstance(part, str) and (members or models):  # else a name that the user gave
            owner = members.model(data) if members else models[0]
            field = owner.model_fields[part]
            members = members_in(field.annotation, tuple(field.metadata))
            models = list(models_in(field.annotation, tuple(field.metadata)))
        data = data[part]
    return members, models, data
