"""From the name of a config to a frozen config, or to every mistake in its file at once.

Also the way back (a config as YAML), the difference between two configs, the configs that come with
plmctl, and the JSON Schema of each kind for editors. Reading starts in ``load``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from pydantic import ValidationError

from plmctl.config.base import Model
from plmctl.config.document import ConfigFile, Fault, override, read_document, to_yaml
from plmctl.config.mistakes import faults
from plmctl.errors import ConfigError, did_you_mean, near_names, nearest

if TYPE_CHECKING:
    from plmctl.config.evaluate import EvalConfig
    from plmctl.config.finetune import FinetuneConfig
    from plmctl.config.pretrain import PretrainConfig
    from plmctl.config.tokenizer import TokenizerConfig


# --- The four kinds of config ---


M = TypeVar("M", bound=Model)

Kind = Literal["tokenizer", "pretrain", "finetune", "eval"]

KINDS: tuple[Kind, ...] = ("tokenizer", "pretrain", "finetune", "eval")


# The key that only this kind of config has.
_MARKS: dict[Kind, str] = {
    "tokenizer": "algorithm",
    "pretrain": "tokenizer",
    "finetune": "task",
    "eval": "measures",
}


def model_of(kind: Kind) -> type[Model]:
    """The config model of a kind."""
    # Imported one by one: each loads the members of its folders.
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


def kind_of(path: str | Path, overrides: Sequence[str] = ()) -> Kind:
    """Which command a file is for, from its keys.

    Raises:
        ConfigError: It cannot be read, or has the mark of none.
    """
    document = _read(path, overrides)
    for kind, mark in _MARKS.items():
        if mark in document.data:
            return kind
    raise ConfigError(
        f"{document.name}: no config of plmctl",
        "a tokenizer's has the key `algorithm`, pretraining `tokenizer`, finetuning `task`, "
        "evaluation `measures`",
    )


# --- From a file to a config ---


@overload
def load(
    kind: Literal["tokenizer"], path: str | Path, overrides: Sequence[str] = ()
) -> TokenizerConfig: ...
@overload
def load(
    kind: Literal["pretrain"], path: str | Path, overrides: Sequence[str] = ()
) -> PretrainConfig: ...
@overload
def load(
    kind: Literal["finetune"], path: str | Path, overrides: Sequence[str] = ()
) -> FinetuneConfig: ...
@overload
def load(kind: Literal["eval"], path: str | Path, overrides: Sequence[str] = ()) -> EvalConfig: ...
@overload
def load(kind: Kind, path: str | Path, overrides: Sequence[str] = ()) -> Model: ...
def load(kind: Kind, path: str | Path, overrides: Sequence[str] = ()) -> Model:
    """The config in a file, with ``KEY=VALUE`` overrides, later ones over earlier ones.

    Raises:
        ConfigError: Every mistake, each as ``file:line:column: key: what was expected``, or that
            the file is for another command.
    """
    document = _read(path, overrides)
    other = next((k for k, mark in _MARKS.items() if mark in document.data), kind)
    if other != kind and _MARKS[kind] not in document.data:
        command = "train-tokenizer" if other == "tokenizer" else other
        raise ConfigError(
            f"{document.name}: this config is for another command", f"use `plmctl {command}`"
        )
    return _validated(model_of(kind), document)


def parse(model: type[M], path: str | Path) -> M:
    """The config of a known model in a file; errors as ``load``."""
    return _validated(model, _read(path))


def _read(path: str | Path, overrides: Sequence[str] = ()) -> ConfigFile:
    document = read_document(path)
    override(document, overrides)
    return document


def _validated(model: type[M], document: ConfigFile) -> M:
    found: list[Fault] = list(document.faults)
    try:
        # Through JSON, where strict is what a user expects: no "10" for 10, but lists for tuples.
        config = model.model_validate_json(json.dumps(document.data), strict=True)
    except ValidationError as error:
        found += faults(model, document, error.errors(include_url=False))
    if found:
        count = f"{len(found)} mistakes\n  " if len(found) > 1 else ""
        raise ConfigError(count + "\n  ".join(map(str, sorted(found))))
    return config


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
        path: The file.
        kind: Which command it is for.
        place: Its path below ``configs/``, without ``.yaml``: ``pretrain/bert-base``.
        name: What is typed for a command of its kind: ``bert-base``.
    """

    path: Path
    kind: Kind
    place: str
    name: str


