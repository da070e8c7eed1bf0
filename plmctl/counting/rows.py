"""Which rows are counted, and which of them are held out to choose between settings."""

import importlib
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from plmctl.arrays import Bools
from plmctl.errors import ConfigError
from plmctl.examples.keys import permute, stream

MOST_ROWS = 20_000
"""Training rows at most: about a minute on two cores."""

R = TypeVar("R")


def drawn(rows: Sequence[R], most: int = MOST_ROWS) -> list[R]:
    """At most so many of the rows, in their order; the same in every run."""
    if len(rows) <= most:
        return list(rows)
    places = permute(np.arange(most), len(rows), stream("counted rows"))
    return [rows[place] for place in np.sort(places)]


def held_out(count: int) -> Bools:
    """[N] whether each row is of the fifth that decides between settings."""
    return permute(np.arange(count), count, stream("counted fifth")) < count // 5


_PACKAGES = {"pycrfsuite": "python-crfsuite", "sklearn": "scikit-learn"}  # others by their module


def package(module: str) -> Any:
    """A module of a package that only counting needs.

    Raises:
        ConfigError: It is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        top = module.partition(".")[0]
        missing = isinstance(error, ModuleNotFoundError) and error.name == top
        why = "is not installed" if missing else f"cannot be imported ({error})"
        raise ConfigError(
            f"{_PACKAGES.get(top, top)} {why}: pip install 'plmctl[counting]'"
        ) from error
