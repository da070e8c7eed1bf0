import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from plmctl.config.data import DataConfig
from plmctl.corpus.build import Stores, build, find
from plmctl.corpus.shard import TextEncoder
from plmctl.corpus.split import share_of
from plmctl.corpus.store import TokenStore
from plmctl.errors import DataError, PlmError
from tests.corpus.encoders import LetterEncoder, WrongEncoder

PROJECT = Path(__file__).parents[2]


def quiet(done: int, total: int) -> None:
    assert 0 <= done <= total


def make(
    config: DataConfig, root: Path, processes: int = 1, encoder: TextEncoder | None = None
) -> Stores:
    return build(config, encoder or LetterEncoder(), root=root, processes=processes, progress=quiet)


def text_of(store: TokenStore) -> list[list[list[int]]]:
    """Documents of sentences of ids."""
    ids = store.tokens(np.arange(store.num_tokens)).tolist()
    sentences = [ids[a:b] for a, b in pairwise(store.sentences.tolist())]
    return [sentences[a:b] for a, b in pairwise(store.documents.tolist())]


def encoded(*sentences: str) -> list[list[int]]:
    return [LetterEncoder.ids(sentence.replace(" ", "")).tolist() for sentence in sentences]


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Some 1.4 MB in two files, of which one is larger than a shard."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    texts = [f"Document {n} is here. It has {n * n} words! Or not?\n\n" for n in range(24_000)]
    (folder / "a.txt").write_text("".join(texts[:3_000]), encoding="utf-8")
    (folder / "b.txt").write_text("".join(texts[3_000:]), encoding="utf-8")
    return folder


