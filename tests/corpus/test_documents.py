"""Files of each format as text, and what is said of those that give none."""

import json
import time
import zipfile
from pathlib import Path

import pytest

from plmctl.corpus import documents
from plmctl.corpus.documents import FORMATS, LeftOut, read
from plmctl.corpus.source import DOCUMENTS, is_readable
from tests.corpus import document_files as files
from tests.corpus.document_files import CHINESE, ENGLISH


def needs(library: str) -> None:
    pytest.importorskip(library, reason=f"needs {library}: {documents.INSTALL}")


def refusal(path: Path, encoding: str | None = None) -> str:
    with pytest.raises(LeftOut) as refused:
        list(read(path, encoding))
    return f"{refused.value.reason}: {refused.value.detail}"


@pytest.mark.parametrize(
    ("text", "charset"), [(ENGLISH * 3, "utf-8"), (CHINESE * 4, "utf-8"), (CHINESE * 4, "gb18030")]
)
def test_html_without_its_menu(tmp_path: Path, text: str, charset: str) -> None:
    needs("trafilatura")
    (tmp_path / "a.html").write_bytes(files.html(text, charset))
    ((name, read_text),) = read(tmp_path / "a.html")
    assert name == ""
    assert read_text.startswith(text.strip())
    assert "Home" not in read_text
    assert "Privacy" not in read_text


def test_pdf_has_whole_words_and_paragraphs(tmp_path: Path) -> None:
    needs("pypdfium2")
    lines = ["Title", "The committee met on Tuesday and nobody was sur-", "prised by the result."]
    files.pdf(tmp_path / "a.pdf", *lines)
    joined = "Title\nThe committee met on Tuesday and nobody was surprised by the result."
    assert list(read(tmp_path / "a.pdf")) == [("", joined)]


def test_pdf_without_text(tmp_path: Path) -> None:
    needs("pypdfium2")
    files.pdf(tmp_path / "scan.pdf")
    files.pdf(tmp_path / "locked.pdf", "Secret", locked=True)
    (tmp_path / "bad.pdf").write_bytes(b"%PDF-1.4 nothing")
    assert refusal(tmp_path / "scan.pdf").startswith("scanned pdf")
    assert refusal(tmp_path / "locked.pdf").startswith("encrypted")
    assert refusal(tmp_path / "bad.pdf").startswith("broken")


@pytest.mark.parametrize(
    ("page", "text"),
    [
        (
            "the committee met on Tuesday and\nagreed on the budget of the\nyear.\nNext\n",
            "the committee met on Tuesday and agreed on the budget of the year.\nNext",
        ),
        ("我们去公园散步孩子们\n在草地上玩耍。\n", "我们去公园散步孩子们在草地上玩耍。"),
        ("it was sur\ufffeprising\n", "it was surprising"),
        ("short\nlines\nof a very long poem that is not wrapped", None),
    ],
)
def test_lines_of_a_page_become_paragraphs(page: str, text: str | None) -> None:
    assert documents._unfolded(page) == (page if text is None else text)


def test_docx_with_inserted_and_without_deleted_text(tmp_path: Path) -> None:
    needs("mammoth")
    run = "<w:r><w:t>{}</w:t></w:r>".format
    changed = (
        f"<w:p>{run('Kept ')}<w:ins w:id='1' w:author='x'>{run('new')}</w:ins>"
        "<w:del w:id='2' w:author='x'><w:r><w:delText>old</w:delText></w:r></w:del></w:p>"
        f"<w:tbl><w:tr><w:tc><w:p>{run('cell')}</w:p></w:tc></w:tr></w:tbl>"
    )
    files.docx(tmp_path / "a.docx", CHINESE, body=changed)
    assert list(read(tmp_path / "a.docx")) == [("", f"Kept new\n\ncell\n\n{CHINESE}")]


def test_docx_that_is_none(tmp_path: Path) -> None:
    needs("mammoth")
    (tmp_path / "locked.docx").write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(512))
    (tmp_path / "bad.docx").write_bytes(b"PK nothing")
    with zipfile.ZipFile(tmp_path / "bomb.docx", "w", zipfile.ZIP_DEFLATED) as parts:
        parts.writestr("word/document.xml", b"<a>" + bytes(60_000_000))
    assert refusal(tmp_path / "locked.docx").startswith("encrypted")
    assert refusal(tmp_path / "bad.docx") == "broken: not a zip file"
    assert refusal(tmp_path / "bomb.docx").startswith("too large")


