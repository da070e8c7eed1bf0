"""The sources of the site are whole, and its check sees what is wrong with a built page."""

import re
from pathlib import Path

import pytest

from scripts.build_site import FENCED, LINK, check, write_sources


def test_every_link_of_the_sources_leads_to_a_page_of_the_site(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    write_sources(folder)
    assert (folder / "files" / "configs" / "pretrain" / "bert-base.yaml.md").is_file()
    pages = list(folder.glob("**/*.md"))
    assert len(pages) > 50
    for page in pages:
        for _, link, _ in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
            if not re.match(r"https?:|#", link):
                assert (page.parent / link.partition("#")[0]).is_file(), (page, link)


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
