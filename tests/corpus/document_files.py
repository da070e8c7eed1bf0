"""Small files of the formats that people have, made of bytes."""

import bz2
import zipfile
from pathlib import Path

ENGLISH = (
    "The committee met on Tuesday and discussed the budget of the coming year. Nobody was "
    "surprised by the result, although many had hoped for more. "
)
CHINESE = "今天的天气很好，我们去公园散步。孩子们在草地上玩耍，老人们在树下下棋。"


def html(text: str, charset: str = "utf-8") -> bytes:
    """A page with an article of this text, a menu and a footer."""
    page = (
        f'<html><head><meta charset="{charset}"><title>T</title></head><body><nav><ul>'
        '<li><a href="/a">Home</a></li><li><a href="/b">About us</a></li></ul></nav>'
        f"<article><p>{text}</p><p>{text}</p></article>"
        '<footer>Imprint <a href="/p">Privacy</a></footer></body></html>'
    )
    return page.encode(charset)


def docx(path: Path, *paragraphs: str, body: str = "") -> None:
    word = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    package = "http://schemas.openxmlformats.org/package/2006"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    main = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    body += "".join(f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>" for text in paragraphs)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as parts:
        parts.writestr(
            "[Content_Types].xml",
            f'<Types xmlns="{package}/content-types"><Default Extension="rels" ContentType='
            '"application/vnd.openxmlformats-package.relationships+xml"/>'
            f'<Override PartName="/word/document.xml" ContentType="{main}"/></Types>',
        )
        parts.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{package}/relationships"><Relationship Id="r" '
            f'Type="{office}/officeDocument" Target="word/document.xml"/></Relationships>',
        )
        parts.writestr(
            "word/document.xml",
            f'<w:document xmlns:w="{word}"><w:body>{body}</w:body></w:document>',
        )


def epub(path: Path, chapters: dict[str, str], protected: bool = False) -> None:
    """A book of pages by name, in their order; the table of contents is no chapter."""
    items = "".join(f'<item id="{n}" href="{name}"/>' for n, name in enumerate(chapters))
    spine = "".join(f'<itemref idref="{n}"/>' for n in range(len(chapters)))
    container = "urn:oasis:names:tc:opendocument:xmlns:container"
    with zipfile.ZipFile(path, "w") as parts:
        parts.writestr(
            "META-INF/container.xml",
            f'<container xmlns="{container}"><rootfiles><rootfile full-path="EPUB/book.opf"/>'
            "</rootfiles></container>",
        )
        parts.writestr(
            "EPUB/book.opf",
            '<package xmlns="http://www.idpf.org/2007/opf"><manifest>'
            f'<item id="toc" href="toc.xhtml" properties="nav"/>{items}</manifest>'
            f'<spine><itemref idref="toc"/>{spine}</spine></package>',
        )
        parts.writestr("EPUB/toc.xhtml", "<html><body>Contents</body></html>")
        for name, page in chapters.items():
            parts.writestr(f"EPUB/{name}", page)
        if protected:
            locked = "".join(f'<CipherReference URI="EPUB/{name}"/>' for name in chapters)
            parts.writestr("META-INF/encryption.xml", f"<encryption>{locked}</encryption>")


def pdf(path: Path, *lines: str, locked: bool = False) -> None:
    """A page with lines of text; without any, with a picture of nothing."""
    shown = " ".join(f"({line}) Tj T*" for line in lines)
    drawn = f"BT /F1 12 Tf 72 720 Td 14 TL {shown} ET" if lines else "0 0 9 9 re f"
    page = "/Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R"
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        f"<< {page} /Resources << /Font << /F1 5 0 R >> >> >>",
        f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        f"<< /Filter /Standard /V 1 /R 2 /P -4 /O <{'00' * 32}> /U <{'11' * 32}> >>",
    ]
    content, starts = b"%PDF-1.4\n", list[int]()
    for number, text in enumerate(objects, 1):
        starts.append(len(content))
        content += f"{number} 0 obj\n{text}\nendobj\n".encode()
    table = "".join(f"{start:010d} 00000 n \n" for start in starts)
    lock = f"/Encrypt 6 0 R /ID [<{'00' * 16}> <{'00' * 16}>]" if locked else ""
    path.write_bytes(
        content
        + f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}".encode()
        + f"trailer << /Size {len(objects) + 1} /Root 1 0 R {lock} >>\n".encode()
        + f"startxref\n{len(content)}\n%%EOF".encode()
    )


SRT = """1
00:00:01,000 --> 00:00:02,000
<i>Hello</i>
there.

2
00:00:03,000 --> 00:00:04,000
Bye.
"""


def wikipedia(path: Path, *pages: tuple[str, str], more: str = "") -> None:
    """A dump of articles by title, in German."""
    named = '<namespace key="6">Datei</namespace><namespace key="14">Kategorie</namespace>'
    articles = "".join(
        f"<page><title>{title}</title><ns>0</ns><revision><text>{text}</text></revision></page>"
        for title, text in pages
    )
    dump = (
        '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/"><siteinfo><namespaces>'
        f"{named}</namespaces></siteinfo>{articles}{more}</mediawiki>"
    ).encode()
    path.write_bytes(bz2.compress(dump) if path.suffix == ".bz2" else dump)
