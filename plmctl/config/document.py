"""Config files: YAML with the place of every key, overrides, and writing YAML.

The files are YAML 1.2: no duplicate keys, no objects, and ``1e-4`` is a number. Every key and value
keeps its place in the file, so that a mistake found later can name line and column.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from plmctl.addresses import shown
from plmctl.errors import ConfigError, read_error

# --- A file with the place of every key ---


Key = tuple[str | int, ...]

_TAG = "tag:yaml.org,2002:"

# Bounds that no config of a person comes near; a file beyond them is another kind of file, or was
# made to fill the memory. The longest shipped config has 2 kB, 60 values and 5 levels.
_MOST_BYTES = 1_000_000
_MOST_VALUES = 50_000
_MOST_LEVELS = 30
_LARGEST = 2**63 - 1  # of 64 bits
_LARGEST_FLOAT = 1e38  # of 32 bits, nearly
_TOO_DEEP = f"more than {_MOST_LEVELS} levels of keys and lists"


# PyYAML's words for the mistakes that people make most, and what they mean.
_PLAIN = {
    "found character '\\t'": "a tab; YAML indents with spaces",
    "mapping values are not allowed here": "a second `: ` in a line, or a wrong indentation",
    "expected <block end>": "a wrong indentation, or a list item without its `- `",
    "found unexpected end of stream": "a quote that is not closed",
    "expected ',' or ']'": "a `[` without its `]`, or items without a comma between them",
    "expected ',' or '}'": "a `{` without its `}`, or keys without a comma between them",
    "but found another document": "a second document (`---`); a file holds one config",
    "found character": "a character that has a meaning in YAML; put the value in quotes",
    "found undefined alias": "a value that begins with `*`; put it in quotes",
    "expected alphabetic or numeric": "a value that begins with `*` or `&`; put it in quotes",
}


@dataclass(frozen=True, order=True)
class Place:
    """A position in a config file, or an override; places sort in reading order.

    Attributes:
        line: From 1; 0 for the file as a whole, and beyond all lines for overrides.
        column: From 1.
        text: ``file:line:column``, ``file`` or ``override KEY=VALUE``.
    """

    line: int
    column: int
    text: str


@dataclass(frozen=True, order=True)
class Fault:
    """One mistake: where, at which key (empty: none in particular), and what was expected."""

    place: Place
    key: str
    what: str

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.place.text, self.key, self.what)))


@dataclass(frozen=True)
class ConfigFile:
    """A config file as plain data, with overrides applied.

    Attributes:
        faults: What is wrong whatever the config is for: keys that are there twice, bad overrides.
        typed: What was typed in overrides for values that are not text, such as ``1`` or nothing: a
            shell takes the quotes away that would make it text.
    """

    name: str
    data: dict[str, Any]
    places: dict[Key, Place] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    typed: dict[Key, str] = field(default_factory=dict)

    def place(self, path: Key) -> Place:
        """The place of a key, or of the nearest key around it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, Place(0, 0, self.name))


