"""Text and stores at fsspec URLs: memory:// and file:// are real file systems, http a server."""

import http.server
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from plmctl.config.sections import DataConfig
from plmctl.corpus import build, remote, store
from plmctl.corpus.build import Stores, build_stores, find_stores
from plmctl.corpus.reading import documents
from plmctl.corpus.remote import RemoteFile, RemoteRoot, store_root
from plmctl.corpus.source import resolve
from plmctl.corpus.store import TokenStore
from plmctl.errors import ConfigError, DataError, PlmError
from tests.corpus.encoders import LetterEncoder
from tests.corpus.test_build import text_of, tree

NOTICES: list[str] = []


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_WAITS", (0.01, 0.01))
    monkeypatch.setattr(build, "_MIN_PIECE", 50_000)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Text of several shards."""
    lines = [f"Document {n} is here. It has {n * n} words! Or not?\n\n" for n in range(2_400)]
    (tmp_path / "a.txt").write_text("".join(lines), encoding="utf-8")
    return tmp_path / "a.txt"


def make(config: DataConfig, root: Path | RemoteRoot, *, every_byte: bool = False) -> Stores:
    return build_stores(
        config,
        LetterEncoder(),
        root=root,
        processes=1,
        progress=lambda done, total: None,
        notice=NOTICES.append,
        every_byte=every_byte,
    )


def rooted(tmp_path: Path, limit: int = 10**9, cache: str = "cache") -> RemoteRoot:
    root = store_root(f"file://{tmp_path}/far", str(tmp_path / cache), limit)
    assert isinstance(root, RemoteRoot)
    return root


class Server(http.server.SimpleHTTPRequestHandler):
    """Fails every other request, and knows no ranges."""

    requests = 0

    def do_GET(self) -> None:
        type(self).requests += 1
        if self.requests % 2:
            self.send_error(503)
        else:
            super().do_GET()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)

    def handler(*arguments: object) -> Server:
        return Server(*arguments, directory=str(tmp_path))  # type: ignore[arg-type]

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)  # type: ignore[arg-type]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_file_of_unknown_size_is_refused(
    tmp_path: Path, web: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be read as an empty one."""
    (tmp_path / "a.txt").write_text("One.\n", encoding="utf-8")

    def no_length(self: Server) -> None:
        self.send_response(200)
        self.end_headers()

    monkeypatch.setattr(Server, "do_HEAD", no_length)
    monkeypatch.setattr(Server, "do_GET", no_length)
    with pytest.raises(DataError, match="does not say how large the file is"):
        resolve((f"{web}/a.txt",))


def test_text_is_read_from_any_url(tmp_path: Path, web: str) -> None:
    import gzip

    import fsspec
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "a.txt").write_text("One.\n\nTwo.\n", encoding="utf-8")
    (tmp_path / "b.jsonl").write_text('{"text": "Three."}\n', encoding="utf-8")
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"Four.\n"))
    pq.write_table(pa.table({"text": ["Five."]}), tmp_path / "d.parquet")
    files = fsspec.filesystem("memory")
    names = ("a.txt", "b.jsonl", "c.txt.gz", "d.parquet")
    for name in names:
        files.pipe_file(f"/corpus/{name}", (tmp_path / name).read_bytes())
    expected = ["One.\n\n", "Two.\n", "Three.", "Four.\n", "Five."]
    for pattern in (
        ("memory://corpus/*",),
        (f"file://{tmp_path}/*.*",),
        tuple(f"{web}/{name}?download=true" for name in names),
    ):
        config = DataConfig(train=pattern, valid=None)
        texts = [d.text for source in resolve(config.train) for d in documents(source, config)]
        assert [text.strip() for text in texts] == [text.strip() for text in expected], pattern


@pytest.mark.slow
def test_a_remote_corpus_has_the_content_of_the_local_one(tmp_path: Path, text: Path) -> None:
    local = make(DataConfig(train=(str(text),), valid=0.1), tmp_path / "stores")
    config = DataConfig(train=(f"file://{text}",), valid=0.1)
    far = make(config, tmp_path / "stores")
    assert len(list((far.train.parent / "shards").iterdir())) > 1
    assert far.digest == local.digest
    assert "sha256" not in far.manifest["sources"][0]
    assert far.manifest["sources"][0]["stamp"]
    os.utime(text, ns=(1, 1))
    assert find_stores(config, LetterEncoder(), root=tmp_path / "stores") is None


