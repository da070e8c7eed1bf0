"""From the name of a config to a frozen config, or to all mistakes in its file at once.

Also the way back (a config as YAML), the difference between two configs, the configs that come with
plmctl, and the JSON Schema of a config model for editors. The models of the four kinds, and
``load``, which reads a config of a kind, are in ``plmctl/run/configs.py``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from plmctl.addresses import INSTEAD, secret_in
from plmctl.config.base import Model
from plmctl.config.document import (
    ConfigFile,
    Fault,
    Key,
    dotted,
    override,
    read_document,
    to_yaml,
)
from plmctl.config.mistakes import faults, texts_typed
from plmctl.errors import ConfigError, did_you_mean, near_names

# --- The four kinds of config ---


M = TypeVar("M", bound=Model)

Kind = Literal["tokenizer", "pretrain", "finetune", "eval"]

KINDS: tuple[Kind, ...] = ("tokenizer", "pretrain", "finetune", "eval")

COMMANDS: dict[Kind, str] = {
    "tokenizer": "train-tokenizer",
    "pretrain": "pretrain",
    "finetune": "finetune",
    "eval": "eval",
}
"""The command that each is for."""


# The key that only this kind of config has.
_MARKS: dict[Kind, str] = {
    "tokenizer": "algorithm",
    "pretrain": "tokenizer",
    "finetune": "task",
    "eval": "measures",
}


def kind_by_keys(keys: Container[str]) -> Kind | None:
    """Which command a config with these keys is for; None: it has the mark of none."""
    return next((kind for kind, mark in _MARKS.items() if mark in keys), None)


def kind_of(path: str | Path, overrides: Sequence[str] = ()) -> Kind:
    """Which command a file is for, from its keys.

    Raises:
        ConfigError: It cannot be read, or has the mark of none.
    """
    return kind_of_document(_read(path, overrides))


def kind_of_document(document: ConfigFile) -> Kind:
    """Like ``kind_of``, for a document that is read already."""
    for kind, mark in _MARKS.items():
        if mark in document.data:
            return kind
    raise ConfigError(
        f"{document.name}: no config of plmctl",
        "a tokenizer's has the key `algorithm`, pretraining `tokenizer`, finetuning `task`, "
        "evaluation `measures`",
    )


# --- From a file to a config ---


def parse(
    model: type[M], path: str | Path, overrides: Sequence[str] = (), kind: Kind | None = None
) -> M:
    """The config in a file, with ``KEY=VALUE`` overrides, later ones over earlier ones.

    Args:
        model: What the file must be.
        overrides: ``KEY=VALUE`` each.
        kind: Refuse a file of another kind by its command; None: as a file with wrong keys.

    Raises:
        ConfigError: Every mistake, each as ``file:line:column: key: what was expected``, or that
            the file is for another command.
    """
    document = _read(path, overrides)
    other = next((k for k, mark in _MARKS.items() if mark in document.data), kind)
    wrong = kind is not None and other != kind and _MARKS[kind] not in document.data
    if wrong and other is not None:
        raise ConfigError(
            f"{document.name}: this config is for another command",
            f"use `plmctl {COMMANDS[other]}`",
        )
    return _validated(model, document)


def _read(path: str | Path, overrides: Sequence[str] = ()) -> ConfigFile:
    document = read_document(path)
    override(document, overrides)
    return document


_MOST_MISTAKES = 50  # shown; to look for a similar key takes a millisecond for each


def _validated(model: type[M], document: ConfigFile) -> M:
    mistakes: list[Fault] = [*document.faults, *_secrets(document)]
    errors: list[ErrorDetails] = []
    try:
        # Through JSON, where strict is what a user expects: no "10" for 10, but lists for tuples.
        config = model.model_validate_json(json.dumps(document.data), strict=True)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        if texts_typed(model, document, errors):
            return _validated(model, document)
        mistakes += faults(model, document, errors[:_MOST_MISTAKES])
    if mistakes:
        lines = list(map(str, sorted(mistakes)))[:_MOST_MISTAKES]
        first = "the first " if len(errors) > _MOST_MISTAKES or len(mistakes) > len(lines) else ""
        count = f"{first}{len(lines)} mistakes\n  " if len(lines) > 1 else ""
        raise ConfigError(count + "\n  ".join(lines))
    return config


def _secrets(document: ConfigFile) -> Iterator[Fault]:
    """Addresses with a password or a signature, which the run folder would keep."""

    def below(value: Any, path: Key) -> Iterator[Fault]:
        inner = value.items() if isinstance(value, dict) else ()
        for key, one in inner or (enumerate(value) if isinstance(value, list) else ()):
            yield from below(one, (*path, key))
        if isinstance(value, str) and (what := secret_in(value)):
            yield Fault(document.place(path), dotted(path), f"{what}: {INSTEAD}")

    return below(document.data, ())


# --- From a config to a file ---


def dump(config: Model) -> str:
    """A config as YAML, every default written out and every unit resolved; ``load`` reads it."""
    return to_yaml(config.model_dump(mode="json"))


def difference(before: Model, after: Model) -> list[str]:
    """What differs, as ``key: before -> after``."""
    old, new = (dict(_leaves(model.model_dump(mode="json"))) for model in (before, after))
    return [
        f"{key}: {_show_value(old, key)} -> {_show_value(new, key)}"
        for key in {**old, **new}
        if _show_value(old, key) != _show_value(new, key)
    ]


def _leaves(data: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Values by dotted key; a list of mappings by number, any other list as a whole."""
    if isinstance(data, list) and any(isinstance(item, dict) for item in data):
        data = dict(enumerate(data))
    if not isinstance(data, dict):
        yield key, data
        return
    for name, value in data.items():
        yield from _leaves(value, f"{key}.{name}" if key else name)


