"""The documentation: links lead somewhere, and the pages of families show the shipped configs."""

import re
from pathlib import Path

import pytest
import yaml

from plmctl.__main__ import main

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "README.zh-CN.md", "CONTRIBUTING.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
]
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


def test_the_site_s_navigation_has_every_page() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = yaml.safe_load(text.partition("\nnav:")[2])
    listed = [page for section in nav for page in pages_of(section)]
    pages = {p.relative_to(ROOT / "docs").as_posix() for p in ROOT.glob("docs/**/*.md")}
    assert len(listed) == len(set(listed))
    assert set(listed) == pages


def pages_of(item: dict | list | str) -> list[str]:
    if isinstance(item, str):
        return [item]
    inner = item.values() if isinstance(item, dict) else item
    return [page for part in inner for page in pages_of(part)]


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/migrating/*.md")), ids=lambda p: p.stem)
def test_keys_of_migration_tables_exist(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second column names keys, as in `optim.lr` or `launch.strategy=fsdp`."""
    rows = re.findall(r"^\| `--.*?\| (.*?) \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    keys = {key for row in rows for key in re.findall(r"`(\w+(?:\.\w+)*)(?:=[^`]*)?`", row)}
    assert len(keys) > 8
    unknown = []
    for key in sorted(keys):
        monkeypatch.setattr("sys.argv", ["plmctl", "config", "explain", key])
        with pytest.raises(SystemExit) as stop:
            main()
        if stop.value.code:
            unknown.append(key)
    assert not unknown


def plmctl_lines(page: Path) -> list[str]:
    """The lines of code blocks that call plmctl, with the lines that continue them."""
    code = "".join(FENCED.findall(page.read_text(encoding="utf-8"))).replace("\\\n", " ")
    lines = (line.removeprefix("$ ") for line in code.splitlines())
    return [" ".join(line.split()) for line in lines if line.startswith("plmctl ") and ":" != line[6]]


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.zh-CN.md", *sorted((ROOT / "docs" / "zh").glob("*.md"))],
    ids=lambda page: page.stem,
)
def test_commands_are_those_of_the_english_page(page: Path) -> None:
    english = re.search(r"\[English\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    assert english, "each Chinese page links to its English one"
    chinese = plmctl_lines(page)
    assert chinese == plmctl_lines((page.parent / english[1]).resolve())
