"""HTML whose text is always escaped: ``element`` escapes what is not ``Html``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from plmctl.files import write_atomically, writing
from plmctl.formatting import format_value

_VOID = frozenset({"br", "col", "hr", "img", "link", "meta"})


_NOT_ALLOWED = re.compile(r"[\x00-\x08\x0b-\x1f\ud800-\udfff]")


class Html(str):
    """Markup; any other string is text."""

    __slots__ = ()


def escape(value: object) -> Html:
    """Text as markup; markup is returned unchanged."""
    if isinstance(value, Html):
        return value
    text = str(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # Control characters and halves of surrogate pairs, which damaged text may contain, are not
    # allowed in XML 1.0 and HTML.
    plain = _NOT_ALLOWED.sub("\N{REPLACEMENT CHARACTER}", text)
    return Html(plain.replace('"', "&quot;").replace("'", "&#39;"))


def element(name: str, /, *children: object, **attributes: object) -> Html:
    """An element.

    Args:
        name: ``td``, ``svg`` ...
        children: Text, which is escaped, or markup.
        attributes: ``class_`` is ``class`` and ``data_name`` is ``data-name``; True: the bare
            name; False and None: no attribute.
    """
    markup = "".join(
        _attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items()
    )
    inside = "".join(map(escape, children))
    if name in _VOID:
        return Html(f"<{name}{markup}>")
    return Html(f"<{name}{markup}>{inside}</{name}>")


def join(*parts: object) -> Html:
    """Text, which is escaped, and markup, one after the other."""
    return Html("".join(map(escape, parts)))


def table(
    columns: Sequence[object], rows: Sequence[Sequence[object]], *, numbers: bool = True
) -> Html:
    """A table whose first column names the rows.

    Args:
        columns: The header: text or markup.
        rows: Values, which are formatted, or markup.
        numbers: The other columns are numbers; False: text.
    """
    style = "number" if numbers else "text"
    head = [element("th", name, class_=style if at else None) for at, name in enumerate(columns)]
    body = [
        element(
            "tr",
            element("th", first, scope="row"),
            *(
                element("td", v if isinstance(v, Html) else format_value(v), class_=style)
                for v in values
            ),
        )
        for first, *values in rows
    ]
    return element(
        "table", element("thead", element("tr", *head)) if head else "", element("tbody", *body)
    )


def panel(content: object, **attributes: object) -> Html:
    """A box; what is wider than the page scrolls inside it."""
    return element("div", content, class_="panel scroll", **attributes)


def page(title: str, *body: object) -> str:
    """A whole document with its style sheet inside; it loads no other file."""
    style = Html(files("plmctl.reporting").joinpath("report.css").read_text(encoding="utf-8"))
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", style),
    )
    return f"<!DOCTYPE html>\n{element('html', head, element('body', *body), lang='en')}\n"


def _attribute(name: str, value: object) -> str:
    if value is True:
        return f" {name}"
    return "" if value is False or value is None else f' {name}="{escape(value)}"'


def save_page(path: Path, text: str) -> None:
    """Write a page; missing folders above it are made.

    Raises:
        PlmError: The page cannot be written.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)


PALETTE = 7  # colors in the style sheet


def swatch(place: int) -> Html:
    """The color of a run in the plots."""
    return element("span", class_=f"swatch c{place % PALETTE}")
