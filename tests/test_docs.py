"""The documentation: links, navigation, keys and commands of both languages, shipped configs."""

import json
import re
from pathlib import Path

import pytest
import yaml

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
    english, chinese = text.partition("\nnav:")[2].split("# Chinese\n")
    listed = pages_of(yaml.safe_load(english))
    listed += [f"zh/{page}" for page in pages_of(yaml.safe_load(chinese)) if page != "project.md"]
    pages = {p.relative_to(ROOT / "docs").as_posix() for p in ROOT.glob("docs/**/*.md")}
    assert len(listed) == len(set(listed))
    assert set(listed) == pages


def pages_of(item: dict | list | str) -> list[str]:
    if isinstance(item, str):
        return [item]
    inner = item.values() if isinstance(item, dict) else item
    return [page for part in inner for page in pages_of(part)]


def config_keys() -> set[str]:
    """Every key of every kind of config, from the page that is made from the config models."""
    keys, prefix = set(), ""
    for line in (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            part = re.match(r"### `(\w+): \[?{(\w+)", line)
            prefix = f"{part[1]}." if part else ""
            keys |= {f"{prefix}{part[2]}"} if part else set()
        elif row := re.match(r"\| `([\w.\[\]]+)` \|", line):
            keys.add(prefix + row[1])
    return keys


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/migrating/*.md")), ids=lambda p: p.stem)
def test_keys_of_migration_tables_exist(page: Path) -> None:
    """The second column names keys, as in `optim.lr` or `launch.strategy=fsdp`."""
    rows = re.findall(r"^\| `--.*?\| (.*?) \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    keys = {key for row in rows for key in re.findall(r"`(\w+(?:\.\w+)*)(?:=[^`]*)?`", row)}
    assert len(keys) > 8
    assert not keys - config_keys()


def plmctl_lines(page: Path) -> list[str]:
    """The lines of code blocks that call plmctl, with the lines that continue them."""
    code = "\n".join(FENCED.findall(page.read_text(encoding="utf-8"))).replace("\\\n", " ")
    lines = (line.removeprefix("$ ") for line in code.splitlines())
    return [" ".join(line.split()) for line in lines if line.startswith("plmctl ")]


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.zh-CN.md", *sorted((ROOT / "docs" / "zh").glob("**/*.md"))],
    ids=lambda page: page.stem,
)
def test_commands_are_those_of_the_english_page(page: Path) -> None:
    english = re.search(r"\[English\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    assert english, "each Chinese page links to its English one"
    original = (page.parent / english[1]).resolve()
    links = re.findall(r"\[中文\]\(([^)]+)\)", original.read_text(encoding="utf-8"))
    assert page in [(original.parent / link).resolve() for link in links]  # and back
    assert plmctl_lines(page) == plmctl_lines(original)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs/notebooks").glob("*.ipynb")), ids=lambda p: p.stem
)
def test_a_notebook_shows_outputs_of_a_run(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    silent = ("Path(",)
    for cell in cells:
        source, outputs = "".join(cell["source"]), cell["outputs"]
        assert outputs or source.startswith(silent), source
        assert all(output["output_type"] == "stream" for output in outputs)
        assert "plmctl: " not in str(outputs)


def test_the_notebooks_of_both_languages_have_the_same_cells() -> None:
    names = ("borrowed_machine.ipynb", "borrowed_machine_zh.ipynb")
    pages = [json.loads((ROOT / "docs/notebooks" / name).read_text("utf-8")) for name in names]
    code = [[cell for cell in page["cells"] if cell["cell_type"] == "code"] for page in pages]
    assert code[0] == code[1]
    assert len(pages[0]["cells"]) == len(pages[1]["cells"])
