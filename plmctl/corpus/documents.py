"""Files as people have them, as text: html, pdf, docx, epub, markdown, programs, subtitles, wikis.

A library reads each format, and knows what of a page is no running text. The libraries are those of
the extra `documents`, and are imported when the first file that needs them is read. Whatever is
wrong with a file is a ``LeftOut``; documents that came before it stay.
"""

from __future__ import annotations

import bz2
import re
import signal
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from posixpath import normpath
from types import FrameType
from typing import Any
from urllib.parse import unquote

from plmctl.characters import KANA, SYLLABLES
from plmctl.corpus.document import Inflated, likely_encoding, open_bytes, read_lines
from plmctl.corpus.source import Source, ending, is_program
from plmctl.corpus.tabular import rows, text_column
from plmctl.errors import DataError

INSTALL = "pip install 'plmctl[documents]'"

LONGEST = 100_000_000
"""Bytes of the longest document: those of `data.max_document`, so that it is read later, too."""

_WHOLE = 50_000_000  # bytes of a file, or of a part of one, that a library reads as a whole

_UNPACKED = 1_000_000_000  # bytes of all parts of a docx or epub

_SECONDS = 600  # for a file that a library reads as a whole

Chapters = Iterator[tuple[str, str]]
"""Name and text of each document of a file; the name of a file's only one is empty."""


class LeftOut(Exception):
    """A file, or the rest of one, that gives no document.

    Args:
        reason: One of a few, by which files are counted.
        detail: What is wrong with this file, or what to do.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


UNKNOWN, EMPTY, BROKEN = "unknown format", "no text", "broken"
ENCODING, ENCRYPTED, LARGE = "not UTF-8", "encrypted", "too large"
NO_LIBRARY, SCANNED = "no library", "scanned pdf: pictures without text"


def read(path: Path, encoding: str | None = None) -> Chapters:
    """The documents of a file.

    Args:
        encoding: How files of plain text that are not UTF-8 are read; None: they are left out.

    Raises:
        LeftOut: It has none, or the rest of it cannot be read.
    """
    form = format_of(path)
    if form.needs is not None and find_spec(form.needs) is None:
        raise LeftOut(NO_LIBRARY, INSTALL)
    any_text = False
    try:
        with _time_limit(0 if form.streamed else _SECONDS):
            for name, text in form.read(path, encoding):
                if text := _clean(text):
                    any_text = True
                    yield name, text
    except LeftOut:
        raise
    except Inflated:
        raise LeftOut(LARGE, "unpacked, it is absurdly large: unpack it first") from None
    except DataError as error:
        raise LeftOut(BROKEN, error.message.removeprefix(f"{path}:")) from None
    except _TookTooLong:
        raise LeftOut(LARGE, f"reading it took more than {_SECONDS} seconds") from None
    except MemoryError:
        raise LeftOut(LARGE, "there is not enough memory to read it") from None
    except ModuleNotFoundError:
        raise LeftOut(NO_LIBRARY, INSTALL) from None
    except ImportError as error:  # the library is there, and one that it needs is not
        raise LeftOut(NO_LIBRARY, " ".join(str(error).split())) from None
    except Exception as error:  # of a library, which may raise anything about a damaged file
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise LeftOut(BROKEN, first[:200]) from error
    if not any_text:
        raise LeftOut(SCANNED if form.name == _PDF.name else EMPTY)


class _TookTooLong(BaseException):
    """A library must not catch it as one of its errors."""


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    """Interrupt what is read after so many seconds; 0: never."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _TookTooLong

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


_TRAILING, _GAPS = re.compile(r"[ \t\u3000]+\n"), re.compile(r"\n{3,}")
_LINE_END = re.compile("\r\n|[\r\f\x85]")
_CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\x80-\x84\x86-\x9f\ufffe\uffff]")


