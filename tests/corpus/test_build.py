import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plmctl.config.sections import DataConfig
from plmctl.corpus.build import Root, Stores, TextEncoder, build_stores, find_stores
from plmctl.corpus.document import share_of
from plmctl.corpus.sentences import Rule, split_sentences
from plmctl.corpus.store import TokenStore
from plmctl.errors import DataError, PlmError
from plmctl.tokenization.encode import Encoder
from tests.corpus.encoders import LetterEncoder, WrongEncoder
from tests.processes import is_running

PROJECT = Path(__file__).parents[2]
NOTICES: list[str] = []


def quiet(done: int, total: int) -> None:
    assert 0 <= done <= total


def make(
    config: DataConfig, root: Root, processes: int = 1, encoder: TextEncoder | None = None
) -> Stores:
    return build_stores(
        config,
        encoder or LetterEncoder(),
        root=root,
        processes=processes,
        progress=quiet,
        notice=NOTICES.append,
    )


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
        if path.is_file() and not path.name.startswith(".checked-")  # which has times
    }


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


@pytest.mark.slow
def test_one_process_and_two_make_the_same_bytes(tmp_path: Path, corpus: Path) -> None:
    config = DataConfig(train=(f"{corpus}/*.txt",), valid=0.1)
    one = make(config, tmp_path / "one")
    make(config, tmp_path / "two", processes=2)
    assert len(list((one.train.parent / "shards").iterdir())) >= 4
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    store = TokenStore.open(one.train)
    assert store.num_documents + TokenStore.open(one.valid or Path()).num_documents == 2_400
    texts = (corpus / "a.txt").read_text() + (corpus / "b.txt").read_text()
    train = [t for t in texts.strip().split("\n\n") if share_of(t) >= 0.1]
    expected = "".join(train).replace(" ", "")
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


def test_of_equal_documents_only_the_first_is_kept(tmp_path: Path, corpus: Path) -> None:
    rows = [f"Document {n % 700} is here. It has words.\n\n" for n in range(2_000)]
    (corpus / "c.txt").write_text("".join(rows), encoding="utf-8")
    (corpus / "d.txt").write_text("  Document 3 is here. It has words. \n\n \n", encoding="utf-8")
    names = (f"{corpus}/c.txt", f"{corpus}/d.txt")
    NOTICES.clear()
    drop = DataConfig(train=names, valid=0.1, duplicates="drop")
    one = make(drop, tmp_path / "one")
    assert NOTICES == ["duplicates: 1,301 of 2,001 documents dropped (data.duplicates: drop)"]
    assert len(list((one.train.parent / "shards").iterdir())) >= 3  # equal documents lie in several
    sides = one.manifest["train"], one.manifest["valid"]
    assert sum(side["documents"] for side in sides) == 700
    assert sum(side["duplicates"] for side in sides) == 1_301
    (corpus / "e.txt").write_text("".join(rows[:700]), encoding="utf-8")
    once = make(DataConfig(train=(f"{corpus}/e.txt",), valid=0.1), tmp_path / "once")
    for path, expected in ((one.train, once.train), (one.valid, once.valid)):
        store, of_once = TokenStore.open(path or Path()), TokenStore.open(expected or Path())
        everything = np.arange(store.num_tokens)
        assert np.array_equal(store.tokens(everything), of_once.tokens(everything))
        assert np.array_equal(store.documents, of_once.documents)
    # Nothing is left of the search, and without it neither the name nor the content has it.
    assert not (one.train.parent / "hashes").exists()
    keep = drop.model_copy(update={"duplicates": "keep"})
    assert find_stores(drop, LetterEncoder(), root=tmp_path / "one") is not None
    assert find_stores(keep, LetterEncoder(), root=tmp_path / "one") is None
    assert "duplicates" not in once.manifest["train"]
    # The same in any number of processes, and if a shard is built again.
    before = tree(tmp_path / "one")
    make(drop, tmp_path / "two", processes=2)
    assert tree(tmp_path / "two") == before
    shutil.rmtree(one.train.parent / "shards" / "00000")
    make(drop, tmp_path / "one")
    assert tree(tmp_path / "one") == before