def test_epub_has_a_document_per_chapter(tmp_path: Path) -> None:
    needs("lxml")
    first = (
        "<html><head><title>x</title></head><body><!-- c --><h1>One</h1><p>Some\n  <b>bold</b> "
        "text.</p><p>漢<ruby>字<rt>じ</rt></ruby></p><pre>a\n  b</pre></body></html>"
    )
    second = f'<?xml version="1.0" encoding="utf-8"?><html><body><p>{CHINESE}</p></body></html>'
    files.epub(tmp_path / "a.epub", {"one.xhtml": first, "empty.xhtml": "", "two.xhtml": second})
    assert list(read(tmp_path / "a.epub")) == [
        ("one.xhtml", "One\nSome bold text.\n漢字\na\n  b"),
        ("two.xhtml", CHINESE),
    ]
    files.epub(tmp_path / "locked.epub", {"one.xhtml": first}, protected=True)
    assert refusal(tmp_path / "locked.epub").startswith("encrypted")


def test_entities_of_xml_do_not_grow_and_read_no_file(tmp_path: Path) -> None:
    needs("mwparserfromhell")
    (tmp_path / "secret").write_text("secret")
    grow = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 50 if n else "ha"}">' for n in range(8))
    (tmp_path / "a.xml").write_text(
        f'<!DOCTYPE x [{grow}<!ENTITY f SYSTEM "{tmp_path}/secret">]><mediawiki><page><title>T'
        "</title><ns>0</ns><revision><text>One &e7; &f; two.</text></revision></page></mediawiki>"
    )
    try:
        ((_, text),) = read(tmp_path / "a.xml")
    except LeftOut as error:
        assert error.reason == "broken"  # noqa: PT017
    else:
        assert "secret" not in text
        assert len(text) < 100


def test_markdown_without_its_marks(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        "---\ntitle: x\n---\n# Head\n\nSome *soft* `code`, [a link](http://x).\n\n- one\n- two\n\n"
        "| a | b |\n|---|---|\n| 1 | 2 |\n\n```py\nx = 1\n```\n",
        encoding="utf-8",
    )
    text = "Head\n\nSome soft code, a link.\n\none\ntwo\na\tb\n1\t2\n\nx = 1"
    assert list(read(tmp_path / "a.md")) == [("", text)]


def test_subtitles(tmp_path: Path) -> None:
    needs("pysubs2")
    (tmp_path / "a.srt").write_text(files.SRT)
    (tmp_path / "a.vtt").write_text("WEBVTT\n\n00:01.000 --> 00:02.000\n<v Bob>Hello <c>you</c>\n")
    (tmp_path / "bad.srt").write_text("only text")
    assert list(read(tmp_path / "a.srt")) == [("", "Hello\nthere.\nBye.")]
    assert list(read(tmp_path / "a.vtt")) == [("", "Hello you")]
    assert refusal(tmp_path / "bad.srt").startswith("broken")


def test_programs_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"def f():\r\n    return 1\r\n")
    assert list(read(tmp_path / "a.py")) == [("", "def f():\n    return 1")]


def test_encodings(tmp_path: Path) -> None:
    (tmp_path / "utf16.txt").write_bytes(CHINESE.encode("utf-16"))
    (tmp_path / "utf32.txt").write_bytes(b"\0\0\xfe\xff" + CHINESE.encode("utf-32-be"))
    (tmp_path / "gbk.txt").write_bytes(CHINESE.encode("gb18030"))
    (tmp_path / "binary").write_bytes(b"\x7fELF\0\0")
    assert (
        list(read(tmp_path / "utf16.txt")) == list(read(tmp_path / "utf32.txt")) == [("", CHINESE)]
    )
    assert refusal(tmp_path / "gbk.txt") == "not UTF-8: perhaps --encoding gb18030"
    assert refusal(tmp_path / "gbk.txt", "ascii") == "not UTF-8: and not ascii"
    assert list(read(tmp_path / "gbk.txt", "gb18030")) == [("", CHINESE)]
    assert refusal(tmp_path / "binary").startswith("unknown format")