def test_documents_sentences_and_words_in_the_order_of_the_corpus(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Ab cd. Dr. D!\nEf\n\n \n\ng\n", encoding="utf-8")
    (tmp_path / "b.jsonl").write_text(
        '{"text": "Hi. Ho."}\n{"text": " "}\n{"text": null}\n{"text": "中。"}\n', encoding="utf-8"
    )
    names = (str(tmp_path / "b.jsonl"), str(tmp_path / "a.txt"))
    stores = make(DataConfig(train=names, valid=None), tmp_path / "stores")
    store = TokenStore.open(stores.train)
    assert text_of(store) == [
        encoded("Hi.", "Ho."),
        encoded("中。"),
        encoded("Ab cd.", "Dr. D!", "Ef"),
        encoded("g"),
    ]
    words = "Hi. Ho. 中。 Abcd. Dr.D! Ef g".replace(" ", "")
    starts = store.word_starts(np.arange(store.num_tokens)).tolist()
    assert [letter for letter, start in zip(words, starts, strict=True) if start] == list(
        "HH中AcDDEg"
    )
    assert stores.valid is None
    assert stores.manifest["sentences"] == "en"
    assert stores.manifest["train"] == {
        "documents": 4,
        "sentences": 7,
        "tokens": len(words),
        "bytes": 3 + 3 + 6 + 6 + 6 + 2 + 1,
        "dropped": 2,
    }


def test_the_rule_for_sentences_is_chosen_by_the_script(tmp_path: Path) -> None:
    (tmp_path / "zh.txt").write_text("你好。再见！\n\n走吧", encoding="utf-8")
    stores = make(DataConfig(train=(str(tmp_path / "zh.txt"),), valid=None), tmp_path / "stores")
    assert stores.manifest["sentences"] == "zh"
    assert text_of(TokenStore.open(stores.train)) == [encoded("你好。", "再见！"), encoded("走吧")]


def test_one_process_and_two_make_the_same_bytes(tmp_path: Path, corpus: Path) -> None:
    config = DataConfig(train=(f"{corpus}/*.txt",), valid=0.1)
    one = make(config, tmp_path / "one")
    make(config, tmp_path / "two", processes=2)
    assert len(list((one.train.parent / "shards").iterdir())) >= 4
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    store = TokenStore.open(one.train)
    assert store.num_documents + TokenStore.open(one.valid or Path()).num_documents == 24_000
    texts = (corpus / "a.txt").read_text() + (corpus / "b.txt").read_text()
    kept = [t for t in texts.strip().split("\n\n") if share_of(t) >= 0.1]
    expected = "".join(kept).replace(" ", "")
    assert (
        store.tokens(np.arange(store.num_tokens)).tolist() == LetterEncoder.ids(expected).tolist()
    )


def test_the_split_is_by_document_and_keeps_duplicates_together(tmp_path: Path) -> None:
    texts = [f"Document {n}." for n in range(400)]
    lines = "\n\n".join([*texts, "", *(f"  {text} " for text in texts)])
    (tmp_path / "a.txt").write_text(lines, encoding="utf-8")
    stores = make(DataConfig(train=(str(tmp_path / "a.txt"),), valid=0.2), tmp_path / "stores")
    train, valid = (
        {tuple(document[0]) for document in text_of(TokenStore.open(path or Path()))}
        for path in (stores.train, stores.valid)
    )
    assert not train & valid
    assert len(train) + len(valid) == 400
    assert 50 <= len(valid) <= 110  # 80 are expected, with a standard deviation of 8
    assert {tuple(encoded(text)[0]) for text in texts if share_of(text) < 0.2} == valid


def test_validation_files_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One.\n\nTwo.", encoding="utf-8")
    (tmp_path / "b.txt").write_text("Three.", encoding="utf-8")
    names = (str(tmp_path / "a.txt"),)
    stores = make(DataConfig(train=names, valid=(str(tmp_path / "b.txt"),)), tmp_path / "stores")
    assert text_of(TokenStore.open(stores.train)) == [encoded("One."), encoded("Two.")]
    assert text_of(TokenStore.open(stores.valid or Path())) == [encoded("Three.")]


def test_a_store_is_found_until_something_changes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("One. Two.", encoding="utf-8")
    config, root = DataConfig(train=(str(path),), valid=None), tmp_path / "stores"
    assert find(config, LetterEncoder(), root=root) is None
    first = make(config, root)
    stamp = (first.train / "manifest.json").stat().st_mtime_ns
    assert make(config, root) == first
    assert (first.train / "manifest.json").stat().st_mtime_ns == stamp
    assert find(config.model_copy(update={"sentences": "none"}), LetterEncoder(), root=root) is None
    other = LetterEncoder()
    other.fingerprint = "another"
    assert find(config, other, root=root) is None
    path.write_text("One. Six.", encoding="utf-8")  # as long, but another time
    assert find(config, LetterEncoder(), root=root) is None
    assert make(config, root).digest != first.digest


def test_the_digest_is_of_the_content(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.txt").write_text("One. Two.", encoding="utf-8")
    first, second = (
        make(DataConfig(train=(f"{tmp_path / name}/*.txt",), valid=None), tmp_path / "stores")
        for name in ("a", "b")
    )
    assert first.train != second.train
    assert first.digest == second.digest


def test_the_manifest_names_the_sources_with_their_hashes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"abc")
    stores = make(DataConfig(train=(str(path),), valid=None), tmp_path / "stores")
    # The SHA-256 of "abc", from FIPS 180-2.
    sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    expected = {"name": str(path), "documents": "file", "sha256": sha256}
    assert stores.manifest["sources"] == [expected]


@pytest.mark.parametrize("content", ["", "\n \n\n", "\ufeff"])
def test_an_empty_corpus_is_refused_and_leaves_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.txt").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match="no text to train on in"):
        make(DataConfig(train=(str(tmp_path / "a.txt"),)), tmp_path / "stores")
    assert list((tmp_path / "stores").iterdir()) == []


def test_a_split_that_takes_everything_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One document", encoding="utf-8")
    share = share_of("One document") + 0.001
    with pytest.raises(DataError, match="the split held out all 1 documents"):
        make(DataConfig(train=(str(tmp_path / "a.txt"),), valid=share), tmp_path / "stores")


@pytest.mark.parametrize("processes", [1, 2])
def test_a_mistake_in_the_text_is_told_with_its_place(
    tmp_path: Path, corpus: Path, processes: int
) -> None:
    with (corpus / "b.txt").open("ab") as file:
        file.write(b"\xff\n")
    with pytest.raises(DataError, match=r"b\.txt:42001: not UTF-8") as caught:
        make(DataConfig(train=(f"{corpus}/*.txt",)), tmp_path / "stores", processes)
    assert "iconv" in str(caught.value.hint)
    assert not list((tmp_path / "stores").rglob("manifest.json"))


def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("zz", encoding="utf-8")
    config = DataConfig(train=(str(tmp_path / "a.txt"),), valid=None)
    with pytest.raises(DataError, match="token id 122 is outside the vocabulary of 50"):
        make(config, tmp_path / "stores", encoder=WrongEncoder())
    assert list((tmp_path / "stores").iterdir()) == []


def test_a_store_that_cannot_be_written_is_told_plainly(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text", encoding="utf-8")
    (tmp_path / "stores").write_text("a file, where the folder should be", encoding="utf-8")
    with pytest.raises(PlmError, match="stores.*: Not a directory|File exists") as caught:
        make(DataConfig(train=(str(tmp_path / "a.txt"),), valid=None), tmp_path / "stores")
    assert caught.value.exit_code == 1
    assert "data.store" in str(caught.value.hint)


def test_wide_ids(tmp_path: Path) -> None:
    class Wide(LetterEncoder):
        vocab_size = 70_000
        ids = staticmethod(lambda text: np.array([69_000 + len(text)], dtype=np.int64))

    (tmp_path / "a.txt").write_text("abc", encoding="utf-8")
    encoder = Wide()
    encoder._encode = lambda text: (Wide.ids(text), np.array([True]))  # type: ignore[method-assign]
    config = DataConfig(train=(str(tmp_path / "a.txt"),), valid=None)
    store = TokenStore.open(make(config, tmp_path / "stores", encoder=encoder).train)
    assert store.tokens(np.array([0])).tolist() == [69_003]


def test_progress_is_in_bytes_and_ends_full(tmp_path: Path, corpus: Path) -> None:
    told: list[tuple[int, int]] = []
    config = DataConfig(train=(f"{corpus}/*.txt",))
    build(
        config,
        LetterEncoder(),
        root=tmp_path / "stores",
        processes=1,
        progress=lambda done, total: told.append((done, total)),
    )
    size = sum(path.stat().st_size for path in corpus.iterdir())
    assert told[0] == (0, size)
    assert told[-1] == (size, size)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


SCRIPT = """
import os, resource, sys
from pathlib import Path
from plmctl.config.data import DataConfig
from plmctl.corpus.build import build
from tests.corpus.encoders import SlowEncoder, StuckEncoder

if __name__ == "__main__":
    config = DataConfig(train=(sys.argv[1],), valid=0.1)
    if files := int(os.environ.get("FILES", 0)):
        most = len(os.listdir("/proc/self/fd")) + files
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    build(config, {encoder}, root=Path(sys.argv[2]), processes=2, progress=lambda *_: None)
"""


def start(
    tmp_path: Path, corpus: Path, root: Path, encoder: str = "SlowEncoder()", files: int = 0
) -> "subprocess.Popen[bytes]":
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(encoder=encoder), encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, str(script), f"{corpus}/*.txt", str(root)],
        env=os.environ | {"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1", "FILES": f"{files}"},
        start_new_session=True,
        stderr=subprocess.PIPE,
    )


