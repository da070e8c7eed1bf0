"""Near copies of documents are on one side of a split."""

import random
from pathlib import Path

import numpy as np
import pytest

from plmctl.config.sections import DataConfig
from plmctl.corpus.build import Root, find_stores, moved_of
from plmctl.corpus.document import hash_of, share_of
from plmctl.corpus.near_copies import sketches_of, to_move
from plmctl.corpus.overlap import measure
from plmctl.corpus.remote import store_root
from plmctl.corpus.store import TokenStore
from tests.corpus.test_build import NOTICES, LetterEncoder, make, tree


def page(seed: int, words: int = 60) -> str:
    draws = random.Random(seed)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    return " ".join("".join(draws.choices(syllables, k=3)) for _ in range(words))


def moved(texts: list[str], share: float = 0.3) -> set[str]:
    """The texts that move, whatever the parts in which they are read."""
    found = [
        to_move(lambda n=n: map(sketches_of, np.array_split(np.array(texts), n)), share)
        for n in (1, 3)
    ]
    assert found[0].tolist() == found[1].tolist()
    return {text for text in texts if hash_of(text) in found[0]}


def drawn(texts: list[str], *, held_out: bool) -> list[str]:
    return [text for text in texts if (share_of(text) < 0.3) == held_out]


def test_held_out_near_copies_of_training_text_move() -> None:
    pages = [page(seed) for seed in range(40)]
    assert moved(pages) == set()
    assert moved([*pages, *pages]) == set()  # copies are on one side anyway
    originals = drawn(pages, held_out=False)
    copies = drawn([f"{text} The end." for text in originals], held_out=True)
    assert 3 < len(copies) < len(originals)
    assert moved([*pages, *copies]) == set(copies)
    assert moved([*copies, *pages]) == set(copies)
    halves = [" ".join(text.split()[:30]) + " " + page(99, 30) for text in originals]
    assert moved([*pages, *halves[:1]]) == set()


def test_copies_of_what_moves_move_too() -> None:
    train = drawn([page(seed) for seed in range(20)], held_out=False)[0]
    near = drawn([f"{train} {page(seed, 14)}" for seed in range(100, 120)], held_out=True)[0]
    far = drawn([f"{near} {page(seed, 22)}" for seed in range(100, 120)], held_out=True)[0]
    assert moved([train, far]) == set()
    assert moved([train, near, far]) == {near, far}


def test_short_texts_and_nothing() -> None:
    short = [f"Document {n} is here." for n in range(50)]
    assert moved(short) == set()
    assert moved([""] * 3) == set()
    assert moved([page(1)], share=1.0) == set()
    assert to_move(lambda: [], 0.1).tolist() == []


def test_a_split_without_near_copies_across_it(tmp_path: Path) -> None:
    pages = [page(seed) for seed in range(200)]
    texts = [*pages, *(f"{text} Ends." for text in pages[:100])]
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(texts), encoding="utf-8")
    apart = DataConfig(train=(str(path),), valid=0.2)
    together = apart.model_copy(update={"near_copies": "together"})
    assert measure([apart]).held_out > 0.2
    NOTICES.clear()
    stores = make(together, tmp_path / "one")
    folder = stores.train.parent
    hashes = moved_of(folder)
    assert [
        f"near copies: {len(hashes)} held-out documents are trained on (data.near_copies: together)"
    ] == NOTICES
    assert measure([together], hashes).held_out == 0
    held_out = [text for text in texts if share_of(text) < 0.2 and hash_of(text) not in hashes]
    assert TokenStore.open(stores.valid or Path()).num_documents == len(held_out) > 10
    assert not (folder / "sketches").exists()
    assert find_stores(apart, LetterEncoder(), root=tmp_path / "one") is None
    make(together, tmp_path / "two", processes=2)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    # The split of a text without near copies is the same.
    path.write_text("\n\n".join(pages), encoding="utf-8")
    before = make(apart, tmp_path / "apart")
    assert make(together, tmp_path / "together").digest == before.digest


def test_a_store_at_a_url_has_the_documents_that_were_moved(tmp_path: Path) -> None:
    """Another machine finds them, when the store is whole and when it has to be finished."""
    import fsspec

    pages = [page(seed) for seed in range(60)]
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join([*pages, *(f"{text} Ends." for text in pages)]), encoding="utf-8")
    together = DataConfig(train=(str(path),), valid=0.2, near_copies="together")
    near = make(together, tmp_path / "near")
    url = f"memory://moved-{tmp_path.name}/stores"

    def rooted(cache: str) -> Root:
        return store_root(url, str(tmp_path / cache), 10**9)

    far = make(together, rooted("one"))
    moved_near, moved_far = moved_of(near.train.parent), moved_of(far.train.parent)
    assert moved_near == moved_far
    assert len(moved_far) > 5
    found = find_stores(together, LetterEncoder(), root=rooted("two"))
    assert found is not None
    assert moved_of(found.train.parent) == moved_far
    files = fsspec.filesystem("memory")
    (store,) = files.ls(url, detail=False)
    files.rm(f"{store}/manifest.json")
    NOTICES.clear()
    assert make(together, rooted("three")).digest == near.digest
    assert f"near copies: {len(moved_far)} held-out documents are trained on" in NOTICES[0]


@pytest.mark.parametrize("valid", [None, ("a.txt",)])
def test_without_a_share_the_name_of_the_store_does_not_change(
    tmp_path: Path, valid: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("One. Two.", encoding="utf-8")
    config = DataConfig(train=("a.txt",), valid=valid)
    made = make(config, tmp_path / "stores")
    together = config.model_copy(update={"near_copies": "together"})
    assert find_stores(together, LetterEncoder(), root=tmp_path / "stores") == made