def name_of(version: int, train: Path, *valid: Path) -> str:
    """The name that a store of text files has always had, with the rules that are the default."""

    def stamp(path: Path) -> list:
        facts = path.stat()
        return [str(path.resolve()), "text", [[facts.st_size, facts.st_mtime_ns]]]

    stamps = [[stamp(train)], [stamp(path) for path in valid]]
    names = [str(path) for path in valid] or None
    rules = {"valid": names, "text": "text", "documents": "auto", "sentences": "auto"}
    document = json.dumps([version, rules, stamps, "letters"], sort_keys=True)
    return hashlib.blake2b(document.encode(), digest_size=8).hexdigest()


def test_a_store_that_keeps_duplicates_has_the_name_that_it_always_had(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("One. Two.", encoding="utf-8")
    stores = make(DataConfig(train=(str(path),), valid=None), tmp_path / "stores")
    assert stores.train.parent.name == name_of(3, path)


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
    assert find_stores(config, LetterEncoder(), root=root) is None
    first = make(config, root)
    stamp = (first.train / "manifest.json").stat().st_mtime_ns
    assert make(config, root) == first
    assert (first.train / "manifest.json").stat().st_mtime_ns == stamp
    assert (
        find_stores(config.model_copy(update={"sentences": "none"}), LetterEncoder(), root=root)
        is None
    )
    other = LetterEncoder()
    other.fingerprint = "another"
    assert find_stores(config, other, root=root) is None
    path.write_text("One. Six.", encoding="utf-8")  # as long, but another time
    assert find_stores(config, LetterEncoder(), root=root) is None
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
    with pytest.raises(DataError, match=r"b\.txt:4201: not UTF-8") as caught:
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
    reports: list[tuple[int, int]] = []
    config = DataConfig(train=(f"{corpus}/*.txt",))
    build_stores(
        config,
        LetterEncoder(),
        root=tmp_path / "stores",
        processes=1,
        progress=lambda done, total: reports.append((done, total)),
        notice=NOTICES.append,
    )
    size = sum(path.stat().st_size for path in corpus.iterdir())
    assert reports[0] == (0, size)
    assert reports[-1] == (size, size)
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)


SCRIPT = """
import os, resource, sys
from pathlib import Path
from plmctl.config.sections import DataConfig
from plmctl.corpus import build
from tests.corpus.encoders import SlowEncoder, StuckEncoder

build._MIN_PIECE = 50_000
if __name__ == "__main__":
    config = DataConfig(train=(sys.argv[1],), valid=0.1)
    if files := int(os.environ.get("FILES", 0)):
        most = len(os.listdir("/proc/self/fd")) + files
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    build.build_stores(config, {encoder}, root=Path(sys.argv[2]), processes=2, notice=print,
                       progress=lambda *_: None)
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


@pytest.mark.slow
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
    while any(is_running(pid) for pid in workers):  # they end with it
        assert time.monotonic() < deadline
        time.sleep(0.01)
    finished_before = finished(root)
    (folder,) = root.iterdir()
    assert finished_before
    assert not (folder / "manifest.json").exists()
    assert list(folder.glob(".unfinished-*"))
    config = DataConfig(train=(f"{corpus}/*.txt",), valid=0.1)
    make(config, root)
    assert [path.name[:9] for path in folder.glob(".*")] == [".checked-"]
    finished_after = finished(root)
    assert len(finished_after) > len(finished_before)
    assert {path: finished_after[path] for path in finished_before} == finished_before
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
    corpus, pid_file = tmp_path / "corpus", tmp_path / "stuck"
    corpus.mkdir()
    for name in ("a", "x"):
        (corpus / f"{name}.txt").write_text(f"{name} b\n", encoding="utf-8")
    process = start(tmp_path, corpus, tmp_path / "stores", f"StuckEncoder(Path({str(pid_file)!r}))")
    deadline = time.monotonic() + 300
    while not (finished(tmp_path / "stores") and pid_file.is_file() and pid_file.read_text()):
        assert time.monotonic() < deadline, process.stderr and process.stderr.read()
        time.sleep(0.01)
    time.sleep(0.5)  # until the other one waits
    stuck = int(pid_file.read_text())
    _tracker, *workers = children(process.pid)
    (idle,) = set(workers) - {stuck}
    os.kill(idle, signal.SIGKILL)
    _, errors = process.communicate(timeout=300)
    assert b"was killed, perhaps because memory ran out" in errors
    assert not any(is_running(pid) for pid in (stuck, idle))


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks at files in /proc")
@pytest.mark.parametrize("files", [6, 10])
def test_processes_that_cannot_be_started_are_told_plainly(
    tmp_path: Path, corpus: Path, files: int
) -> None:
    """A limit on open files that is reached by the pool, or by one of its processes."""
    _, errors = start(tmp_path, corpus, tmp_path / "stores", files=files).communicate(timeout=300)
    assert b"cannot be started: Too many open files\n  increase the limit (ulimit -n" in errors


@pytest.mark.slow
def test_two_builds_at_once_make_one_store(tmp_path: Path, corpus: Path) -> None:
    root = tmp_path / "stores"
    both = [start(tmp_path, corpus, root) for _ in range(2)]
    assert [process.wait(timeout=300) for process in both] == [0, 0]
    (folder,) = root.iterdir()
    make(DataConfig(train=(f"{corpus}/*.txt",), valid=0.1), tmp_path / "whole")
    assert tree(root) == tree(tmp_path / "whole")


@pytest.fixture
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """A byte-level BPE tokenizer of a few merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(
        ["the cat sat. The end\n\n    return x\n", "中国。人民"] * 9, trainer
    )
    folder = tmp_path_factory.mktemp("gpt2")
    tokenizer.save(str(folder / "tokenizer.json"))
    return Encoder(str(folder))


