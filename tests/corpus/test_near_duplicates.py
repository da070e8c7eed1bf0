"""Near copies are left out of a store: `data.duplicates: near`."""

import random
from pathlib import Path

import pytest

from plmctl.config.sections import DataConfig
from plmctl.corpus import near_copies
from plmctl.corpus.build import near_of as near_of_store
from plmctl.corpus.document import hash_of
from plmctl.corpus.near_copies import minhashes_of
from plmctl.corpus.near_copies import near_copies as near_hashes
from plmctl.corpus.overlap import measure
from plmctl.corpus.store import TokenStore
from plmctl.errors import ConfigError
from tests.corpus.test_build import NOTICES, make, text_of, tree

pytest.importorskip("datasketch", reason="needs datasketch: pip install 'plmctl[documents]'")

SYLLABLES = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
CHARACTERS = [chr(0x4E00 + n) for n in range(2_000)]


def page(seed: int, *, chinese: bool = False) -> list[str]:
    """The words of a page, or its characters."""
    draws = random.Random(seed)
    if chinese:
        return draws.choices(CHARACTERS, k=250)
    return ["".join(draws.choices(SYLLABLES, k=3)) for _ in range(150)]


def edited(words: list[str], share: float, seed: int) -> list[str]:
    """Words, of which a share is another one, missing, or doubled."""
    draws, result = random.Random(seed), list(words)
    for place in draws.sample(range(len(words)), round(share * len(words))):
        result[place] = draws.choice(["", result[place] * 2, draws.choice(words)])
    return result


def near_of(texts: list[str]) -> list[str]:
    """The texts that are near copies, whatever the parts in which they are read."""
    parts = [minhashes_of(texts[: len(texts) // 3]), minhashes_of(texts[len(texts) // 3 :])]
    near = near_hashes(parts).tolist()
    assert near == near_hashes([minhashes_of(texts)]).tolist()
    return [text for text in texts if hash_of(text) in near]


@pytest.mark.parametrize("chinese", [False, True])
@pytest.mark.parametrize(("share", "least"), [(0.01, 1.0), (0.05, 0.98), (0.1, 0.7)])
def test_planted_copies_are_found(chinese: bool, share: float, least: float) -> None:
    gap = "" if chinese else " "
    pages = [page(seed, chinese=chinese) for seed in range(60)]
    copies = [gap.join(edited(words, share, seed)) for seed, words in enumerate(pages)]
    texts = [*(gap.join(words) for words in pages), *copies]
    near = near_of(texts)
    assert set(near) <= set(copies)
    assert len(near) >= least * len(copies)


def test_short_texts_are_never_near() -> None:
    assert near_of(["A short text."] * 5 + [""] * 2) == []
    assert near_of([]) == []


def test_long_texts_with_the_same_beginning_stay() -> None:
    start = " ".join(page(0))
    texts = [f"{start} {' '.join(page(seed))} {' '.join(page(seed + 50))}" for seed in (1, 2, 3)]
    assert near_of(texts) == []


def test_a_store_without_near_copies(tmp_path: Path) -> None:
    pages = [" ".join(page(seed)) for seed in range(200)]
    copies = [" ".join(edited(text.split(), 0.03, n)) for n, text in enumerate(pages[:40])]
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join([*pages, pages[7], *copies]), encoding="utf-8")
    near = DataConfig(train=(str(path),), valid=None, duplicates="near")
    NOTICES.clear()
    stores = make(near, tmp_path / "one")
    assert NOTICES == ["duplicates: 41 of 241 documents dropped (data.duplicates: near)"]
    (tmp_path / "b.txt").write_text("\n\n".join(pages), encoding="utf-8")
    plain = make(DataConfig(train=(f"{tmp_path}/b.txt",), valid=None), tmp_path / "plain")
    assert text_of(TokenStore.open(stores.train)) == text_of(TokenStore.open(plain.train))
    assert not (stores.train.parent / "minhashes").exists()
    left_out = near_of_store(stores.train.parent)
    assert left_out == {hash_of(text) for text in copies}
    split = near.model_copy(update={"valid": 0.2})
    assert measure([split]).held_out > 0.1 > 0.01 > measure([split], near=left_out).held_out
    make(near, tmp_path / "two", processes=2)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_copies, "find_spec", lambda name: None)
    path = tmp_path / "a.txt"
    path.write_text("One.\n\nTwo.", encoding="utf-8")
    with pytest.raises(ConfigError, match="datasketch is not installed"):
        make(DataConfig(train=(str(path),), duplicates="near"), tmp_path / "stores")
    assert not any((tmp_path / "stores").iterdir())