def finished(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in root.glob("*/shards/*/facts.json")}


def children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks at processes in /proc")
def test_a_build_killed_at_work_goes_on_to_the_same_bytes(tmp_path: Path, corpus: Path) -> None:
    root = tmp_path / "stores"
    process = start(tmp_path, corpus, root)
    deadline = time.monotonic() + 300
    while not finished(root):
        assert time.monotonic() < deadline, process.stderr and process.stderr.read()
        time.sleep(0.01)
    workers = children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    while any(Path(f"/proc/{pid}/cwd").exists() for pid in workers):  # they end with it
        assert time.monotonic() < deadline
        time.sleep(0.01)
    kept = finished(root)
    (folder,) = root.iterdir()
    assert kept
    assert not (folder / "manifest.json").exists()
    assert list(folder.glob(".unfinished-*"))
    config = DataConfig(train=(f"{corpus}/*.txt",), valid=0.1)
    make(config, root)
    assert not list(folder.glob(".*"))
    made = finished(root)
    assert len(made) > len(kept)
    assert {path: made[path] for path in kept} == kept
    make(config, tmp_path / "whole")
    assert tree(root) == tree(tmp_path / "whole")


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks at processes in /proc")
def test_a_killed_worker_is_told_plainly(tmp_path: Path, corpus: Path) -> None:
    process = start(tmp_path, corpus, tmp_path / "stores")
    deadline = time.monotonic() + 300
    while not finished(tmp_path / "stores"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(children(process.pid)[-1], signal.SIGKILL)
    _, errors = process.communicate(timeout=300)
    assert PlmError.__name__.encode() in errors
    assert b"was killed, perhaps because memory ran out" in errors


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks at processes in /proc")
def test_a_worker_killed_while_it_waits_for_work_leaves_none_behind(tmp_path: Path) -> None:
    """It holds the lock of the queue of work, for which the others would wait for ever."""
    corpus, said = tmp_path / "corpus", tmp_path / "stuck"
    corpus.mkdir()
    for name in ("a", "x"):
        (corpus / f"{name}.txt").write_text(f"{name} b\n", encoding="utf-8")
    process = start(tmp_path, corpus, tmp_path / "stores", f"StuckEncoder(Path({str(said)!r}))")
    deadline = time.monotonic() + 300
    while not (finished(tmp_path / "stores") and said.is_file() and said.read_text()):
        assert time.monotonic() < deadline, process.stderr and process.stderr.read()
        time.sleep(0.01)
    time.sleep(0.5)  # until the other one waits
    stuck = int(said.read_text())
    _tracker, *workers = children(process.pid)
    (idle,) = set(workers) - {stuck}
    os.kill(idle, signal.SIGKILL)
    _, errors = process.communicate(timeout=300)
    assert b"was killed, perhaps because memory ran out" in errors
    assert not any(Path(f"/proc/{pid}/cwd").exists() for pid in (stuck, idle))


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks at files in /proc")
@pytest.mark.parametrize("files", [6, 10])
def test_processes_that_cannot_be_started_are_told_plainly(
    tmp_path: Path, corpus: Path, files: int
) -> None:
    """A limit on open files that is reached by the pool, or by one of its processes."""
    _, errors = start(tmp_path, corpus, tmp_path / "stores", files=files).communicate(timeout=300)
    assert b"cannot be started: Too many open files\n  raise the limit (ulimit -n" in errors


def test_two_builds_at_once_make_one_store(tmp_path: Path, corpus: Path) -> None:
    root = tmp_path / "stores"
    both = [start(tmp_path, corpus, root) for _ in range(2)]
    assert [process.wait(timeout=300) for process in both] == [0, 0]
    (folder,) = root.iterdir()
    make(DataConfig(train=(f"{corpus}/*.txt",), valid=0.1), tmp_path / "whole")
    assert tree(root) == tree(tmp_path / "whole")
