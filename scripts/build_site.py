"""Build the documentation as a site, without a network: ``make site``.

    python scripts/build_site.py [FOLDER]

The pages lie in docs/ as plain Markdown, with links that work in a checkout. A site has no checkout
beside it, so what these links lead to (configs, the README) becomes a page of the site. In the end
every link of the built pages is checked, and nothing may be loaded from another host.
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
    write_sources(work / "docs")
    shutil.copy(ROOT / "mkdocs.yml", work)
    subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "-f", "mkdocs.yml"],
        cwd=work,
        check=True,
    )
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(work / "site", target)
    problems = check(target)
    if problems:
        raise SystemExit("\n".join(problems))
    print(f"{target}: {len(list(target.glob('**/*.html')))} pages, all links checked")


def write_sources(folder: Path) -> None:
    """Copy the pages; add one for every file or folder outside docs/ that they link to."""
    shutil.copytree(DOCS, folder, ignore=shutil.ignore_patterns("*.ipynb"))
    sources = {path: folder / path.relative_to(DOCS) for path in DOCS.glob("**/*.md")}
    sources |= {ROOT / name: folder / page for name, page in PAGES.items()}
    outside: set[Path] = set()
    for source, page in sources.items():
        page.parent.mkdir(parents=True, exist_ok=True)
        text = with_links(source.read_text(encoding="utf-8"), source, page, folder, outside)
        page.write_text(text, encoding="utf-8")
    while outside:
        write_file_page(outside.pop(), folder, outside)


def page_of(path: Path, folder: Path) -> Path:
    """The page of the site that shows a file or folder of the checkout."""
    name = path.relative_to(ROOT).as_posix()
    if name in PAGES:
        return folder / PAGES[name]
    if path.is_relative_to(DOCS) and path.suffix != ".ipynb":
        return folder / path.relative_to(DOCS)
    # The builder leaves out what starts with a dot.
    return folder / "files" / f"{name.removeprefix('.')}.md"


def with_links(text: str, source: Path, page: Path, folder: Path, outside: set[Path]) -> str:
    """The text of a page whose links to files of the checkout lead to pages of the site."""

    def replace(match: re.Match[str]) -> str:
        name, _, anchor = match[2].partition("#")
        if not name or urlsplit(name).scheme:
            return match[0]
        path = (source.parent / name).resolve()
        shown = page_of(path, folder)
        if "files" in shown.relative_to(folder).parts[:1]:
            outside.add(path)
        link = os.path.relpath(shown, page.parent) + (f"#{anchor}" if anchor else "")
        return match[1] + link + match[3]

    parts, end = [], 0
    for block in FENCED.finditer(text):
        parts += [LINK.sub(replace, text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, LINK.sub(replace, text[end:])])


def write_file_page(path: Path, folder: Path, outside: set[Path]) -> None:
    """A page with the content of a file, or with links to what is in a folder."""
    page = page_of(path, folder)
    if page.exists():
        return
    page.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"# {path.relative_to(ROOT).as_posix()}", ""]
    if path.is_dir():
        for item in sorted(path.iterdir()):
            if item.name.startswith(("_", ".")):
                continue
            outside.add(item)
            lines.append(f"- [{item.name}]({os.path.relpath(page_of(item, folder), page.parent)})")
    else:
        kind = {".yaml": "yaml", ".py": "python", ".ipynb": "json"}.get(path.suffix, "text")
        lines += [f"~~~{kind}", path.read_text(encoding="utf-8").rstrip(), "~~~"]
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


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
        if where == "404.html":  # its links start at the root of the host
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