def test_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,body\n1,First of all\n2,Second\n")
    (tmp_path / "a.json").write_text('[{"text": "One", "title": "T"}]')
    (tmp_path / "settings.json").write_text('{"name": "x"}')
    (tmp_path / "bad.jsonl").write_text('{"text": "good"}\n{bad\n')
    assert list(read(tmp_path / "a.csv")) == [("1", "First of all"), ("2", "Second")]
    assert list(read(tmp_path / "a.json")) == [("T", "One")]
    assert refusal(tmp_path / "settings.json").startswith("unknown format")
    found = read(tmp_path / "bad.jsonl")
    assert next(found) == ("1", "good")
    with pytest.raises(LeftOut, match="2: not JSON"):
        next(found)


def test_output_of_wikiextractor(tmp_path: Path) -> None:
    (tmp_path / "wiki_00").write_text(
        '<doc id="1" url="u" title="Alpha">\nAlpha\n\nA letter.\n</doc>\n<doc id="2" title="B">\n'
        "</doc>\n"
    )
    (tmp_path / "wiki_01").write_text(json.dumps({"title": "Gamma", "text": "Gamma is one."}))
    assert list(read(tmp_path / "wiki_00")) == [("Alpha", "Alpha\n\nA letter.")]
    assert list(read(tmp_path / "wiki_01")) == [("Gamma", "Gamma is one.")]


@pytest.mark.parametrize("name", ["a.xml", "a.xml.bz2"])
def test_articles_of_a_dump(tmp_path: Path, name: str) -> None:
    needs("mwparserfromhell")
    text = (
        "'''Elbe''' {{x}} ist ein [[Strom|Fluss]].&lt;ref&gt;x&lt;/ref&gt; {{Vorlage|a}} "
        "[[Datei:x.jpg|mini|Bild [[a]]]]\n== Lauf ==\n{| class=x\n| cell\n|}\n* Punkt\n"
        "[[Kategorie:Fluss]]"
    )
    more = (
        "<page><title>R</title><ns>0</ns><redirect title='x'/><revision><text>#REDIRECT</text>"
        "</revision></page><page><title>Talk:R</title><ns>1</ns><revision><text>talk</text>"
        "</revision></page>"
    )
    files.wikipedia(tmp_path / name, ("Elbe", text), more=more)
    assert list(read(tmp_path / name)) == [("Elbe", "Elbe ist ein Fluss.\nLauf\nPunkt")]


def test_a_dump_that_breaks_off_keeps_what_came_before(tmp_path: Path) -> None:
    needs("mwparserfromhell")
    files.wikipedia(tmp_path / "a.xml", ("A", "One."), ("B", "Two."))
    whole = (tmp_path / "a.xml").read_bytes()
    (tmp_path / "a.xml").write_bytes(whole[: whole.index(b"Two")])
    found = read(tmp_path / "a.xml")
    assert next(found) == ("A", "One.")
    with pytest.raises(LeftOut, match="broken"):
        next(found)
    (tmp_path / "b.xml").write_text("<feed></feed>")
    assert refusal(tmp_path / "b.xml") == "unknown format: no dump of a wiki"


def test_reading_a_file_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = documents.Format(
        "text", (".slow",), lambda *_: iter(lambda: ("", f"{time.sleep(0.1)}"), 0)
    )
    monkeypatch.setattr(documents, "_BY_ENDING", {".slow": slow})
    monkeypatch.setattr(documents, "_SECONDS", 1)
    (tmp_path / "a.slow").touch()
    with pytest.raises(LeftOut, match="more than 1 seconds"):
        list(read(tmp_path / "a.slow"))


def test_ends_of_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\r\ntwo\x85three\rfour\x07", encoding="utf-8", newline="")
    assert list(read(tmp_path / "a.txt")) == [("", "one\ntwo\nthree\nfour")]


def test_without_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "find_spec", lambda name: None)
    (tmp_path / "a.docx").touch()
    assert refusal(tmp_path / "a.docx") == "no library: pip install 'plmctl[documents]'"
    assert documents.libraries() == []


def test_a_library_without_one_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def needs(*_: object) -> None:
        raise ImportError("lxml.html.clean is a separate project.\nInstall lxml_html_clean.")

    monkeypatch.setattr(documents, "_BY_ENDING", {".x": documents.Format("x", (".x",), needs)})  # type: ignore[arg-type]
    (tmp_path / "a.x").touch()
    assert refusal(tmp_path / "a.x") == (
        "no library: lxml.html.clean is a separate project. Install lxml_html_clean."
    )


def test_other_commands_name_this_one_for_what_only_it_reads() -> None:
    own = {suffix for form in FORMATS for suffix in form.endings if not is_readable(f"x{suffix}")}
    assert own == set(DOCUMENTS)
