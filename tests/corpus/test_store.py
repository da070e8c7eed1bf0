import pickle
import resource
import shutil
import tempfile
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plmctl.corpus.store import TokenStore, offsets, token_dtype
from plmctl.errors import DataError
from plmctl.files import write_checked

SENTENCE = st.lists(st.integers(0, 99), max_size=5)
DOCUMENTS = st.lists(st.lists(SENTENCE, max_size=4), min_size=1, max_size=12)


def write(folder: Path, shards: list[list[list[list[int]]]], vocab_size: int = 100) -> None:
    """A store as the format's description has it, written without the code under test."""
    folder.mkdir(parents=True)
    documents = [document for shard in shards for document in shard]
    sentences = [sentence for document in documents for sentence in document]
    facts = []
    for number, shard in enumerate(shards):
        flat = [token for document in shard for sentence in document for token in sentence]
        place = folder / f"s{number}"
        place.mkdir()
        np.array(flat, dtype="<u2" if vocab_size <= 65_536 else "<u4").tofile(place / "tokens")
        bits = [token % 3 == 0 for token in flat]
        data = bytearray((len(bits) + 7) // 8)
        for at, bit in enumerate(bits):
            data[at // 8] |= bit << (at % 8)
        (place / "words").write_bytes(data)
        facts.append({"path": f"s{number}", "tokens": len(flat)})
    for name, pieces in (("sentences", sentences), ("documents", documents)):
        starts = [0, *accumulate(map(len, pieces))]
        np.array(starts, dtype="<i8").tofile(folder / name)
    manifest = {
        "digest": "d",
        "vocab_size": vocab_size,
        "sentences": len(sentences),
        "documents": len(documents),
        "shards": facts,
    }
    write_checked(folder / "manifest.json", manifest)


SHARDS = [
    [[[3, 1], [4]], [[1, 5, 9]]],
    [[[2, 6, 5, 3, 5], [8]]],
    [[[9, 7, 9]], [[3]], [[2, 3, 8], [4, 6]]],
]
FLAT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6]


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    write(tmp_path / "store", SHARDS)
    return TokenStore.open(tmp_path / "store")


def test_offsets_across_shards(store: TokenStore) -> None:
    assert store.sentences.tolist() == [0, 2, 3, 6, 11, 12, 15, 16, 19, 21]
    assert store.documents.tolist() == [0, 2, 3, 5, 6, 7, 9]
    assert (store.num_tokens, store.num_sentences, store.num_documents) == (21, 9, 6)


WHOLE = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=5), min_size=1, max_size=3)


@settings(deadline=None, max_examples=50)  # it writes files
@given(
    data=st.data(),
    shards=st.lists(st.lists(WHOLE, min_size=1, max_size=3), min_size=1, max_size=6),
    small=st.sampled_from([0, 1 << 24]),
)
def test_gather_equals_concatenation(
    data: st.DataObject, shards: list[list[list[list[int]]]], small: int
) -> None:
    flat = [token for shard in shards for doc in shard for sentence in doc for token in sentence]
    index = data.draw(st.lists(st.integers(0, len(flat) - 1), max_size=40))
    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("plmctl.corpus.store._SMALL", small)  # read shard by shard, or whole
        write(Path(folder, "store"), shards)
        store = TokenStore.open(Path(folder, "store"))
        where = np.array(index, dtype=np.int64)
        assert store.tokens(where).tolist() == [flat[at] for at in index]
        assert store.word_starts(where).tolist() == [flat[at] % 3 == 0 for at in index]
        assert store.num_tokens == len(flat)


def test_gather_keeps_the_shape(store: TokenStore) -> None:
    index = np.arange(21).reshape(3, 7)[:, ::-1]
    assert store.tokens(index).tolist() == np.array(FLAT).reshape(3, 7)[:, ::-1].tolist()
    assert store.word_starts(index).shape == (3, 7)
    assert store.tokens(index).dtype == np.int32
    assert store.tokens(np.zeros((0, 4), dtype=np.int64)).shape == (0, 4)


