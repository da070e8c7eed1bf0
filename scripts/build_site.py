"""Build the documentation as a site, without a network: ``make site``.

    python scripts/build_site.py [FOLDER]

The pages lie in docs/ as plain Markdown, with links that work in a checkout. A site has no checkout
beside it, so what these links lead to (configs, the README) becomes a page of the site. The Chinese
pages are a site of their own in zh/, with Chinese navigation and search; each page has a switch to
the other language. In the end every link of the built pages is checked, and nothing may be loaded
from another host.
"""

import html
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# Pages beside docs/, and their names in the site.
PAGES = {
    "README.md": "project.md",
    "README.zh-CN.md": "zh/project.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
FENCED = re.compile(r"^(?:```.*?^```|~~~.*?^~~~)$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(\]\()([^)\s]+)(\))")


def main() -> None:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "site").resolve()
    work = ROOT / "build" / "site"
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    settings, _, nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:\n")
    english, chinese = nav.split("# Chinese\n")
    for name, pages, place in (("en", english, target), ("zh", chinese, target / "zh")):
        folder = work / name
        write_sources(folder / "docs", chinese=name == "zh")
        config = settings.replace("language: en", f"language: {name}") + f"nav:\n{pages}"
        if name == "zh":
            config = config.replace("link: ", "link: ../").replace("../zh/", "./")
        (folder / "mkdocs.yml").write_text(config, encoding="utf-8")
        subprocess.run(
            [sys.executable, "-m", "zensical", "build", "--clean", "-f", "mkdocs.yml"],
            cwd=folder,
            check=True,
        )
        shutil.copytree(folder / "site", place)
    switch_between_twins(target)
    problems = check(target)
    if problems:
        raise SystemExit("\n".join(problems))
    print(f"{target}: {len(list(target.glob('**/*.html')))} pages, all links checked")


def write_sources(folder: Path, *, chinese: bool) -> None:
    """Copy the pages of a language.

    The English site has one more for every file or folder outside docs/ that any page links to.
    """
    own = DOCS / "zh" if chinese else DOCS
    ignored = shutil.ignore_patterns("*.ipynb", *([] if chinese else ["zh"]))
    shutil.copytree(own, folder, ignore=ignored)
    if chinese:
        shutil.copy(DOCS / "site.css", folder)
    outside: set[Path] = set()
    for source in [*DOCS.glob("**/*.md"), *(ROOT / name for name in PAGES)]:
        page = page_of(source)
        text = with_links(source.read_text(encoding="utf-8"), source, page, outside)
        if is_chinese(page) == chinese:
            written = folder / (page.relative_to("zh") if chinese else page)
            written.parent.mkdir(parents=True, exist_ok=True)
            written.write_text(text, encoding="utf-8")
    while outside and not chinese:
        write_file_page(outside.pop(), folder, outside)


def is_chinese(page: Path) -> bool:
    return page.parts[0] == "zh"


def page_of(path: Path) -> Path:
    """The page that shows a file or folder of the checkout, from the root of the whole site."""
    name = path.relative_to(ROOT).as_posix()
    if name in PAGES:
        return Path(PAGES[name])
    if path.is_relative_to(DOCS) and path.suffix != ".ipynb":
        return path.relative_to(DOCS)
    # The builder leaves out what starts with a dot.
    return Path("files") / f"{name.removeprefix('.')}.md"


def with_links(text: str, source: Path, page: Path, outside: set[Path]) -> str:
    """The text of a page whose links to files of the checkout lead to pages of the site.

    A page of the other language is built by itself: a link to it names the file that it becomes.
    """

    def replace(match: re.Match[str]) -> str:
        name, _, anchor = match[2].partition("#")
        if not name or urlsplit(name).scheme:
            return match[0]
        path = (source.parent / name).resolve()
        shown = page_of(path)
        if shown.parts[0] == "files":
            outside.add(path)
        if is_chinese(shown) != is_chinese(page) and shown.suffix == ".md":
            shown = shown.with_suffix(".html")
            shown = shown.with_name("index.html") if shown.stem == "README" else shown
        link = os.path.relpath(shown, page.parent) + (f"#{anchor}" if anchor else "")
        return match[1] + link + match[3]

    parts, end = [], 0
    for block in FENCED.finditer(text):
        parts += [LINK.sub(replace, text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, LINK.sub(replace, text[end:])])


def write_file_page(path: Path, folder: Path, outside: set[Path]) -> None:
    """A page with the content of a file, or with links to what is in a folder."""
    place = page_of(path)
    page = folder / place
    if page.exists():
        return
    page.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"# {path.relative_to(ROOT).as_posix()}", ""]
    if path.is_dir():
        for item in sorted(path.iterdir()):
            if item.name.startswith(("_", ".")):
                continue
            outside.add(item)
            lines.append(f"- [{item.name}]({os.path.relpath(page_of(item), place.parent)})")
    else:
        kind = {".yaml": "yaml", ".py": "python", ".ipynb": "json"}.get(path.suffix, "text")
        lines += [f"~~~{kind}", path.read_text(encoding="utf-8").rstrip(), "~~~"]
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


TWIN = re.compile(r"^\[(English|中文)\]\(([^)\s]+)\)$", re.MULTILINE)


def switch_between_twins(site: Path) -> None:
    """Let the switch of a page lead to the same page of the other language, if there is one."""
    for source in [*DOCS.glob("**/*.md"), *(ROOT / name for name in PAGES)]:
        match = TWIN.search(source.read_text(encoding="utf-8"))
        if match is None:
            continue
        here, there = (page_of((source.parent / n).resolve()) for n in (source.name, match[2]))
        here, there = (
            one.with_name("index.html") if one.stem == "README" else one.with_suffix(".html")
            for one in (here, there)
        )
        language = "en" if match[1] == "English" else "zh"
        text, count = re.subn(
            rf'href="[^"]*" hreflang="{language}"',
            f'href="{os.path.relpath(there, here.parent)}" hreflang="{language}"',
            (site / here).read_text(encoding="utf-8"),
        )
        assert count, f"{here}: no switch"
        (site / here).write_text(text, encoding="utf-8")


def check(site: Path) -> list[str]:
    """Links that lead nowhere, and what would be loaded from another host."""
    pages = {path: path.read_text(encoding="utf-8") for path in site.glob("**/*.html")}
    anchors = {
        path: {html.unescape(name) for name in re.findall(r"\bid=\"?([^\"\s>]+)", text)}
        for path, text in pages.items()
    }
    problems = []
    for path, text in pages.items():
        where = path.relative_to(site).as_posix()
        if path.name == "404.html":  # its links start at the root of the host
            continue
        for tag, link in re.findall(r"<(\w+)\b[^>]*?\b(?:href|src)=\"?([^\"\s>]+)", text):
            url = urlsplit(html.unescape(link))
            if url.scheme or url.netloc:
                if tag not in ("a", "meta") and url.scheme != "data":
                    problems.append(f"{where}: loads {link}")
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            target = target / "index.html" if target.is_dir() else target
            fragment = unquote(url.fragment)
            if not target.exists():
                problems.append(f"{where}: no {link}")
            elif fragment and target in anchors and fragment not in anchors[target]:
                problems.append(f"{where}: no anchor {link}")
    return problems


if __name__ == "__main__":
    main()