def _clean(text: str) -> str:
    """Text without control characters, halves of characters, and blank lines in a row."""
    text = _LINE_END.sub("\n", text).removeprefix("\ufeff")
    text = _CONTROL.sub("", text).encode("utf-8", "replace").decode()
    return _GAPS.sub("\n\n", _TRAILING.sub("\n", text)).strip("\n").rstrip()


# --- Bytes and text of a file ---


def _content(path: Path, most: int = _WHOLE) -> bytes:
    """All bytes of a file, unpacked; no more than a library can read at once."""
    with open_bytes(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise LeftOut(LARGE, f"more than {most / 1e6:,.0f} MB")
    return content


def _decoded(content: bytes, encoding: str | None) -> str:
    """Plain text: UTF-8, or what a byte-order mark says, or as the user says."""
    marks = dict.fromkeys((b"\xff\xfe\0\0", b"\0\0\xfe\xff"), "utf-32")
    marks |= dict.fromkeys((b"\xff\xfe", b"\xfe\xff"), "utf-16")
    marked = next((code for mark, code in marks.items() if content.startswith(mark)), None)
    for code in (marked or "utf-8", encoding):
        try:
            if code is not None and (marked or b"\0" not in content):
                return content.decode(code)
        except UnicodeDecodeError:
            continue
    if b"\0" in content:
        raise LeftOut(UNKNOWN, "a binary file: it has zero bytes")
    if encoding is not None:
        raise LeftOut(ENCODING, f"and not {encoding}")
    line = next(line for line in content.splitlines() if not _is_utf8(line))
    raise LeftOut(ENCODING, f"perhaps --encoding {likely_encoding(line).lower()}")


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- One function per format ---


def _plain(path: Path, encoding: str | None) -> Chapters:
    yield "", _decoded(_content(path, LONGEST), encoding)


def _html(path: Path, encoding: str | None) -> Chapters:
    import trafilatura

    text = trafilatura.extract(_content(path), include_comments=False)
    if text is None:
        raise LeftOut(EMPTY, "nothing but menus and the like")
    yield "", text


_FOLD = re.compile("-?[\x02\ufffe]\r?\n?")  # PDFium's mark where a hyphen cuts a word


def _pdf(path: Path, encoding: str | None) -> Chapters:
    import pypdfium2

    pages, size = list[str](), 0
    with path.open("rb") as file:
        try:
            pdf = pypdfium2.PdfDocument(file)
        except pypdfium2.PdfiumError as error:
            locked = "password" in str(error).lower()
            raise LeftOut(ENCRYPTED if locked else BROKEN, str(error)) from None
        for page in pdf:
            text = page.get_textpage()
            pages.append(_unfolded(text.get_text_range()))
            text.close()
            page.close()
            if (size := size + len(pages[-1])) > LONGEST:
                raise LeftOut(LARGE, "more than 100 MB of text")
        pdf.close()
    yield "", "\n\n".join(pages)


_ENDS = re.compile(r"[.!?:;…。！？：；\"”»’)）」』]$")
_UNSPACED = re.compile(f"[{SYLLABLES}{KANA}\u3000-\u303f\u3400-\u9fff\uff00-\uffef]")


def _unfolded(page: str) -> str:
    """The lines of a page as paragraphs: a long line that ends no sentence continues."""
    lines = _FOLD.sub("\0\n", page).splitlines()
    width = 0.7 * max(map(len, lines), default=0)
    text, before = "", ""
    for line in lines:
        gap = "\n"
        if before.endswith("\0"):
            text, gap = text[:-1], ""
        elif len(before) >= width and line.strip() and not _ENDS.search(before.rstrip()):
            gap = "" if _UNSPACED.match(line.lstrip()) and _UNSPACED.match(before[-1]) else " "
        text, before = text.rstrip() + gap + line.lstrip(), line
    return text.strip("\n")


def _zip(path: Path) -> zipfile.ZipFile:
    """The parts of a docx or an epub, which are not absurdly large; what they say is kept to."""
    try:
        parts = zipfile.ZipFile(path)
    except zipfile.BadZipFile:
        with path.open("rb") as file:
            is_ole = file.read(8) == b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
        if is_ole:
            raise LeftOut(ENCRYPTED, "or an old .doc: save it again as .docx") from None
        raise LeftOut(BROKEN, "not a zip file") from None
    sizes = {one.filename: one.file_size for one in parts.infolist()}
    marked_up = (size for name, size in sizes.items() if name.endswith(("ml", ".rels", ".opf")))
    if sum(sizes.values()) > _UNPACKED or max(marked_up, default=0) > _WHOLE:
        raise LeftOut(LARGE, "unpacked, a part of it is too large")
    return parts


def _docx(path: Path, encoding: str | None) -> Chapters:
    import mammoth

    _zip(path).close()
    with path.open("rb") as file:
        yield "", mammoth.extract_raw_text(file).value


def _epub(path: Path, encoding: str | None) -> Chapters:
    """The documents of the spine, in its order."""
    from lxml import etree

    safe = etree.XMLParser(resolve_entities=False, no_network=True)
    with _zip(path) as parts:

        def part(name: str) -> Any:
            return etree.fromstring(parts.read(name), safe)

        package = part("META-INF/container.xml").find(".//{*}rootfile").get("full-path")
        hidden = set()
        if "META-INF/encryption.xml" in parts.namelist():  # of DRM; or only of fonts
            references = part("META-INF/encryption.xml").iterfind(".//{*}CipherReference")
            hidden = {reference.get("URI") for reference in references}
        book = part(package)
        items = {item.get("id"): item for item in book.iterfind("{*}manifest/{*}item")}
        for entry in book.iterfind("{*}spine/{*}itemref"):
            item = items.get(entry.get("idref"))
            if item is None or "nav" in (item.get("properties") or "").split():
                continue
            name = str(item.get("href"))
            inside = normpath(f"{PurePosixPath(package).parent}/{unquote(name)}")
            if inside in hidden:
                raise LeftOut(ENCRYPTED, "the book has copy protection")
            yield unquote(name), _text_of_page(parts.read(inside))


_BLOCK = re.compile(
    "address|article|aside|blockquote|br|caption|d[dlt]|div|fig[a-z]+|footer|h[1-6]|header|"
    "hr|li|main|nav|ol|p|pre|section|table|tr|ul"
)

_HIDDEN = "//head|//script|//style|//template|//rt|//rp|//comment()|//processing-instruction()"


def _text_of_page(content: bytes) -> str:
    """All text of a page of a book, which has no menus; with line ends where blocks end."""
    from lxml import html

    if not content.strip():
        return ""
    declared = re.search(rb"""encoding=["']([\w-]+)""", content[:200])
    parser = html.HTMLParser(encoding=declared[1].decode() if declared else "utf-8")
    page = html.document_fromstring(content, parser=parser)
    for element in page.xpath(_HIDDEN):
        if element.getparent() is not None:
            element.drop_tree()
    for element in page.iter():
        is_kept = any(one.tag == "pre" for one in (element, *element.iterancestors()))
        text, tail = element.text or "", re.sub(r"\s+", " ", element.tail or "")
        text = text.replace(" ", _SPACE) if is_kept else re.sub(r"\s+", " ", text)
        gap = "\n" if _BLOCK.fullmatch(element.tag) else ""
        element.text, element.tail = gap + text, gap + tail
    lines = (line.strip(" ") for line in str(page.text_content()).split("\n"))
    return "\n".join(line for line in lines if line).replace(_SPACE, " ")


_SPACE = "\ue000"  # stands for a space that stays


_FRONT = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)  # settings of a page, as Jekyll's
_BETWEEN = {"td_close": "\t", "th_close": "\t", "tr_close": "\n", "table_close": "\n"}


