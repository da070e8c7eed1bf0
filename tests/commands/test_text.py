"""``plmctl text``: a folder of files as one jsonl file, which the other commands read."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from plmctl.commands import text
from plmctl.config.sections import TextConfig
from plmctl.corpus import documents
from plmctl.corpus.reading import documents as documents_of
from plmctl.corpus.source import resolve
from tests.commands.conftest import Cli
from tests.corpus import document_files as files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in" / "sub").mkdir(parents=True)
    for name, content in {
        "notes.md": "# Head\n\nBody.\n",
        "sub/a.txt": "Plain text.\n",
        "sub/prog.py": "x = 1\n",
        "pic.png": "\x00",
        "old.doc": "\x00",
        "empty.txt": " \n",
    }.items():
        (tmp_path / "in" / name).write_text(content)
    (tmp_path / "in" / "gbk.txt").write_bytes("第一章".encode("gb18030"))
    return tmp_path


def report(cli: Cli, *arguments: str) -> dict[str, Any]:
    code, out, err = cli("text", "in", "--out", "c.jsonl", "--json", *arguments)
    assert code == 0, err
    return json.loads(out)


def lines(name: str = "c.jsonl") -> list[dict[str, str]]:
    return [json.loads(line) for line in Path(name).read_text(encoding="utf-8").splitlines()]


def test_a_folder(cli: Cli, folder: Path) -> None:
    code, out, err = cli("text", "in", "--out", "c.jsonl")
    assert code == 0, err
    assert lines() == [
        {"text": "Head\n\nBody.", "source": "notes.md"},
        {"text": "Plain text.", "source": "sub/a.txt"},
        {"text": "x = 1", "source": "sub/prog.py"},
    ]
    assert "together" in out
    assert "1 .png, 1 .doc" in out or "1 .doc, 1 .png" in out
    assert "perhaps --encoding gb18030" in " ".join(out.split())
    assert "soffice" in err
    assert "plmctl init c.jsonl" in err
    written = json.loads(Path("c.jsonl.report.json").read_text())
    assert written["documents"] == 3
    assert written["formats"]["markdown"] == {"files": 1, "documents": 1, "characters": 11}
    assert written["left_out"]["unknown format"]["endings"] == {".doc": 1, ".png": 1}
    assert written["left_out"]["no text"]["names"] == {"empty.txt": ""}
    assert not Path(".c.jsonl.parts").exists()


def test_formats_that_need_libraries(cli: Cli, folder: Path) -> None:
    for library in ("trafilatura", "pypdfium2", "mammoth", "lxml", "pysubs2"):
        pytest.importorskip(library, reason=f"needs {library}: {documents.INSTALL}")
    (folder / "in/a.html").write_bytes(files.html(files.CHINESE * 4))
    files.pdf(folder / "in/a.pdf", "A line of a page.")
    files.pdf(folder / "in/scan.pdf")
    files.docx(folder / "in/a.docx", "A paragraph.")
    files.epub(folder / "in/a.epub", {"1.xhtml": "<p>One</p>", "2.xhtml": "<p>Two</p>"})
    (folder / "in/a.srt").write_text(files.SRT)
    found = report(cli)
    assert found["formats"]["epub"] == {"files": 1, "documents": 2, "characters": 6}
    assert {"html", "pdf", "docx", "subtitles"} < set(found["formats"])
    assert found["left_out"]["scanned pdf: pictures without text"]["files"] == 1
    assert {"text": "Two", "source": "a.epub#2.xhtml"} in lines()


def test_without_libraries_the_rest_is_read(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "find_spec", lambda name: None)
    (folder / "in/a.docx").touch()
    code, out, err = cli("text", "in", "--out", "c.jsonl")
    assert code == 0
    assert "1 file need libraries: pip install 'plmctl[documents]', then --fresh" in err
    assert len(lines()) == 3


def test_given_again(cli: Cli, folder: Path) -> None:
    first = report(cli)
    before = Path("c.jsonl").stat()
    assert report(cli) == first
    assert Path("c.jsonl").stat().st_mtime_ns == before.st_mtime_ns
    (folder / "in/new.txt").write_text("New.")
    code, _, err = cli("text", "in", "--out", "c.jsonl")
    assert code == 2
    assert "not made from these files as they are now" in err
    assert report(cli, "--fresh")["documents"] == 4
    assert len(list(folder.glob("c.jsonl.old-*"))) == 1
    assert report(cli, "--fresh", "--encoding", "gb18030")["documents"] == 5
    assert {"text": "第一章", "source": "gbk.txt"} in lines()


def test_what_was_interrupted_continues(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "_FILES", 2)
    report(cli)
    whole = Path("c.jsonl").read_bytes()
    Path("c.jsonl").unlink()
    opened, reads = list[str](), text.read

    def fails(path: Path, encoding: str | None) -> Any:
        opened.append(path.name)
        if path.name == "a.txt" and opened.count("a.txt") == 1:
            raise KeyboardInterrupt
        return reads(path, encoding)

    monkeypatch.setattr(text, "read", fails)
    assert cli("text", "in", "--out", "c.jsonl", "--workers", "1")[0] == 130
    assert not Path("c.jsonl").exists()
    report(cli, "--workers", "1")
    assert Path("c.jsonl").read_bytes() == whole
    assert {name for name in opened if opened.count(name) > 1} == {"pic.png", "a.txt"}


def test_a_file_that_ends_the_process_is_left_out_at_last(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = text.read

    def dies(path: Path, encoding: str | None) -> Any:
        if path.name == "a.txt":
            raise SystemExit(9)
        return reads(path, encoding)

    monkeypatch.setattr(text, "read", dies)
    for _ in range(2):
        assert cli("text", "in", "--out", "c.jsonl", "--workers", "1")[0] == 9
    left_out = report(cli, "--workers", "1")["left_out"]
    assert left_out["broken"]["names"] == {"sub/a.txt": "reading it ended the process twice"}
    assert len(lines()) == 2


def test_any_number_of_processes_gives_the_same(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(70):
        (folder / f"in/{number}.txt").write_text(f"Text {number}.")
    report(cli, "--workers", "1")
    one = Path("c.jsonl").read_bytes()
    report(cli, "--workers", "2", "--fresh")
    assert Path("c.jsonl").read_bytes() == one
    assert len(lines()) == 73


def test_odd_names_loops_and_folders_without_access(cli: Cli, folder: Path) -> None:
    os.symlink(folder / "in", folder / "in" / "loop")
    os.symlink("nowhere", folder / "in" / "dangling.txt")
    os.mkfifo(folder / "in" / "pipe.txt")
    with open(os.fsencode(folder / "in") + b"/odd\xff.txt", "w") as file:
        file.write("Odd.")
    report(cli)
    assert [one["source"] for one in lines()] == [
        "notes.md", "odd\ufffd.txt", "sub/a.txt", "sub/prog.py",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("nowhere", "--out", "c.jsonl"), 3, "nowhere: no such folder"),
        (("in", "--out", "in/c.jsonl"), 2, "this is in the folder that is read"),
        (("in", "--out", "c.txt"), 2, "name a .jsonl file"),
        (("in", "--out", "c.jsonl", "--encoding", "x"), 2, "--encoding x: unknown"),
        (("in/pic.png", "--out", "c.jsonl"), 3, "unknown format: 1 .png: pic.png"),
        (("none", "--out", "c.jsonl"), 3, "none: no files in this folder"),
    ],
)
def test_wrong_input(
    cli: Cli, folder: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    (folder / "none").mkdir()
    found, _, err = cli("text", *arguments)
    assert (found, message in err) == (code, True), err
    assert not list(folder.glob("c.jsonl*"))
    assert not list(folder.glob(".c.jsonl*"))


def test_the_source_stays_visible(cli: Cli, folder: Path) -> None:
    report(cli)
    (source,) = resolve(("c.jsonl",))
    found = list(documents_of(source, TextConfig(train=("c.jsonl",))))
    assert found[1].origin == "c.jsonl:2 (sub/a.txt)"
