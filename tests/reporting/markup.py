"""A strict reader of HTML: what is not closed in its order, or asks for something, is an error."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"br", "col", "hr", "img", "link", "meta"}
ASKING = {"src", "href", "srcset", "action", "poster", "data", "background", "xlink:href"}


@dataclass
class Elements:
    """The elements of a document, in order: tag, attributes, text inside."""

    elements: list[tuple[str, dict[str, str | None], list[str]]] = field(default_factory=list)

    def texts(self, tag: str) -> list[str]:
        return ["".join(text) for name, _, text in self.elements if name == tag]

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes, _ in self.elements if name == tag]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.document = Elements()
        self.open: list[tuple[str, list[str]]] = []

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), f"an attribute twice on {tag}"
        links = [value for name, value in attributes if name in ASKING]
        inside = [value for value in links if value.startswith("#")]  # of the page itself
        assert links == inside, f"{tag} asks for something"
        assert tag not in {"script", "link", "iframe", "img", "object", "base"}
        text: list[str] = []
        self.document.elements.append((tag, dict(attributes), text))
        if tag not in VOID:
            self.open.append((tag, text))

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> without a beginning"
        assert self.open.pop()[0] == tag, f"</{tag}> out of order"

    def handle_data(self, data):
        for _, text in self.open:
            text.append(data)


def read(document: str) -> Elements:
    """The elements of a document that is whole."""
    assert document.startswith("<!DOCTYPE html>")
    reader = _Reader()
    reader.feed(document)
    reader.close()
    assert not reader.open, f"not closed: {reader.open}"
    style = "".join(reader.document.texts("style"))
    assert "@import" not in style
    assert "url(" not in style
    return reader.document
