"""What is kept beside a store is what was made, or it is made again."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from plmctl.config.sections import DataConfig
from plmctl.corpus.build import build_stores, find_stores
from plmctl.corpus.store import TokenStore, cached_array
from tests.corpus.encoders import LetterEncoder

KEPT = 8  # files, as docs/design.md promises


def quiet(done: int, total: int) -> None:
    """Progress that nobody sees."""


LOSS_TERMS = [np.arange(5), np.arange(0), np.arange(5, 9)]


def stored(folder: Path) -> TokenStore:
    folder.mkdir(exist_ok=True)
    text = folder / "text.txt"
    text.write_text("".join(f"Document {n}. It is short.\n\n" for n in range(20)))
    os.utime(text, (1, 1))
    config = DataConfig(train=(str(text),), valid=None)
    build_stores(config, LetterEncoder(), root=folder, processes=1, progress=quiet, notice=print)
    stores = find_stores(config, LetterEncoder(), root=folder)
    assert stores is not None
    return TokenStore.open(stores.train)


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return stored(tmp_path)


class Maker:
    """Counts how often the parts are asked for."""

    def __init__(self, parts: list[np.ndarray] = LOSS_TERMS) -> None:
        self.parts, self.times = parts, 0

    def __call__(self) -> Iterator[np.ndarray]:
        self.times += 1
        yield from self.parts


def files(store: TokenStore) -> list[Path]:
    assert store.path is not None
    return sorted((store.path / "rows").iterdir())


def test_it_is_made_once_and_mapped(store: TokenStore) -> None:
    make = Maker()
    for _ in range(3):
        array = cached_array(store, ("rule", 1), "<u2", make)
        assert array.tolist() == list(range(9))
        assert array.dtype == np.uint16
        assert isinstance(array.base, np.memmap)
        assert not array.flags.writeable
    assert make.times == 1
    assert len(files(store)) == 1


def test_records_are_kept_too(store: TokenStore) -> None:
    dtype = np.dtype([("start", "<u4"), ("forced", "?")])
    rows = np.array([(7, True), (2**32 - 1, False)], dtype)
    for _ in range(2):
        assert cached_array(store, ("records",), dtype, lambda: [rows]).tolist() == rows.tolist()


def test_nothing_at_all_is_kept_too(store: TokenStore) -> None:
    make = Maker([])
    assert [len(cached_array(store, (), "<i8", make)) for _ in range(2)] == [0, 0]
    assert make.times == 1


def test_other_rules_types_and_stores_are_other_arrays(store: TokenStore, tmp_path: Path) -> None:
    make = Maker()
    for rule, dtype in ((("a", 1), "<i8"), (("a", 2), "<i8"), (("a", 1), "<i4")):
        cached_array(store, rule, dtype, make)
    assert make.times == 3
    other = stored(tmp_path / "other")
    cached_array(other, ("a", 1), "<i8", make)
    assert make.times == 4


DAMAGES = ["cut", "end", "empty", "folder", "bit", "reversed", "another's"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_made_again(store: TokenStore, damage: str) -> None:
    cached_array(store, ("rule",), "<i8", Maker())
    (file,) = files(store)
    whole = file.read_bytes()
    if damage == "cut":
        file.write_bytes(whole[:-8])
    elif damage == "end":
        file.write_bytes(whole[:-16] + bytes(16))
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "bit":
        file.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    elif damage == "reversed":
        file.write_bytes(np.arange(9)[::-1].astype("<i8").tobytes() + whole[72:])
    elif damage == "another's":  # whole, but of another rule
        cached_array(store, ("another",), "<i8", Maker([np.arange(9, 18)]))
        (other,) = set(files(store)) - {file}
        other.replace(file)
    else:
        file.unlink()
        file.mkdir()
    make = Maker()
    assert cached_array(store, ("rule",), "<i8", make).tolist() == list(range(9))
    assert make.times >= 1
    if damage != "folder":
        assert file.read_bytes() == whole


def test_an_attempt_that_fails_leaves_nothing(store: TokenStore) -> None:
    def failing() -> Iterator[np.ndarray]:
        yield np.arange(3)
        raise MemoryError

    with pytest.raises(MemoryError):
        cached_array(store, ("rule",), "<i8", failing)
    assert files(store) == []


def test_a_store_in_memory_or_a_folder_that_cannot_be_written(store: TokenStore) -> None:
    in_memory = TokenStore.from_lists([[[1, 2]]], vocab_size=5)
    for dtype in ("<i8", "<u2"):
        array = cached_array(in_memory, (), dtype, Maker())
        assert (array.dtype, array.tolist()) == (np.dtype(dtype), list(range(9)))
    assert store.path is not None
    (store.path / "rows").write_text("a file where the folder should be")
    make = Maker()
    assert cached_array(store, (), "<i8", make).tolist() == list(range(9))


def test_the_files_used_last_are_kept(store: TokenStore) -> None:
    first = cached_array(store, (0,), "<i8", Maker())
    second = cached_array(store, (1,), "<i8", Maker())
    for number, file in enumerate(files(store)):
        os.utime(file, (number, number))  # long ago
    cached_array(store, (0,), "<i8", Maker())  # and used again
    leftover = files(store)[0].with_name(".abc.123")
    leftover.touch()
    os.utime(leftover, (1, 1))
    for rule in range(2, 1 + KEPT):
        cached_array(store, (rule,), "<i8", Maker())
    assert len(files(store)) == KEPT
    assert not leftover.exists()
    make = Maker()
    cached_array(store, (0,), "<i8", make)
    assert make.times == 0
    cached_array(store, (1,), "<i8", make)
    assert make.times == 1
    assert first.tolist() == second.tolist() == list(range(9))  # mapped files outlive their names


def test_the_store_does_not_mind(store: TokenStore, tmp_path: Path) -> None:
    cached_array(store, ("rule",), "<i8", Maker())
    before = (store.digest, store.num_tokens)
    again = stored(tmp_path)
    assert (again.digest, again.num_tokens) == before
    make = Maker()
    cached_array(again, ("rule",), "<i8", make)
    assert make.times == 0


def test_two_processes_that_make_it_at_once(store: TokenStore) -> None:
    def interrupted() -> Iterator[np.ndarray]:
        yield LOSS_TERMS[0]
        child = os.fork()
        if not child:
            array = cached_array(store, ("rule",), "<i8", Maker())
            os._exit(0 if array.tolist() == list(range(9)) else 1)
        assert os.waitpid(child, 0)[1] == 0
        yield LOSS_TERMS[2]

    assert cached_array(store, ("rule",), "<i8", interrupted).tolist() == list(range(9))
    assert len(files(store)) == 1
    make = Maker()
    assert cached_array(store, ("rule",), "<i8", make).tolist() == list(range(9))
    assert make.times == 0
