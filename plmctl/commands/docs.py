"""``plmctl docs``: the pages of the documentation, which come with the package."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from plmctl.config.load import shipped_folder
from plmctl.errors import ConfigError, nearest
from plmctl.reporting.tables import text_table

_CHINESE = "zh"

_HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)


def run(page: str | None, *, chinese: bool) -> None:
    """Print a page, as it is written or, in a terminal, laid out; without a name, all names.

    Args:
        page: Such as ``worth-it`` or ``tasks/tagging#lemmas``, also as links have it.

    Raises:
        ConfigError: There is no such page, or no such part of it.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    folder = shipped_folder("docs")
    pages = pages_in(folder / _CHINESE if chinese else folder)
    if page is None:
        rows = [(name, _title(path.read_text("utf-8"))) for name, path in pages.items()]
        Console().print(text_table("the documentation", ("page", "title"), rows))
        return
    name, _, part = page.removeprefix("docs/").partition("#")
    name = name.removesuffix(".md")
    if name not in pages:
        raise ConfigError(f"no page {name!r}{nearest(name, pages)}", "plmctl docs lists the pages")
    text = pages[name].read_text("utf-8")
    if part:
        text = _part(text, part, name)
    if sys.stdout.isatty():
        Console().print(Markdown(text))
    else:
        print(text, end="")


def pages_in(folder: Path) -> dict[str, Path]:
    """The pages below a folder by name; those of another language are not among them.

    Raises:
        ConfigError: This copy of plmctl has no pages.
    """
    paths = {path.relative_to(folder): path for path in sorted(folder.rglob("*.md"))}
    if not paths:
        raise ConfigError("this copy of plmctl has no documentation", "install it again")
    return {
        place.with_suffix("").as_posix(): path
        for place, path in paths.items()
        if place.parts[0] != _CHINESE
    }


def _title(text: str) -> str:
    heading = _HEADING.search(text)
    return heading[1] if heading else ""


def _part(text: str, part: str, name: str) -> str:
    """From a heading to the end of the page.

    Raises:
        ConfigError: The page has no such heading.
    """
    starts = {_anchor(heading[1]): heading.start() for heading in _HEADING.finditer(text)}
    if part not in starts:
        raise ConfigError(f"no part {part!r} in the page {name}{nearest(part, starts)}")
    return text[starts[part] :]


def _anchor(heading: str) -> str:
    """What a link to a heading has after ``#``."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
