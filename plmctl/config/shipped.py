"""The configs that come with plmctl: where they are, their names, and which one is meant."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from plmctl.config.load import KINDS, Kind
from plmctl.errors import ConfigError, did_you_mean, near_names

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


def folder() -> Path:
    """The shipped configs: ``configs/`` of the installed package, or of the checkout."""
    package = Path(str(files("plmctl")))
    installed = package / "configs"  # pyproject.toml puts them there
    return installed if installed.is_dir() else package.parent / "configs"


@cache
def shipped() -> tuple[Shipped, ...]:
    """All shipped configs, sorted by path."""
    root, found = folder(), []
    for path in sorted(root.rglob("*.yaml")):
        place = path.relative_to(root).as_posix().removesuffix(".yaml")
        top, _, below = place.partition("/")
        for kind in KINDS:
            if top == kind:
                found.append(Shipped(path, kind, place, below))
            elif top not in KINDS and path.stem == kind:  # demo/pretrain
                found.append(Shipped(path, kind, place, place))
    return tuple(found)


def find(given: Path, kinds: Sequence[Kind] = KINDS) -> Path:
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
    name = _name(given)
    named = [one for one in shipped() if name in (one.name, one.place)]
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
        f"{given}: no such file, and no shipped config has this name{_near(given, kinds)}",
        "`plmctl config list` names the shipped configs",
    )


def copy(path: Path, to: Path) -> None:
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


def _name(given: Path) -> str:
    """A path of the repository as a name; a name as it is."""
    bare = given.as_posix().removeprefix("configs/")
    return bare.removesuffix(".yaml").removesuffix(".yml")


def _near(given: Path, kinds: Sequence[Kind]) -> str:
    """``; did you mean 'a' or 'b'?``: files in the same folder, and shipped configs."""
    name = _name(given)
    names = [one.name for one in shipped() if one.kind in kinds]
    found = [known for known in names if known.endswith(f"/{name}")]
    if os.path.isdir(given.parent):
        beside = map(str, given.parent.glob("*.y*ml"))
        found += near_names(str(given), beside, 2)
    found += near_names(name, dict.fromkeys(names), _NAMED)
    return did_you_mean(list(dict.fromkeys(found))[:_NAMED])