class Loader(yaml.SafeLoader):
    """YAML 1.2's core schema: ``1e-4`` is a number; ``yes``, ``on`` and ``no`` are text."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}


for _name, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    # 10_000 is not YAML 1.2, but the docs and many people write it.
    ("int", r"[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
):
    Loader.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_pattern})$"), _first)


def _read_int(text: str) -> int:
    # Not int(text, 0), which refuses 007; and YAML 1.1 would read 010 as eight.
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


def _read_float(text: str) -> float:
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


def _read_str(text: str) -> str:
    text.encode()  # "\\ud800" is half a character: a ValueError here, not when it is printed
    if "\0" in text:
        raise ValueError("no file name can have it")
    return text


_SCALARS: dict[str, Callable[[str], Any]] = {
    f"{_TAG}null": lambda text: None,
    f"{_TAG}bool": lambda text: text.lower() == "true",
    f"{_TAG}int": _read_int,
    f"{_TAG}float": _read_float,
    f"{_TAG}str": _read_str,
}


@dataclass(frozen=True)
class Builder:
    """Makes plain data of YAML nodes, and notes where each key is.

    Attributes:
        places: Filled, by key path.
        faults: Filled.
        typed: Filled, by key path: the scalars that are not text, as they were typed.
    """

    place: Callable[[yaml.Node], Place]
    places: dict[Key, Place]
    faults: list[Fault]
    typed: dict[Key, str] = field(default_factory=dict)

    def build(self, node: yaml.Node, path: Key, around: tuple[yaml.Node, ...] = ()) -> Any:
        """The data of a node.

        Args:
            around: The nodes that it is in.

        Raises:
            ConfigError: Too many levels or values; aliases count as what they stand for.
        """
        if node in around:
            return self._fault(node, path, "an alias (`*`) of what it is in")
        if len(around) >= _MOST_LEVELS:
            raise ConfigError(f"{self.place(node).text}: {_TOO_DEEP}")
        if len(self.places) > _MOST_VALUES:
            raise ConfigError(
                f"{self.place(node).text}: more than {_MOST_VALUES:,} values, those of aliases "
                "(`*`) included"
            )
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return self._mapping(node, path, (*around, node))
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            for index, item in enumerate(node.value):
                self.places[(*path, index)] = self.place(item)
            inner = (*around, node)
            return [self.build(item, (*path, n), inner) for n, item in enumerate(node.value)]
        try:
            value = _SCALARS[node.tag](str(node.value))
        except (KeyError, ValueError):
            return self._fault(node, path, f"cannot be read as {node.tag.removeprefix(_TAG)}")
        if value is not None and not isinstance(value, str):
            self.typed[path] = str(node.value)
        if isinstance(value, int) and abs(value) > _LARGEST:
            return self._fault(node, path, f"beyond {_LARGEST:,}, the largest whole number")
        if isinstance(value, float) and _LARGEST_FLOAT < abs(value) < math.inf:
            return self._fault(node, path, f"beyond {_LARGEST_FLOAT:g}, the largest number")
        return value

    def _mapping(
        self, node: yaml.MappingNode, path: Key, around: tuple[yaml.Node, ...]
    ) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or not key.value.isprintable():
                self._fault(key, path, "a key is text in one line")
                continue
            name = str(key.value)
            here = (*path, name)
            if name in data:
                self._fault(key, here, "this key is here twice")
            self.places[here] = self.place(key)
            data[name] = self.build(value, here, around)
        return data

    def _fault(self, node: yaml.Node, path: Key, what: str) -> None:
        self.faults.append(Fault(self.place(node), dotted(path), what))


def dotted(path: Key) -> str:
    """A key path as text: ``optim.lr``."""
    return ".".join(map(str, path))


def read_document(path: str | Path) -> ConfigFile:
    """Read a config file.

    Raises:
        ConfigError: No such file, no UTF-8, no YAML, nothing in it, or more than a config has.
    """
    path = Path(path)
    text = _read_text(path)
    try:
        node = yaml.compose(text, Loader)
    except yaml.YAMLError as error:
        raise ConfigError(_not_yaml(error, text, str(path))) from None
    except RecursionError:  # PyYAML's parser calls itself for each level
        raise ConfigError(f"{path}: {_TOO_DEEP}") from None
    if not isinstance(node, yaml.MappingNode):
        what = "the file is empty" if node is None else "expected `key: value` lines"
        raise ConfigError(f"{path}: {what}", "`plmctl config list` names files to begin with")

    def place(at: yaml.Node) -> Place:
        line, column = at.start_mark.line + 1, at.start_mark.column + 1
        return Place(line, column, f"{path}:{line}:{column}")

    places: dict[Key, Place] = {}
    faults: list[Fault] = []
    data = Builder(place, places, faults).build(node, ())
    if not isinstance(data, dict):  # a tag on the whole file
        raise ConfigError("\n  ".join(map(str, faults)))
    return ConfigFile(str(path), data, places, faults)


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ConfigError(f"{path}: too long for a config (more than {_MOST_BYTES:,} bytes)")
        return content.decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file", "`plmctl config list` names the shipped configs"
        ) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8", "save the file as UTF-8") from None
    except OSError as error:
        refused = ConfigError(f"{path}: cannot be read: {error.strerror}")
        raise read_error(error, refused) from None


def _not_yaml(error: yaml.YAMLError, text: str, name: str) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return f"{name}:{line}: not YAML: a control character"
    if not isinstance(error, yaml.MarkedYAMLError):
        return f"{name}: not YAML: {error}"
    problem = error.problem or ""
    what = next((plain for start, plain in _PLAIN.items() if problem.startswith(start)), problem)
    # For an unclosed quote and for a wrong alias, the place where it starts helps.
    opened = problem.startswith(("found unexpected end of stream", "expected alphabetic"))
    mark = (error.context_mark if opened else None) or error.problem_mark
    where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
    return f"{where}: not YAML: {what}"


# --- Overrides: ``KEY=VALUE`` from the command line, put into the data of a file ---


_AFTER_ALL_LINES = 10**9


def override(document: ConfigFile, overrides: Sequence[str]) -> None:
    """Apply overrides to a document; later ones win.

    Values are YAML, lists included; a number in a key is an item of a list (``measures.0.rate=1``).
    An override that cannot be applied becomes one of the document's faults.
    """
    for number, assignment in enumerate(overrides):
        label = shown(assignment)
        label = label if len(label) <= 60 else f"{label[:57]}..."
        place = Place(_AFTER_ALL_LINES, number, f"override {label}")
        what = _apply_override(document, assignment, place)
        if what:
            document.faults.append(Fault(place, "", what))


def _apply_override(document: ConfigFile, assignment: str, place: Place) -> str | None:
    """Apply one override; returns the mistake, None if there is none."""
    key, separator, value = assignment.partition("=")
    if not separator or not all(key.split(".")):
        return "expected KEY=VALUE, as in optim.lr=1e-3"
    try:
        node = yaml.compose(value, Loader)
    except yaml.YAMLError:
        return f"the value is not YAML; put it in quotes, as in '{key}=\"...\"'"
    except RecursionError:
        return _TOO_DEEP
    path = _override_path(document.data, key.split("."))
    for by_key in (document.places, document.typed):
        for known in [known for known in by_key if known[: len(path)] == path]:
            del by_key[known]  # the places within the old value
    if not value.strip():
        document.typed[path] = ""
    builder = Builder(lambda _: place, document.places, document.faults, document.typed)
    if not _set_value(document.data, path, builder.build(node, path) if node else None):
        return "the list has no such item"
    for depth in range(1, len(path)):
        # A mapping that is in the file keeps its place in the file.
        document.places.setdefault(path[:depth], place)
    document.places[path] = place
    return None


def take_as_text(document: ConfigFile, path: Key) -> bool:
    """Replace the value of an override by the text that was typed; False: it has none."""
    text = document.typed.pop(path, None)
    return text is not None and _set_value(document.data, path, text)


def _override_path(data: Any, parts: list[str]) -> Key:
    """Numbers become indices where the data has a list."""
    path: list[str | int] = []
    for part in parts:
        number = int(part) if isinstance(data, list) and part.isdecimal() else part
        path.append(number)
        if isinstance(data, list):
            data = data[number] if isinstance(number, int) and number < len(data) else None
        else:
            data = data.get(number) if isinstance(data, dict) else None
    return tuple(path)


def _set_value(data: Any, path: Key, value: Any) -> bool:
    """Set a value, making the mappings on the way; False where a list lacks the item."""
    for depth, part in enumerate(path, start=1):
        if isinstance(data, list) and (not isinstance(part, int) or part >= len(data)):
            return False
        inner = data[int(part)] if isinstance(data, list) else data.get(part)
        if depth == len(path):
            inner = value
        elif not isinstance(inner, dict | list):
            inner = {}
        data[part] = inner
        data = inner
    return True


# --- Writing: plain data as YAML that any reader takes for the same data ---


class _Dumper(yaml.SafeDumper):
    """Quotes what YAML 1.1 or 1.2 would not take for text, and keeps short lists in a line."""


# PyYAML's own rules are those of 1.1, to which `1e-4` is text: a run folder of that name needs
# its quotes as well as one named `yes`.
for _letter, _rules in Loader.yaml_implicit_resolvers.items():
    for _rule_tag, _rule in _rules:
        _Dumper.add_implicit_resolver(_rule_tag, _rule, [_letter])


def _write_list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.Node:
    flow = not any(isinstance(item, dict | list) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=flow)


def _write_str(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    # Only this style escapes the rarer line breaks; in the others PyYAML folds them away.
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"'
    )


_Dumper.add_representer(list, _write_list)
_Dumper.add_representer(str, _write_str)


def to_yaml(data: dict[str, Any]) -> str:
    """Data as block YAML, in the order of its keys."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
