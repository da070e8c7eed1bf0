"""YAML files with the place of every key: YAML 1.2 numbers, no duplicate keys, no objects."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from plmctl.errors import ConfigError
from plmctl.registry import nearest

Key = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """A config file as plain data, with overrides put in.

    Attributes:
        data: Dicts, lists and scalars.
        places: ``file:line:column`` (or ``override KEY=VALUE``) of each key path.
        name: The file.
    """

    data: dict[str, Any]
    places: dict[Key, str]
    name: str
    faults: list[str] = field(default_factory=list)

    def place(self, path: Key) -> str:
        """Where a key is, or the nearest key around it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, self.name)


class _Loader(yaml.SafeLoader):
    """YAML 1.2 scalars: ``1e-4`` is a number; ``yes``, ``on`` and ``no`` are strings."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith((":null", ":merge"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9][0-9_]*$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)


def _int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    # YAML 1.1 would read 010 as eight.
    return int(str(loader.construct_scalar(node)).replace("_", ""))


_Loader.add_constructor("tag:yaml.org,2002:int", _int)


def read(path: Path, overrides: tuple[str, ...] = ()) -> Document:
    """Read a config file and put overrides in, later ones over earlier ones.

    Raises:
        ConfigError: No such file, bad YAML, or an override that is not KEY=VALUE.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        folder = path.parent
        files = sorted(p.name for p in folder.glob("*.yaml")) if folder.is_dir() else []
        raise ConfigError(
            f"{path}: no such file" + (nearest(path.name, files) if files else ""),
            "`plmctl config list` shows the configs that are shipped",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    places: dict[Key, str] = {}
    faults: list[str] = []
    try:
        node = yaml.compose(text, _Loader)
        if node is not None:
            _locate(node, (), str(path), places, faults)
        data = yaml.load(text, _Loader)  # noqa: S506  # _Loader is a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise ConfigError(f"{where}: not YAML: {error.problem}") from None
    if not isinstance(data, dict):
        what = "the file is empty" if data is None else "expected `key: value` lines"
        raise ConfigError(f"{path}: {what}", "`plmctl config list` shows examples")
    for override in overrides:
        _override(data, places, override)
    return Document(data, places, str(path), faults)


def _locate(
    node: yaml.Node, path: Key, name: str, places: dict[Key, str], faults: list[str]
) -> None:
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            here = (*path, key.value)
            place = f"{name}:{key.start_mark.line + 1}:{key.start_mark.column + 1}"
            if key.value in seen:
                faults.append(f"{place}: {'.'.join(map(str, here))}: this key is here twice")
            seen.add(key.value)
            places[here] = place
            _locate(value, here, name, places, faults)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            here = (*path, index)
            places[here] = f"{name}:{item.start_mark.line + 1}:{item.start_mark.column + 1}"
            _locate(item, here, name, places, faults)


def _override(data: dict[str, Any], places: dict[Key, str], override: str) -> None:
    name, separator, value = override.partition("=")
    if not separator or not all(name.split(".")):
        raise ConfigError(f"override {override!r}: expected KEY=VALUE, as in optim.lr=1e-3")
    try:
        parsed = yaml.load(value, _Loader)  # noqa: S506  # _Loader is a SafeLoader
    except yaml.YAMLError:
        raise ConfigError(f"override {override!r}: the value is not YAML") from None
    path: Key = tuple(int(part) if part.isdigit() else part for part in name.split("."))
    at: Any = data
    for depth, part in enumerate(path):
        last = depth == len(path) - 1
        if isinstance(at, list) and isinstance(part, int) and part < len(at):
            at[part] = parsed if last else at[part]
        elif isinstance(at, dict):
            if last:
                at[part] = parsed
            elif not isinstance(at.get(part), dict | list):
                at[part] = {}
        else:
            raise ConfigError(f"override {override!r}: there is no {name!r} to set")
        at = at[part]
        places[path[: depth + 1]] = f"override {override}"