def decoded(store: TokenStore, encoder: Encoder) -> list[str]:
    """The documents of a store, from their ids."""
    ids = store.tokens(np.arange(store.num_tokens)).tolist()
    bounds = pairwise(store.sentences[store.documents].tolist())
    return [encoder._tokenizer.decode(ids[a:b], skip_special_tokens=False) for a, b in bounds]


DOCUMENTS = [
    'It ended .\nHe had a role. "No." she said...   And left!\n',
    "def f(x):\n\tif x:\n        return x  # why?\n\n\n    return None\n",
    "One line.\r\nAnother one.\r\n\r\n\r\nThe end",
    "中国人民站起来了。“好！”他说。　　北京很大。\n下一段。",
    "👩‍👩‍👧 said 👍🏽. Naïve café\u00a0… x\u200by\u2028z\x0b end.\x85New",
    "   \n\n leading, and trailing \n\n ",
    "No stop at all",
]


@pytest.mark.parametrize("rule", ["en", "zh", "line", "none", "auto"])
def test_a_store_keeps_the_text_byte_for_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpt2: Encoder, rule: str
) -> None:
    monkeypatch.setattr("plmctl.corpus.build._BATCH_CHARACTERS", 50)  # in several stretches too
    odd = st.sampled_from([" ", "\n", "\r\n", "\t", ".", "!", "。", "”", "It", "中国", "e\u0301"])
    texts = st.one_of(st.sampled_from(DOCUMENTS), st.lists(odd).map("".join), st.text())

    @settings(max_examples=25, deadline=None)
    @given(st.lists(texts, min_size=1, max_size=6))
    @example(DOCUMENTS)
    def check(documents: list[str]) -> None:
        rows = [{"text": text} for text in [*documents, "a document that there always is"]]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        (folder / "a.jsonl").write_text(lines, encoding="utf-8")
        config = DataConfig(train=(str(folder / "a.jsonl"),), valid=None, sentences=rule)
        store = TokenStore.open(make(config, folder, encoder=gpt2).train)
        nonempty = [row["text"] for row in rows if row["text"].strip()]
        assert decoded(store, gpt2) == nonempty
        # Every sentence but the first of a document has the white space that stands before it.
        expected = [split_sentences(text, store_rule(folder)) for text in nonempty]
        assert store.num_sentences <= sum(map(len, expected))
        assert np.array_equal(store.sentences, np.unique(store.sentences))

    check()


