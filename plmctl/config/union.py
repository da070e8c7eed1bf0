"""The config of any member of a folder, told apart by its name."""

from typing import Annotated, Any, Union

from pydantic import Discriminator

from plmctl import registry


def union_of(folder: str, tag: str) -> Any:
    """The union of the ``Config`` of every member of ``plmctl/<folder>``, by the key ``tag``."""
    members = tuple(registry.load(folder, name).Config for name in registry.names(folder))
    if len(members) == 1:
        return members[0]
    return Annotated[Union[members], Discriminator(tag)]  # noqa: UP007  # built at run time
