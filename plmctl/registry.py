"""The folder is the registry: ``objectives/mlm.py`` is the objective ``mlm``.

What all members share is in ``base.py``, and what some share in files that begin with ``_``: these
are no members. A name with ``+`` is written ``_and_`` in the file name: ``mlm+nsp`` is
``mlm_and_nsp.py``.
Listing reads file names and imports nothing.
"""

import importlib
from functools import cache
from importlib.resources import files
from types import ModuleType

from plmctl.errors import ConfigError, nearest


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
        raise ConfigError(f"unknown {folder} name {name!r}{nearest(name, names(folder))}")
    return importlib.import_module(f"plmctl.{folder}.{name.replace('+', '_and_')}")