@given(documents=DOCUMENTS)
def test_lists_come_back_without_what_is_empty(documents: list[list[list[int]]]) -> None:
    store = TokenStore.from_lists(documents, vocab_size=100)
    nonempty = [[s for s in document if s] for document in documents]
    nonempty = [document for document in nonempty if document]
    read = [
        [
            store.tokens(np.arange(store.sentences[s], store.sentences[s + 1])).tolist()
            for s in range(store.documents[d], store.documents[d + 1])
        ]
        for d in range(store.num_documents)
    ]
    assert read == nonempty


def test_word_starts_of_lists() -> None:
    starts = [True, False, True, True, False, False, False, True, False, True]
    store = TokenStore.from_lists([[[1] * 4, [2] * 6]], 10, starts)
    assert store.word_starts(np.arange(10)).tolist() == starts


def test_two_bytes_up_to_65536_ids(tmp_path: Path) -> None:
    assert token_dtype(65_536).itemsize == 2
    assert token_dtype(65_537).itemsize == 4
    write(tmp_path / "wide", [[[[70_000, 1]]], [[[65_536]]]], vocab_size=70_001)
    store = TokenStore.open(tmp_path / "wide")
    assert store.tokens(np.arange(3)).tolist() == [70_000, 1, 65_536]


@pytest.mark.parametrize("wrong", [100, -1])
def test_ids_outside_the_vocabulary_are_refused(wrong: int) -> None:
    with pytest.raises(DataError, match=f"token id {wrong} is outside the vocabulary of 100"):
        TokenStore.from_lists([[[1, wrong]]], vocab_size=100)


def test_opening_maps_no_shard(tmp_path: Path) -> None:
    write(tmp_path / "store", SHARDS)
    for path in (tmp_path / "store").glob("s*/tokens"):
        path.unlink()
    store = TokenStore.open(tmp_path / "store")  # works, since it reads no token
    assert store.num_tokens == 21
    with pytest.raises(DataError, match="tokens: No such file"):
        store.tokens(np.array([0]))


def test_of_thousands_of_shards_only_those_asked_for_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plmctl.corpus.store._SMALL", 0)
    write(tmp_path / "store", [[[[n % 100, 1]], [[2, 3, 4]]] for n in range(2_000)])
    index = np.array([9_999, 5 * 1_234, 5 * 77 + 1, 0])
    wanted = {f"s{token // 5}" for token in index.tolist()}
    for folder in (tmp_path / "store").glob("s*/"):
        if folder.name not in wanted:
            shutil.rmtree(folder)
    assert TokenStore.open(tmp_path / "store").tokens(index).tolist() == [4, 34, 1, 0]


@pytest.mark.parametrize("small", [0, 1 << 24])
def test_more_shards_than_files_that_may_be_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr("plmctl.corpus.store._SMALL", small)
    write(tmp_path / "store", [[[[n % 100, 1]], [[2, 3, 4]]] for n in range(300)])
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
    try:
        store = TokenStore.open(tmp_path / "store")
        index = np.arange(1_500).reshape(3, 500)
        expected = [token for n in range(300) for token in (n % 100, 1, 2, 3, 4)]
        for _ in range(2):
            assert store.tokens(index).ravel().tolist() == expected
        assert store.word_starts(index[:, ::-1]).shape == (3, 500)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_store_cut_short_is_found_out(tmp_path: Path) -> None:
    write(tmp_path / "store", SHARDS)
    path = tmp_path / "store" / "s1" / "tokens"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DataError, match="10 bytes where 12 were written"):
        TokenStore.open(tmp_path / "store").tokens(np.array([7]))


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no token store here"):
        TokenStore.open(tmp_path)


def test_another_process_opens_it_again(store: TokenStore) -> None:
    store.tokens(np.array([0, 20]))
    sent = pickle.dumps(store)
    assert len(sent) < 500  # the folder, not the arrays
    again = pickle.loads(sent)
    assert again.tokens(np.arange(21)).tolist() == FLAT
    small = pickle.loads(pickle.dumps(TokenStore.from_lists([[[1, 2]]], 5)))
    assert small.tokens(np.arange(2)).tolist() == [1, 2]


def test_offsets() -> None:
    assert offsets(np.array([2, 0, 3])).tolist() == [0, 2, 2, 5]
    assert offsets(np.zeros(0, dtype="<u4")).tolist() == [0]