def _show_value(leaves: dict[str, Any], key: str) -> str:
    return json.dumps(leaves[key], ensure_ascii=False) if key in leaves else "(not there)"


# --- The configs that come with plmctl: where they are, their names, and which one is meant ---


_NAMED = 3  # names that a message suggests, at most


@dataclass(frozen=True)
class Shipped:
    """A config that comes with plmctl.

    Attributes:
        place: Its path below ``configs/``, without ``.yaml``: ``pretrain/bert-base``.
        name: What is typed for a command of its kind: ``bert-base``.
    """

    path: Path
    kind: Kind
    place: str
    name: str


def shipped_folder(name: Literal["configs", "docs"]) -> Path:
    """A folder that comes with plmctl: of the installed package, or of the checkout."""
    package = Path(str(files("plmctl")))
    installed = package / name  # pyproject.toml puts it there
    return installed if installed.is_dir() else package.parent / name


def configs_folder() -> Path:
    """The shipped configs."""
    return shipped_folder("configs")


_KIND_OF: dict[str, Kind] = {"fast": "pretrain"}  # folders of configs that are all of one kind


@cache
def shipped_configs() -> tuple[Shipped, ...]:
    """All shipped configs, sorted by path."""
    root, configs = configs_folder(), []
    for path in sorted(root.rglob("*.yaml")):
        place = path.relative_to(root).as_posix().removesuffix(".yaml")
        top, _, below = place.partition("/")
        for kind in KINDS:
            if top == kind:
                configs.append(Shipped(path, kind, place, below))
            elif top not in KINDS and kind in (path.stem, _KIND_OF.get(top)):  # demo/pretrain
                configs.append(Shipped(path, kind, place, place))
    return tuple(configs)


