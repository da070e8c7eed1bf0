"""Whether transformers still has what a fast path relies on."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from operator import attrgetter
from typing import Any


def require_parameters(function: Callable[..., Any], *names: str) -> None:
    """Check that a method that we override or call has these parameters, in this order.

    Raises:
        ImportError: It has others.
    """
    present = [name for name in signature(function).parameters if name != "self"]
    if present[: len(names)] != list(names):
        raise ImportError(
            f"{function.__module__}.{function.__qualname__} has the parameters "
            f"{', '.join(present)}, not {', '.join(names)}"
        )


def require_attributes(owner: Any, *names: str) -> None:
    """Check that an object has these attributes, dotted names among them.

    Raises:
        ImportError: One is missing.
    """
    for name in names:
        try:
            attrgetter(name)(owner)
        except AttributeError as error:
            raise ImportError(f"{type(owner).__name__} has no {name}") from error