def store_rule(folder: Path) -> Rule:
    (manifest,) = folder.glob("*/manifest.json")
    rule: Rule = json.loads(manifest.read_text(encoding="utf-8"))["sentences"]
    return rule


def test_sentences_are_stretches_of_the_encoding(tmp_path: Path, gpt2: Encoder) -> None:
    (tmp_path / "a.txt").write_text("The cat sat. It left.\n\nMr. X\nran.  Away!", encoding="utf-8")
    config = DataConfig(train=(str(tmp_path / "a.txt"),), valid=None, sentences="en")
    store = TokenStore.open(make(config, tmp_path / "stores", encoder=gpt2).train)
    ids = store.tokens(np.arange(store.num_tokens)).tolist()
    bounds = pairwise(store.sentences.tolist())
    assert [gpt2._tokenizer.decode(ids[a:b]) for a, b in bounds] == [
        "The cat sat.", " It left.\n", "Mr. X\nran.", "  Away!",
    ]  # fmt: skip


def everything(stores: Stores) -> dict[str, bytes]:
    return tree(stores.train.parent)


SHARD = "shards/00001"
DAMAGE = {
    "a bit of a hundredth of the ids": (f"{SHARD}/train/tokens", "bits"),
    "ids in reverse": (f"{SHARD}/train/tokens", "reverse"),
    "one id": (f"{SHARD}/valid/tokens", "last"),
    "word starts": (f"{SHARD}/train/words", "reverse"),
    "sizes of sentences": (f"{SHARD}/train/sentences", "reverse"),
    "offsets": ("train/sentences", "last"),
    "half a file": (f"{SHARD}/train/tokens", "half"),
    "no file": (f"{SHARD}/train/tokens", "delete"),
    "no shard": (SHARD, "delete"),
    "no offsets": ("train/documents", "delete"),
    "no manifest": ("manifest.json", "delete"),
    "an empty manifest": ("manifest.json", "{}"),
    "a manifest that is a list": ("manifest.json", "[]"),
    "another digest in the manifest": ("manifest.json", "digest"),
    "no manifest of a side": ("train/manifest.json", "delete"),
    "a changed manifest of a side": ("valid/manifest.json", "last"),
}