def test_a_store_at_a_url_is_the_store_of_a_folder(tmp_path: Path, text: Path) -> None:
    config = DataConfig(train=(str(text),), valid=0.1)
    near, far = make(config, tmp_path / "near"), make(config, rooted(tmp_path))
    assert far.digest == near.digest
    (there,) = (tmp_path / "far").iterdir()
    (there / "started").unlink()
    assert tree(there) == tree(near.train.parent)
    # Another machine, with an empty cache, finds it and reads shards when it needs them.
    other = rooted(tmp_path, cache="other")
    found = find_stores(config, LetterEncoder(), root=other)
    assert found is not None
    assert not list(other.cache.glob("*/*/shards"))
    one, two = TokenStore.open(near.train), TokenStore.open(found.train)
    assert one.digest == two.digest
    two.tokens(np.array([0]))
    assert len(list(other.cache.glob("*/*/shards/*/*"))) == 1
    assert text_of(one) == text_of(two)
    everything = np.arange(one.num_tokens)
    assert np.array_equal(one.word_starts(everything), two.word_starts(everything))


@pytest.mark.slow
def test_a_store_in_memory(text: Path, tmp_path: Path) -> None:
    config = DataConfig(train=(str(text),), valid=None)
    root = store_root("memory://bucket/stores", str(tmp_path / "cache"), 10**9)
    far = make(config, root)
    shutil.rmtree(tmp_path / "cache")
    found = find_stores(config, LetterEncoder(), root=root)
    assert found is not None
    near = make(config, tmp_path / "near")
    assert text_of(TokenStore.open(found.train)) == text_of(TokenStore.open(near.train))
    assert far.digest == near.digest


@pytest.mark.slow
def test_the_cache_keeps_to_its_limit(tmp_path: Path, text: Path) -> None:
    config = DataConfig(train=(str(text),), valid=None)
    near = make(config, tmp_path / "near")
    limit = 150_000
    far = make(config, rooted(tmp_path, limit))
    assert far.digest == near.digest
    cache = tmp_path / "cache"

    def size() -> int:
        return sum(path.stat().st_size for path in cache.glob("*/*/shards/*/*/*"))

    shards = near.train.parent.glob("shards/*/train")
    largest = max(sum(f.stat().st_size for f in shard.iterdir()) for shard in shards)
    assert 2 * largest > limit > largest  # so that there is room for one
    assert 0 < size() <= limit
    opened, expected = TokenStore.open(far.train), TokenStore.open(near.train)
    order = np.random.default_rng(0).permutation(opened.num_tokens)[:1000]
    for _ in range(2):
        assert np.array_equal(opened.tokens(order), expected.tokens(order))
        assert size() <= limit
    # Only what is on the disk is mapped, so that the space of removed files is free.
    assert sum(shard.is_there for shard in store._mapped_shards) == len(store._mapped_shards)


def test_a_build_continues_on_another_machine(tmp_path: Path, text: Path) -> None:
    config = DataConfig(train=(str(text),), valid=0.1)
    make(config, rooted(tmp_path))
    (there,) = (tmp_path / "far").iterdir()
    expected = tree(there)
    (there / "manifest.json").unlink()
    (there / "shards" / "00001" / "facts.json").unlink()
    kept = there / "shards" / "00000" / "train" / "tokens"
    stamp = kept.stat().st_mtime_ns
    make(config, rooted(tmp_path, cache="other"))
    assert tree(there) == expected
    assert kept.stat().st_mtime_ns == stamp
    assert not (tmp_path / "other").joinpath("shards", "00000").exists()


def test_damage_at_the_url_is_reported_and_repaired(tmp_path: Path, text: Path) -> None:
    config = DataConfig(train=(str(text),), valid=None)
    make(config, rooted(tmp_path))
    (there,) = (tmp_path / "far").iterdir()
    expected = tree(there)
    path = there / "shards" / "00001" / "train" / "tokens"
    path.write_bytes(path.read_bytes()[::-1])
    other = rooted(tmp_path, cache="other")
    found = find_stores(config, LetterEncoder(), root=other)
    assert found is not None
    with pytest.raises(PlmError, match="differs from its hash in the manifest") as caught:
        text_of(TokenStore.open(found.train))
    assert "--verify" in str(caught.value.hint)
    NOTICES.clear()
    make(config, other, every_byte=True)
    assert len(NOTICES) == 1
    assert "is damaged (shards/00001" in NOTICES[0]
    assert tree(there) == expected


