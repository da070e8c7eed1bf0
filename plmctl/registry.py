"""The folder is the registry: ``objectives/mlm.py`` is the objective ``mlm``.

What all members share is in ``base.py``, and what some share in files that begin with ``_``: these
are not members. A name with ``+`` is written ``_and_`` in the file name: ``mlm+nsp`` is
``mlm_and_nsp.py``.
Listing reads file names and imports nothing.
"""

import importlib
from functools import cache
from importlib.resources import files
from inspect import isabstract
from types import ModuleType
from typing import TypeVar

from plmctl.errors import ConfigError, nearest

T = TypeVar("T")


@cache
def names(folder: str) -> tuple[str, ...]:
    """Names of the members of ``plmctl/<folder>``, sorted, without importing them."""
    stems = (
        entry.name.removesuffix(".py")
        for entry in files(f"plmctl.{folder}").iterdir()
        if entry.name.endswith(".py") and entry.name != "base.py" and entry.name[0] != "_"
    )
    return tuple(sorted(stem.replace("_and_", "+") for stem in stems))


def load(folder: str, name: str) -> ModuleType:
    """Import one member.

    Raises:
        ConfigError: No such member; the message has the nearest name.
    """
    if name not in names(folder):
        singular = {"families": "family"}.get(folder, folder.removesuffix("s"))
        raise ConfigError(f"unknown {singular} {name!r}{nearest(name, names(folder))}")
    return importlib.import_module(f"plmctl.{folder}.{name.replace('+', '_and_')}")


def member(folder: str, name: str, base: type[T]) -> type[T]:
    """The class of one member: the subclass of ``base`` that its file defines.

    Raises:
        ConfigError: No such member; the message has the nearest name.
        TypeError: The file does not define exactly one subclass of ``base`` that is not abstract.
    """
    module = load(folder, name)
    classes = {value for value in vars(module).values() if isinstance(value, type)}
    members = [
        one
        for one in classes
        if issubclass(one, base) and one.__module__ == module.__name__ and not isabstract(one)
    ]
    if len(members) != 1:
        defined = ", ".join(sorted(one.__name__ for one in members)) or "none"
        raise TypeError(
            f"{module.__name__} must define exactly one class that extends {base.__name__} and "
            f"has no abstract method left; it defines {defined}"
        )
    return members[0]