def find_config(requested: Path, kinds: Sequence[Kind] = KINDS) -> Path:
    """The file that CONFIG means: a file that exists, or a shipped config by its name.

    A file of the working directory comes first, also if its ``.yaml`` is left out.

    Args:
        requested: A path, or a name: ``bert-base``, ``pretrain/bert-base``, or the path that the
            config has in the repository, ``configs/pretrain/bert-base.yaml``.
        kinds: What the command takes; they decide where a name is that of several configs.

    Raises:
        ConfigError: No such file and no such name, with near ones; or a name of several configs.
    """
    exists = os.path.exists(
        requested
    )  # False, where Path.exists() raises: a name of 5,000 characters
    if exists and not requested.is_dir():
        return requested
    for suffix in (".yaml", ".yml"):
        if not exists and os.path.isfile(f"{requested}{suffix}"):
            return Path(f"{requested}{suffix}")
    name = _config_name(requested)
    named = [one for one in shipped_configs() if name in (one.name, one.place)]
    fitting = [one for one in named if one.kind in kinds]
    if named and not fitting:
        near = _near_configs(requested, kinds)
        if near:
            raise ConfigError(
                f"{requested}: the config of this name is for `plmctl "
                f"{COMMANDS[named[0].kind]}`{near}",
                "`plmctl config list` names the shipped configs",
            )
        fitting = named  # `load` names the command
    if len(fitting) > 1:
        lines = (f"{one.place} for `plmctl {COMMANDS[one.kind]}`" for one in fitting)
        raise ConfigError(
            f"{requested}: {len(fitting)} shipped configs have this name; write one of",
            "\n  ".join(lines),
        )
    if fitting:
        return fitting[0].path
    if exists:
        return requested  # a folder: `load` refuses it
    raise ConfigError(
        f"{requested}: no such file, and no shipped config has this name"
        f"{_near_configs(requested, kinds)}",
        "`plmctl config list` names the shipped configs",
    )


def is_shipped(path: Path) -> bool:
    """Whether a file is one of the shipped configs."""
    return any(one.path.resolve() == path.resolve() for one in shipped_configs())


def shipped_names() -> frozenset[str]:
    """All names that shipped configs have."""
    return frozenset(name for one in shipped_configs() for name in (one.name, one.place))


def copy_config(path: Path, to: Path) -> None:
    """Write a copy of a config, byte for byte; missing folders above it are made.

    Raises:
        ConfigError: Something has that path already.
        PlmError: It cannot be written there.
    """
    from plmctl.files import write_atomically, writing

    if to.exists() or to.is_symlink():
        raise ConfigError(f"{to} exists already", "name another file")
    with writing(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(to, path.read_bytes())


def _config_name(requested: Path) -> str:
    """A path of the repository as a name; a name as it is."""
    bare = requested.as_posix().removeprefix("configs/")
    return bare.removesuffix(".yaml").removesuffix(".yml")


def _near_configs(requested: Path, kinds: Sequence[Kind]) -> str:
    """``; did you mean 'a' or 'b'?``: files in the same folder, and shipped configs."""
    name = _config_name(requested)
    names = [one.name for one in shipped_configs() if one.kind in kinds]
    suggestions = [known for known in names if known.startswith(f"{name}-")][:2]  # published ones
    suggestions += [known for known in names if known.endswith(f"/{name}")]
    if os.path.isdir(requested.parent):
        beside = map(str, requested.parent.glob("*.y*ml"))
        suggestions += near_names(str(requested), beside, 2)
    suggestions += near_names(name, dict.fromkeys(names), _NAMED)
    return did_you_mean(list(dict.fromkeys(suggestions))[:_NAMED])


# --- The JSON Schema of a config model, for editors ---


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
    _tidy_schema(schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _unions(schema: Any) -> list[dict[str, Any]]:
    """Every discriminator in a schema."""
    if isinstance(schema, list):
        return [union for part in schema for union in _unions(part)]
    if not isinstance(schema, dict):
        return []
    here = [schema["discriminator"]] if "mapping" in schema.get("discriminator", {}) else []
    return here + [union for part in schema.values() for union in _unions(part)]


def _tidy_schema(schema: Any) -> None:
    """Drop the titles that pydantic makes of the names; unwrap the lines of the descriptions."""
    if isinstance(schema, list):
        for part in schema:
            _tidy_schema(part)
    if isinstance(schema, dict):
        if isinstance(schema.get("title"), str):
            del schema["title"]
        if isinstance(schema.get("description"), str):
            schema["description"] = " ".join(schema["description"].split())
        for part in schema.values():
            _tidy_schema(part)