def _markdown(path: Path, encoding: str | None) -> Chapters:
    from markdown_it import MarkdownIt

    text, pieces = _decoded(_content(path), encoding).replace("\r\n", "\n"), list[str]()
    for token in MarkdownIt("commonmark").enable("table").parse(_FRONT.sub("", text)):
        if token.type == "inline":
            for one in token.children or ():
                is_break = one.type in ("softbreak", "hardbreak")
                is_text = one.type in ("text", "code_inline", "image")
                pieces.append("\n" if is_break else one.content if is_text else "")
        elif token.type in ("fence", "code_block"):
            pieces.append(f"{token.content}\n")
        elif token.type in ("paragraph_close", "heading_close"):
            pieces.append("\n" if token.hidden else "\n\n")
        else:
            pieces.append(_BETWEEN.get(token.type, ""))
    yield "", "".join(pieces)


def _subtitles(path: Path, encoding: str | None) -> Chapters:
    import pysubs2

    content = _decoded(_content(path), encoding)
    try:
        shown = pysubs2.SSAFile.from_string(content)
    except pysubs2.exceptions.FormatAutodetectionError:
        raise LeftOut(BROKEN, "these are no subtitles") from None
    texts = (one.plaintext for one in shown if not (one.is_comment or one.is_drawing))
    yield "", "\n".join(text.strip() for text in texts if text.strip())