@pytest.fixture(scope="module", autouse=True)
def _small_shards() -> Iterator[None]:
    """Several shards of little text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("plmctl.corpus.build._MIN_PIECE", 50_000)
        yield


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[DataConfig, Stores]:
    """A store of several shards."""
    folder = tmp_path_factory.mktemp("sound")
    texts = [f"Document {n} is here. It has {n * n} words! Or not?\n\n" for n in range(2_400)]
    (folder / "a.txt").write_text("".join(texts), encoding="utf-8")
    config = DataConfig(train=(str(folder / "a.txt"),), valid=0.1)
    return config, make(config, folder / "stores")


@pytest.mark.parametrize("keeps_time", [True, pytest.param(False, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_made_good(
    tmp_path: Path, sound: tuple[DataConfig, Stores], name: str, keeps_time: bool
) -> None:
    config, stores = sound
    before = everything(stores)
    root = tmp_path / "stores"
    shutil.copytree(stores.train.parents[1], root, copy_function=shutil.copy2)
    assert find_stores(config, LetterEncoder(), root=root) is not None  # which looks at every byte
    file, how = DAMAGE[name]
    path = root / stores.train.parent.name / file
    stamp = path.stat()
    damage(path, how)
    if keeps_time and path.is_file():
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    NOTICES.clear()
    rebuilt = make(config, root)
    assert tree(root / stores.train.parent.name) == before
    assert rebuilt.digest == stores.digest
    assert find_stores(config, LetterEncoder(), root=root, every_byte=True) is not None
    if name != "no manifest":  # which is what a build that was killed leaves
        assert len(NOTICES) == 1
        assert "is damaged" in NOTICES[0]


def damage(path: Path, how: str) -> None:
    if how == "delete":
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        return
    data = path.read_bytes()
    if how == "bits":
        ids = np.frombuffer(data, "<u2").copy()
        ids[::100] ^= 1
        data = ids.tobytes()
    elif how == "reverse":
        data = data[::-1]
    elif how == "last":
        data = data[:-2] + bytes([data[-2] ^ 1, data[-1]])
    elif how == "half":
        data = data[: len(data) // 2]
    elif how == "digest":
        data = data.replace(b'"digest": "', b'"digest": "0')
    else:
        data = how.encode()
    path.write_bytes(data)


def test_one_bit_deep_inside_is_found_by_looking_at_every_byte(
    tmp_path: Path, sound: tuple[DataConfig, Stores]
) -> None:
    config, stores = sound
    shutil.copytree(stores.train.parents[1], tmp_path / "s", copy_function=shutil.copy2)
    assert find_stores(config, LetterEncoder(), root=tmp_path / "s") is not None
    path = tmp_path / "s" / stores.train.parent.name / SHARD / "train" / "tokens"
    stamp, data = path.stat(), bytearray(path.read_bytes())
    assert len(data) > 10 * 5000
    data[5000] ^= 1  # between two of the blocks that are always looked at
    path.write_bytes(bytes(data))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert find_stores(config, LetterEncoder(), root=tmp_path / "s") is not None
    assert find_stores(config, LetterEncoder(), root=tmp_path / "s", every_byte=True) is None


def test_another_validation_text_does_not_make_the_training_text_again(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(f"Text of {name}. And more.\n\nIt ends.")
    names = {name: (str(tmp_path / f"{name}.txt"),) for name in "abc"}
    one, two = (
        make(DataConfig(train=names["a"], valid=names[name]), tmp_path / "stores") for name in "bc"
    )
    assert one.train == two.train
    assert one.valid != two.valid
    assert one.digest != two.digest
    assert len(list((tmp_path / "stores").iterdir())) == 3


@pytest.mark.parametrize("sentences", ["auto", "none"])
def test_a_store_of_an_earlier_version_is_not_used(tmp_path: Path, sentences: str) -> None:
    (tmp_path / "a.txt").write_text("Some text.")
    (tmp_path / "b.txt").write_text("Other text.")
    own = (str(tmp_path / "b.txt"),)
    config = DataConfig(train=(str(tmp_path / "a.txt"),), valid=own)
    earlier = tmp_path / "stores" / name_of(2, tmp_path / "a.txt", tmp_path / "b.txt")
    earlier.mkdir(parents=True)
    NOTICES.clear()
    config = config.model_copy(update={"sentences": sentences})
    make(config, tmp_path / "stores")
    assert len(NOTICES) == 1
    assert f"{earlier} was built by an earlier version" in NOTICES[0]
    make(config, tmp_path / "stores")
    assert len(NOTICES) == 1


def real_text(name: str, data: Path) -> list[str]:
    """A few million bytes as documents."""
    if name == "code":
        import transformers

        files = sorted(Path(transformers.__file__).parent.rglob("*.py"))
        texts = (path.read_bytes().decode() for path in files)
    else:
        folders = {"english": ["english10m"], "chinese": ["zh_news"]}[name]
        whole = "".join(
            (data / "corpora" / folder / "train.txt").read_text(encoding="utf-8")
            for folder in folders
        )
        texts = (whole[at : at + 20_000] for at in range(0, len(whole), 20_000))
    lines, size = [], 0
    for text in texts:
        lines.append(text)
        size += len(text.encode())
        if size >= 3_000_000:
            break
    return [text for text in lines if text.strip()]


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["english", "chinese", "code"])
def test_real_text_comes_back_byte_for_byte(tmp_path: Path, shared_data: Path, name: str) -> None:
    """With the published GPT-2 vocabulary, over several processes; CRLF line ends too."""
    from transformers import GPT2Tokenizer

    published = shared_data / "parity" / "gpt2"
    vocab = json.loads((published / "vocab.json").read_text(encoding="utf-8"))
    merges = (published / "merges.txt").read_text(encoding="utf-8").splitlines()
    pairs = [tuple(line.split(" ")) for line in merges if not line.startswith("#version")]
    GPT2Tokenizer(vocab=vocab, merges=pairs).save_pretrained(tmp_path / "gpt2")
    encoder = Encoder(str(tmp_path / "gpt2"))
    texts = real_text(name, shared_data)
    texts += [text.replace("\n", "\r\n") for text in texts[:50]]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "text.jsonl").write_text(lines, encoding="utf-8")
    config = DataConfig(train=(str(tmp_path / "text.jsonl"),), valid=None)
    store = TokenStore.open(make(config, tmp_path / "stores", processes=2, encoder=encoder).train)
    assert decoded(store, encoder) == texts
    ids = store.tokens(np.arange(store.num_tokens))
    whole = [e.ids for e in encoder._tokenizer.encode_batch(texts, add_special_tokens=False)]
    assert ids.tolist() == [id_ for document in whole for id_ in document]
    print(f"{name}: {sum(len(t.encode()) for t in texts):,} bytes, {store.num_tokens:,} tokens")


@pytest.fixture
def many(tmp_path: Path) -> tuple[str, ...]:
    """A hundred small files, of two kinds, and one that is cut into pieces."""
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(100):
        gap = "\n\n" if number % 3 else "\n"
        text = f"File {number} is here.{gap}It has {number * number} words!\n"
        (folder / f"{number:03d}.txt").write_text(text, encoding="utf-8")
    (folder / "050.jsonl").write_text('{"text": "A row. Of two."}\n', encoding="utf-8")
    lines = (f"Line {number} of a large file.\n\n" for number in range(4_000))
    (folder / "070-large.txt").write_text("".join(lines), encoding="utf-8")
    return (f"{folder}/*",)


@pytest.mark.sweep
def test_many_small_files_share_shards(
    tmp_path: Path, many: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = DataConfig(train=many, valid=0.1)
    packed = make(config, tmp_path / "packed")
    shards = packed.train.parent / "shards"
    # Those before the large file, its three pieces, and those after it.
    assert len(list(shards.iterdir())) == 5
    make(config, tmp_path / "two", processes=2)
    assert tree(tmp_path / "packed") == tree(tmp_path / "two")
    monkeypatch.setattr("plmctl.corpus.build._FEW_SOURCES", 1000)
    alone = make(config, tmp_path / "alone")
    assert len(list((alone.train.parent / "shards").iterdir())) == 104
    for one, other in ((packed.train, alone.train), (packed.valid, alone.valid)):
        first, second = TokenStore.open(one or Path()), TokenStore.open(other or Path())
        assert text_of(first) == text_of(second)
        everything = np.arange(first.num_tokens)
        assert np.array_equal(first.word_starts(everything), second.word_starts(everything))
    assert packed.manifest["sources"] == alone.manifest["sources"]
    assert packed.manifest["train"] == alone.manifest["train"]


@pytest.mark.sweep
def test_a_store_with_a_shard_per_file_is_read_and_repaired(
    tmp_path: Path, many: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As earlier versions built it."""
    config, root = DataConfig(train=many, valid=0.1), tmp_path / "stores"
    with monkeypatch.context() as earlier:
        earlier.setattr("plmctl.corpus.build._FEW_SOURCES", 1000)
        before = make(config, root)
        text = text_of(TokenStore.open(before.train))
    assert make(config, root) == before
    (before.train.parent / "shards" / "00007" / "train" / "tokens").write_bytes(b"")
    after = make(config, root)
    assert after.train == before.train
    assert text_of(TokenStore.open(after.train)) == text
    make(config, tmp_path / "whole")
    assert tree(root) == tree(tmp_path / "whole")  # nothing is left of the other shards


def test_duplicates_are_found_across_packed_files(tmp_path: Path, many: tuple[str, ...]) -> None:
    folder = Path(many[0]).parent
    shutil.copy(folder / "001.txt", folder / "999.txt")
    stores = make(DataConfig(train=many, valid=None, duplicates="drop"), tmp_path / "stores")
    assert stores.manifest["train"]["duplicates"] == 2
