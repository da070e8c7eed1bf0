"""The documentation: links lead somewhere, and the pages of families show the shipped configs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("http"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("family", [path.stem for path in ROOT.glob("docs/families/*.md")])
def test_a_page_shows_its_config_as_shipped(family: str) -> None:
    text = (ROOT / "docs" / "families" / f"{family}.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    configs = [
        "".join(
            line for line in path.read_text(encoding="utf-8").splitlines(True) if line[0] != "#"
        )
        for path in (ROOT / "configs" / "pretrain").glob("**/*.yaml")
    ]
    assert shown
    assert all(config in configs for config in shown)
