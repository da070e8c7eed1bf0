"""``KEY=VALUE`` from the command line, put into a config file's data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from plmctl.config.document import Builder, Document, Fault, Key, Loader, Place

_AFTER_ALL_LINES = 10**9


def override(document: Document, overrides: Sequence[str]) -> None:
    """Put overrides into a document just read, later ones over earlier ones.

    Values are YAML, lists included; a number in a key is an item of a list (``measures.0.rate=1``).
    An override that cannot be put in becomes one of the document's faults.
    """
    for number, given in enumerate(overrides):
        shown = given if len(given) <= 60 else f"{given[:57]}..."
        place = Place(_AFTER_ALL_LINES, number, f"override {shown}")
        what = _override(document, given, place)
        if what:
            document.faults.append(Fault(place, "", what))


def _override(document: Document, given: str, place: Place) -> str | None:
    """Put one in, or say what is wrong with it."""
    key, separator, value = given.partition("=")
    if not separator or not all(key.split(".")):
        return "expected KEY=VALUE, as in optim.lr=1e-3"
    try:
        node = yaml.compose(value, Loader)
    except yaml.YAMLError:
        return f"the value is not YAML; put it in quotes, as in '{key}=\"...\"'"
    path = _path(document.data, key.split("."))
    for known in [known for known in document.places if known[: len(path)] == path]:
        del document.places[known]  # what was written there is gone with its old value
    builder = Builder(lambda _: place, document.places, document.faults)
    if not _put(document.data, path, builder.build(node, path) if node else None):
        return "the list has no such item"
    for depth in range(1, len(path)):
        # A mapping that the file has keeps its place there.
        document.places.setdefault(path[:depth], place)
    document.places[path] = place
    return None


def _path(data: Any, parts: list[str]) -> Key:
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


def _put(data: Any, path: Key, value: Any) -> bool:
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