def _table(path: Path, encoding: str | None) -> Chapters:
    """The rows of a table or a jsonl file, by their title or number."""
    kinds: dict[str, Any] = {".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
    source = Source(str(path), kinds.get(ending(path.name), "jsonl"), LONGEST)
    settings = ending(path.name) == ".json"  # and no text, unless a column says that it is
    column = "text" if settings else text_column(source)
    for number, (values, _) in enumerate(rows(source), 1):
        text = values.get(column or "")
        if isinstance(text, str):
            title = values.get("title") or values.get("source")
            yield title if isinstance(title, str) else str(number), text
        elif settings:
            raise LeftOut(UNKNOWN, "no column 'text'")


_ARTICLE, _TITLE = re.compile(r"\s*<doc\b[^<>]*>\s*"), re.compile(r'\btitle="([^"]*)"')


def _wiki_extractor(path: Path, encoding: str | None) -> Chapters:
    """The articles that WikiExtractor wrote between lines ``<doc ...>`` and ``</doc>``."""
    title, lines = "", list[str]()
    for line in read_lines(path, 0, LONGEST):
        if _ARTICLE.fullmatch(line.text):
            named = _TITLE.search(line.text)
            title, lines = named[1] if named else "", []
        elif line.text.strip() == "</doc>":
            yield title, "".join(lines)
            lines = []
        else:
            lines.append(line.text)
    if "".join(lines).strip():
        raise LeftOut(BROKEN, "the last article has no end")


_NAMESPACES = {"6": ("file", "image"), "14": ("category",)}  # and as the dump calls them


def _wikipedia(path: Path, encoding: str | None) -> Chapters:
    """The articles of a dump, without redirects, and without what is no running text."""
    from lxml import etree

    with bz2.open(path) if path.suffix == ".bz2" else open_bytes(path) as file:
        other = {name for names in _NAMESPACES.values() for name in names}
        # Not `huge_tree`: the parser then refuses a single text of more than ten megabytes.
        for _, element in etree.iterparse(
            file, tag=("{*}namespace", "{*}page"), resolve_entities=False, no_network=True
        ):
            if etree.QName(element).localname == "namespace":
                if element.get("key") in _NAMESPACES:
                    other.add((element.text or "").strip().lower())
                continue
            is_article = element.findtext("{*}ns", "0") == "0"
            if is_article and element.find("{*}redirect") is None:
                text = element.findtext("{*}revision/{*}text") or ""
                yield element.findtext("{*}title") or "", _text_of_article(text, other)
            element.clear()
            while (before := element.getprevious()) is not None:
                element.getparent().remove(before)


_NO_TEXT = ("table", "ref", "gallery", "timeline", "math", "score")


def _text_of_article(markup: str, other: set[str]) -> str:
    """Wiki markup as text.

    Args:
        other: Namespaces, such as those of files, to which links are no text.
    """
    import mwparserfromhell
    from mwparserfromhell.nodes import Tag, Wikilink

    code = mwparserfromhell.parse(markup)
    for node in code.filter(matches=lambda one: isinstance(one, Tag | Wikilink)):
        is_file = isinstance(node, Wikilink) and str(node.title).partition(":")[0].strip().lower()
        if is_file in other or (isinstance(node, Tag) and str(node.tag).lower() in _NO_TEXT):
            try:
                code.remove(node)
            except ValueError:  # it was in one that is removed
                continue
    text = re.sub(" {2,}", " ", str(code.strip_code()))  # where a template was
    return "\n".join(line.strip() for line in text.split("\n") if line.strip(" *#:;"))


# --- Formats ---


@dataclass(frozen=True)
class Format:
    """A format of files.

    Attributes:
        endings: Names end so, without ``.gz`` and ``.zst``.
        read: The documents of a file in this format; the text of others than UTF-8 is in the
            encoding that the user named.
        needs: The library that reads it, which comes with the extra `documents`.
        streamed: A file may be of any size: only one of its documents is in memory.
    """

    name: str
    endings: tuple[str, ...]
    read: Callable[[Path, str | None], Chapters]
    needs: str | None = None
    streamed: bool = False


_PDF = Format("pdf", (".pdf",), _pdf, "pypdfium2")
_TABLE = Format(
    "rows", (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet"), _table, streamed=True
)
_TEXT = Format("text", (".txt", ".text", ".raw", ""), _plain)
_WIKIPEDIA = Format("Wikipedia dump", (".xml",), _wikipedia, "mwparserfromhell", streamed=True)
_WIKI_EXTRACTOR = Format("WikiExtractor", (), _wiki_extractor, streamed=True)
_CODE = Format("code", (), _plain)

FORMATS = (
    Format("html", (".html", ".htm", ".xhtml"), _html, "trafilatura"),
    _PDF,
    Format("docx", (".docx",), _docx, "mammoth"),
    Format("epub", (".epub",), _epub, "lxml"),
    Format("markdown", (".md", ".markdown"), _markdown),
    Format("subtitles", (".srt", ".vtt", ".ass", ".ssa"), _subtitles, "pysubs2"),
    _TEXT,
    _TABLE,
    _WIKIPEDIA,
)

_BY_ENDING = {suffix: form for form in FORMATS for suffix in form.endings}

_HEAD = 1 << 12


def libraries() -> list[str]:
    """The libraries that are installed, of those that formats need."""
    needed = sorted({form.needs for form in FORMATS if form.needs})
    return [name for name in needed if find_spec(name) is not None]


def format_of(path: Path) -> Format:
    """The format of a file, by its ending; of a plain one and of a dump, by how it begins.

    Raises:
        LeftOut: It is unknown.
    """
    suffix = ending(path.name)
    if suffix == ".bz2":
        suffix = ending(path.stem)
        if suffix != ".xml":
            raise LeftOut(UNKNOWN)
    form = _BY_ENDING.get(suffix)
    if form is None:
        if not is_program(path.name):
            raise LeftOut(UNKNOWN)
        return _CODE
    if form not in (_TEXT, _WIKIPEDIA):
        return form
    try:
        with bz2.open(path) if path.suffix == ".bz2" else open_bytes(path) as file:
            head = file.read(_HEAD).lstrip()
    except (OSError, EOFError) as error:
        raise LeftOut(BROKEN, getattr(error, "strerror", None) or str(error)) from None
    if form is _WIKIPEDIA and b"<mediawiki" not in head:
        raise LeftOut(UNKNOWN, "no dump of a wiki")
    if head.startswith(b"<doc "):
        return _WIKI_EXTRACTOR
    is_row = suffix == "" and head.startswith(b"{") and b'"text"' in head
    return _TABLE if is_row else form