def configs_folder() -> Path:
    """The shipped configs: ``configs/`` of the installed package, or of the checkout."""
    package = Path(str(files("plmctl")))
    installed = package / "configs"  # pyproject.toml puts them there
    return installed if installed.is_dir() else package.parent / "configs"


@cache
def shipped_configs() -> tuple[Shipped, ...]:
    """All shipped configs, sorted by path."""
    root, found = configs_folder(), []
    for path in sorted(root.rglob("*.yaml")):
        place = path.relative_to(root).as_posix().removesuffix(".yaml")
        top, _, below = place.partition("/")
        for kind in KINDS:
            if top == kind:
                found.append(Shipped(path, kind, place, below))
            elif top not in KINDS and path.stem == kind:  # demo/pretrain
                found.append(Shipped(path, kind, place, place))
    return tuple(found)


def find_config(given: Path, kinds: Sequence[Kind] = KINDS) -> Path:
    """The file that CONFIG means: a file that exists, or a shipped config by its name.

    Args:
        given: A path, or a name: ``bert-base``, ``pretrain/bert-base``, or the path that the
            config has in the repository, ``configs/pretrain/bert-base.yaml``.
        kinds: What the command takes; they decide where a name is that of several configs.

    Raises:
        ConfigError: No such file and no such name, with near ones; or a name of several configs.
    """
    exists = os.path.exists(given)  # False, where Path.exists() raises: a name of 5,000 characters
    if exists and not given.is_dir():
        return given
    name = _config_name(given)
    named = [one for one in shipped_configs() if name in (one.name, one.place)]
    # A config for another command is returned too: `load` names the command.
    fitting = [one for one in named if one.kind in kinds] or named
    if len(fitting) > 1:
        raise ConfigError(
            f"{given}: {len(fitting)} shipped configs have this name",
            f"write {' or '.join(one.place for one in fitting)}",
        )
    if fitting:
        return fitting[0].path
    if exists:
        return given  # a folder: `load` refuses it
    raise ConfigError(
        f"{given}: no such file, and no shipped config has this name{_near_configs(given, kinds)}",
        "`plmctl config list` names the shipped configs",
    )


def copy_config(path: Path, to: Path) -> None:
    """Write a copy of a config, byte for byte; missing folders above it are made.

    Raises:
        ConfigError: Something has that path already, or it cannot be written there.
    """
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with to.open("xb") as file:
            file.write(path.read_bytes())
    except FileExistsError:
        raise ConfigError(f"{to} exists already", "name another file") from None
    except OSError as error:
        raise ConfigError(f"{to}: cannot be written: {error.strerror}") from None


def _config_name(given: Path) -> str:
    """A path of the repository as a name; a name as it is."""
    bare = given.as_posix().removeprefix("configs/")
    return bare.removesuffix(".yaml").removesuffix(".yml")


def _near_configs(given: Path, kinds: Sequence[Kind]) -> str:
    """``; did you mean 'a' or 'b'?``: files in the same folder, and shipped configs."""
    name = _config_name(given)
    names = [one.name for one in shipped_configs() if one.kind in kinds]
    found = [known for known in names if known.endswith(f"/{name}")]
    if os.path.isdir(given.parent):
        beside = map(str, given.parent.glob("*.y*ml"))
        found += near_names(str(given), beside, 2)
    found += near_names(name, dict.fromkeys(names), _NAMED)
    return did_you_mean(list(dict.fromkeys(found))[:_NAMED])


# --- The JSON Schema of each kind of config, for editors ---


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
