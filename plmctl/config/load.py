"""From a YAML file to a frozen config, or to every mistake in it at once."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from plmctl.config.base import Model
from plmctl.config.document import Document, Key, read
from plmctl.errors import ConfigError
from plmctl.registry import nearest

M = TypeVar("M", bound=Model)
Kind = Literal["tokenizer", "pretrain", "finetune", "eval"]
KINDS: tuple[Kind, ...] = ("tokenizer", "pretrain", "finetune", "eval")


def model_of(kind: Kind) -> type[Model]:
    """The config model of a command."""
    # One import a kind: each loads the members of its folders.
    if kind == "tokenizer":
        from plmctl.config.tokenizer import TokenizerConfig

        return TokenizerConfig
    if kind == "pretrain":
        from plmctl.config.pretrain import PretrainConfig

        return PretrainConfig
    if kind == "finetune":
        from plmctl.config.finetune import FinetuneConfig

        return FinetuneConfig
    from plmctl.config.evaluate import EvalConfig

    return EvalConfig


def kind_of(path: Path, overrides: tuple[str, ...] = ()) -> Kind:
    """Which command a file is for, from its keys.

    Raises:
        ConfigError: It has the keys of none.
    """
    return _kind(read(path, overrides))


def _kind(document: Document) -> Kind:
    keys = document.data.keys()
    marks: dict[str, Kind] = {
        "algorithm": "tokenizer",
        "measures": "eval",
        "task": "finetune",
        "tokenizer": "pretrain",
    }
    for key, kind in marks.items():
        if key in keys:
            return kind
    raise ConfigError(
        f"{document.name}: for which command is this?",
        "`algorithm` is the mark of a tokenizer's config, `tokenizer` of pretraining, `task` of "
        "finetuning, `measures` of evaluation",
    )


def load(kind: Kind, path: Path, overrides: tuple[str, ...] = ()) -> Any:
    """The config in a file, with overrides.

    Raises:
        ConfigError: Every mistake, each as ``file:line:column: key: what is wrong``.
    """
    return _validated(model_of(kind), read(path, overrides))


def parse(model: type[M], path: Path) -> M:
    """The config of a known model in a file; errors as ``load``."""
    return _validated(model, read(path))


def dump(config: Model) -> str:
    """A config as YAML, every default written out."""
    data = config.model_dump(mode="json")
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def difference(before: Model, after: Model) -> list[str]:
    """What differs, as ``key: before -> after``."""
    old, new = (dict(_leaves(m.model_dump(mode="json"))) for m in (before, after))
    return [
        f"{key}: {_shown(old, key)} -> {_shown(new, key)}"
        for key in {**old, **new}
        if old.get(key) != new.get(key)
    ]


def _shown(leaves: dict[str, Any], key: str) -> str:
    return json.dumps(leaves[key], ensure_ascii=False) if key in leaves else "(not there)"


def _leaves(data: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(data, dict):
        yield prefix, data
        return
    for key, value in data.items():
        yield from _leaves(value, f"{prefix}.{key}" if prefix else key)


def _validated(model: type[M], document: Document) -> M:
    faults = list(document.faults)
    try:
        # Through JSON, where strict is what a user expects: no "10" for 10, but lists for tuples.
        config = model.model_validate_json(json.dumps(document.data, default=str), strict=True)
    except ValidationError as error:
        faults += _faults(model, document, error.errors(include_url=False))
    if faults:
        many = f"{len(faults)} mistakes:\n  " if len(faults) > 1 else ""
        raise ConfigError(many + "\n  ".join(faults))
    return config


def _faults(model: type[Model], document: Document, errors: list[ErrorDetails]) -> Iterator[str]:
    """One line a key: the branches of a union that all failed are put together."""
    by_path: dict[Key, list[ErrorDetails]] = {}
    for error in errors:
        by_path.setdefault(_path(document.data, error), []).append(error)
    for path, found in by_path.items():
        messages = list(dict.fromkeys(_message(model, document.data, path, e) for e in found))
        # "expected an integer" or "expected 'auto'": one sentence
        text = messages[0] + "".join(f", or {m.removeprefix('expected ')}" for m in messages[1:])
        key = ".".join(map(str, path)) or "config"
        yield f"{document.place(path)}: {key}: {text}"


def _path(data: Any, error: ErrorDetails) -> Key:
    """The key path of an error: pydantic's location without the tags of its unions."""
    path: list[str | int] = []
    at = data
    for part in error["loc"]:
        if (isinstance(at, dict) and part in at) or (
            isinstance(at, list) and isinstance(part, int)
        ):
            path.append(part)
            at = at[part]
    if error["type"] == "missing":
        path.append(error["loc"][-1])
    return tuple(path)


def _message(model: type[Model], data: Any, path: Key, error: ErrorDetails) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        known = _model_at(model, data, path[:-1]).model_fields
        return f"unknown key{nearest(str(path[-1]), known)}"
    if kind == "missing":
        return "this key is needed"
    if kind == "union_tag_not_found":
        return f"needs {context['discriminator']}"
    if kind == "union_tag_invalid":
        known = [tag.strip(" '") for tag in str(context["expected_tags"]).split(",")]
        return (
            f"unknown {context['discriminator']} {context['tag']!r}{nearest(context['tag'], known)}"
        )
    if kind == "literal_error":
        return f"expected {context['expected']}, not {_short(error['input'])}"
    text = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    text = text if text.startswith("expected") else f"expected {text}"
    return f"{text}, not {_short(error['input'])}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _model_at(model: type[BaseModel], data: Any, path: Key) -> type[BaseModel]:
    """The model of the mapping at a path; of a union the one that the data's tag names."""
    for part in path:
        data = data[part]
        if isinstance(part, str) and part in model.model_fields:
            found = list(_models(model.model_fields[part].annotation))
            model = next((m for m in found if _tagged(m, data)), found[0] if found else model)
    return model


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is not None:
        for part in typing.get_args(annotation):
            yield from _models(part)


def _tagged(model: type[BaseModel], data: Any) -> bool:
    if not isinstance(data, dict):
        return False
    fields = model.model_fields
    return any(tag in fields and data.get(tag) == fields[tag].default for tag in ("name", "family"))
