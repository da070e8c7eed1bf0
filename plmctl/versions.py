"""The versions of packages: what is installed, and what plmctl is tested with."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_CONSTRAINTS = "constraints.txt"


def tested_versions() -> dict[str, str]:
    """Versions by package name, from ``constraints.txt``; empty if the file is missing."""
    package = Path(__file__).parent
    for path in (package / _CONSTRAINTS, package.parent / _CONSTRAINTS):  # installed; a checkout
        if path.is_file():
            lines = path.read_text(encoding="utf-8").splitlines()
            pairs = (line.partition("==") for line in lines if "==" in line)
            return {name.strip().lower(): number.strip() for name, _, number in pairs}
    return {}


def installed_version(name: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