def test_damage_in_the_cache_is_fetched_again(tmp_path: Path, text: Path) -> None:
    config = DataConfig(train=(str(text),), valid=None)
    far = make(config, rooted(tmp_path))
    expected = text_of(TokenStore.open(far.train))
    for name in ("shards/00001/train/tokens", "train/sentences", "train/manifest.json"):
        path = far.train.parent / name
        path.write_bytes(path.read_bytes()[::-1])
    NOTICES.clear()
    again = make(config, rooted(tmp_path))
    assert not NOTICES
    assert text_of(TokenStore.open(again.train)) == expected


def test_what_fails_is_tried_again_and_then_told(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    files = fsspec.filesystem("memory")
    real, failures = type(files).cat_file, [0]

    def flaky(self: object, path: str, *arguments: object, **options: object) -> bytes:
        failures[0] += 1
        if failures[0] % 3:
            raise ConnectionResetError("connection reset by peer")
        data: bytes = real(self, path, *arguments, **options)
        return data

    monkeypatch.setattr(type(files), "cat_file", flaky)
    files.pipe_file("/flaky/a.txt", text.read_bytes())
    lines = RemoteFile("memory://flaky/a.txt").open().readlines()
    assert b"".join(lines) == text.read_bytes()
    assert failures[0] == 3
    monkeypatch.setattr(remote, "_WAITS", (0.01,))
    with pytest.raises(PlmError, match="after 2 tries: connection reset by peer") as caught:
        RemoteFile("memory://flaky/a.txt").open().readlines()
    assert "run the same command again" in str(caught.value.hint)
    assert caught.value.exit_code == 1


def test_wrong_addresses_are_told_plainly(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"memory://no/such\.txt: no such file"):
        resolve(("memory://no/such.txt",))
    with pytest.raises(DataError, match="no file matches"):
        resolve(("memory://no/*.txt",))
    with pytest.raises(ConfigError, match="gopher://x/a.txt: Protocol not known"):
        resolve(("gopher://x/a.txt",))
    with pytest.raises(ConfigError, match="Protocol not known"):
        store_root("gopher://x/stores")
    with pytest.raises(PlmError, match=r"127\.0\.0\.1:9/a\.txt: cannot be read after 3 tries"):
        resolve(("http://127.0.0.1:9/a.txt",))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_access_is_told_before_text_is_read(
    tmp_path: Path, text: Path
) -> None:
    (tmp_path / "far").mkdir(mode=0o500)
    with pytest.raises(PlmError, match="cannot be written: Permission denied"):
        make(DataConfig(train=(str(text),), valid=None), rooted(tmp_path))


def test_a_url_that_is_read_only_is_told_before_text_is_read(tmp_path: Path, web: str) -> None:
    (tmp_path / "a.txt").write_text("One.\n", encoding="utf-8")
    config = DataConfig(train=(str(tmp_path / "a.txt"),), valid=None)
    root = store_root(f"{web}/stores", str(tmp_path / "cache"), 10**9)
    with pytest.raises(PlmError, match=r"started: cannot be written"):
        make(config, root)


def test_a_file_that_changes_while_it_is_read_is_told(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Changing(LetterEncoder):
        def with_places(self, *arguments, **options):  # type: ignore[no-untyped-def]
            os.utime(text, ns=(1, 1))
            return super().with_places(*arguments, **options)

    config = DataConfig(train=(str(text),), valid=None)
    with pytest.raises(DataError, match=r"a\.txt: the file changed while the text was") as caught:
        build_stores(
            config,
            Changing(),
            root=tmp_path / "stores",
            processes=1,
            progress=lambda done, total: None,
            notice=NOTICES.append,
        )
    assert "run the same command again" in str(caught.value.hint)
    assert not list((tmp_path / "stores").glob("*/manifest.json"))


def test_json_of_the_manifest_is_plain(tmp_path: Path, text: Path) -> None:
    make(DataConfig(train=(str(text),), valid=None), rooted(tmp_path))
    (manifest,) = (tmp_path / "far").glob("*/manifest.json")
    assert json.loads(manifest.read_text(encoding="utf-8"))["format"] == 3
