"""The versions of packages: what is installed, what plmctl requires, and what it is tested with."""

import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

_CONSTRAINTS = "constraints.txt"


def tested_versions() -> dict[str, str]:
    """Versions by canonical name, from ``constraints.txt``; empty if the file is missing."""
    from packaging.utils import canonicalize_name

    package = Path(__file__).parent
    for path in (package / _CONSTRAINTS, package.parent / _CONSTRAINTS):  # installed; a checkout
        if path.is_file():
            lines = path.read_text(encoding="utf-8").splitlines()
            pairs = (line.partition("==") for line in lines if "==" in line)
            return {canonicalize_name(name.strip()): number.strip() for name, _, number in pairs}
    return {}


def requirements() -> list[str]:
    """What plmctl requires, extras included; of a checkout that is not installed, by its file."""
    try:
        return requires("plmctl") or []
    except PackageNotFoundError:
        path = Path(__file__).parents[1] / "pyproject.toml"
        if not path.is_file():
            return []
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        extras = project["optional-dependencies"].items()
        needed: list[str] = project["dependencies"]
        return needed + [f"{one}; extra == '{extra}'" for extra, lines in extras for one in lines]


def installed_version(name: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
