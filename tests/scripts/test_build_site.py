"""The sources of the site are whole, and its check sees what is wrong with a built page."""

import re
from pathlib import Path

import pytest

from scripts.build_site import (
    DOCS,
    FENCED,
    LINK,
    PAGES,
    ROOT,
    check,
    page_of,
    switch_between_twins,
    write_sources,
)


def test_every_link_of_the_sources_leads_to_a_page_of_the_site(tmp_path: Path) -> None:
    """The Chinese pages are built by themselves, and placed in zh/."""
    english, chinese = tmp_path / "docs", tmp_path / "docs" / "zh"
    write_sources(english, chinese=False)
    write_sources(tmp_path / "zh", chinese=True)
    (tmp_path / "zh").rename(chinese)
    assert (english / "files" / "configs" / "pretrain" / "bert-base.yaml.md").is_file()
    pages = list(english.glob("**/*.md"))
    assert len(pages) > 50
    across = 0
    for page in pages:
        for _, link, _ in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
            if re.match(r"https?:|#", link):
                continue
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".html":  # a page of the other language
                across += 1
                assert chinese in target.parents or chinese in page.parents, (page, link)
                target = target.with_suffix(".md")
                target = target.with_name("README.md") if target.stem == "index" else target
            assert target.is_file(), (page, link)
    assert across > 20


def test_the_switch_leads_to_the_same_page_of_the_other_language(tmp_path: Path) -> None:
    languages = ("en", "zh")
    links = " ".join(f'<a href="x" hreflang="{language}">' for language in languages)
    for source in [*DOCS.glob("**/*.md"), *(ROOT / name for name in PAGES)]:
        page = (tmp_path / page_of(source)).with_suffix(".html")
        page = page.with_name("index.html") if page.stem == "README" else page
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(links, encoding="utf-8")
    switch_between_twins(tmp_path)
    english = tmp_path / "tutorials" / "own-language.html"
    assert 'href="../zh/own-language.html" hreflang="zh"' in english.read_text(encoding="utf-8")
    chinese = tmp_path / "zh" / "own-language.html"
    expected = 'href="../tutorials/own-language.html" hreflang="en"'
    assert expected in chinese.read_text(encoding="utf-8")
    assert (tmp_path / "speed.html").read_text(encoding="utf-8") == links


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('<a href="there.html#part">x</a><a href="https://example.org">y</a>', None),
        ('<a href="missing.html">x</a>', "a.html: no missing.html"),
        ('<a href="there.html#other">x</a>', "a.html: no anchor there.html#other"),
        ('<script src="https://cdn.example.org/x.js"></script>', "a.html: loads https://cdn.ex"),
    ],
)
def test_check(tmp_path: Path, body: str, problem: str | None) -> None:
    (tmp_path / "a.html").write_text(body, encoding="utf-8")
    (tmp_path / "there.html").write_text('<h2 id="part">x</h2>', encoding="utf-8")
    problems = check(tmp_path)
    assert problems == [] if problem is None else problems[0].startswith(problem)
