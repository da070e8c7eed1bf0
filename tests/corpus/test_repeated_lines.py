"""Lines of many documents are left out of a store: `data.repeated_lines`."""

import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from plmctl.config.sections import DataConfig
from plmctl.corpus import repeated_lines
from plmctl.corpus.build import find_stores, lines_of
from plmctl.corpus.document import Document, hash_of, share_of
from plmctl.corpus.repeated_lines import counts_of, repeated, without_lines
from tests.corpus.encoders import LetterEncoder
from tests.corpus.test_build import NOTICES, make, tree

MENU = "Home About Contact"


def pages(count: int) -> list[str]:
    """Pages of text between a menu and a footer; a third of them have a rare line."""
    footers = ("Imprint.", "  Imprint. ")
    return [
        f"{MENU}\nPage {n} has words.\n{'A rare line.' if n % 3 == 0 else f'Line {n}.'}\n"
        f"{footers[n % 2]}"
        for n in range(count)
    ]


def body(text: str) -> str:
    return "\n".join(text.split("\n")[1:-1]) + "\n"


@pytest.mark.parametrize(("limit", "rare"), [("drop", True), (14, False), (13, True)])
def test_lines_of_many_documents_are_left_out(tmp_path: Path, limit: str | int, rare: bool) -> None:
    texts = pages(42)  # 14 of which have the rare line
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(texts), encoding="utf-8")
    NOTICES.clear()
    drop = DataConfig(train=(str(path),), valid=None, repeated_lines=limit, sentences="line")
    stores = make(drop, tmp_path / "stores")
    gone = 84 + 14 * rare
    assert [f"repeated lines: {gone} dropped (data.repeated_lines: {limit})"] == NOTICES
    assert stores.manifest["train"]["repeated_lines"] == gone
    assert stores.manifest["train"]["documents"] == 42
    clean = [body(text).replace("A rare line.\n", "") if rare else body(text) for text in texts]
    (tmp_path / "b.txt").write_text("\n".join(clean), encoding="utf-8")
    keep = DataConfig(train=(f"{tmp_path}/b.txt",), valid=None, sentences="line")
    assert stores.digest == make(keep, tmp_path / "clean").digest
    assert not (stores.train.parent / "lines").exists()


def test_split_processes_resuming_and_name(tmp_path: Path) -> None:
    texts = pages(400)
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join([*texts, *texts[:20]]), encoding="utf-8")
    keep = DataConfig(train=(str(path),), valid=0.2)
    drop = keep.model_copy(update={"repeated_lines": "drop", "duplicates": "drop"})
    one = make(drop, tmp_path / "one")
    held_out = sum(share_of(text) < 0.2 for text in texts)
    assert one.manifest["valid"]["documents"] == held_out  # as without the option
    assert lines_of(one.train.parent).tolist() == sorted(
        hash_of(line) for line in (MENU, "Imprint.", "A rare line.")
    )
    before = tree(tmp_path / "one")
    make(drop, tmp_path / "two", processes=2)
    assert tree(tmp_path / "two") == before
    shutil.rmtree(one.train.parent / "shards" / "00000")
    make(drop, tmp_path / "one")
    assert tree(tmp_path / "one") == before
    assert find_stores(keep, LetterEncoder(), root=tmp_path / "one") is None
    assert "repeated_lines" not in make(keep, tmp_path / "three").manifest["train"]


def test_copies_that_are_dropped_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(["One line.\nAnother.", *["Some line.\nMore."] * 30]))
    config = DataConfig(train=(str(path),), valid=None, duplicates="drop", repeated_lines="drop")
    train = make(config, tmp_path / "stores").manifest["train"]
    assert (train["documents"], train["duplicates"], train["repeated_lines"]) == (2, 29, 0)


def test_counting_in_ranges_is_counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = random.Random(1)
    texts = ["\n".join(str(draws.randrange(300)) for _ in range(20)) for _ in range(60)]
    paths = [tmp_path / str(n) for n in range(3)]
    for number, path in enumerate(paths):
        counts_of(texts[number::3]).tofile(path)
    lines = {line for text in texts for line in text.split("\n")}
    having = {line: sum(line in text.split("\n") for text in texts) for line in lines}
    expected = sorted(hash_of(line) for line, count in having.items() if count > 4)
    assert len(expected) > 20
    assert repeated(paths, 4).tolist() == expected
    monkeypatch.setattr(repeated_lines, "_AT_ONCE", 500)
    assert repeated(paths, 4).tolist() == expected
    assert repeated([], 4).tolist() == []


def test_words_of_segmented_text_stay_where_they_are() -> None:
    words = ["One", " two", "\n", "Menu", " here", "\n", "Three", " four"]
    document = Document.of_words(words, "a:1")
    rest, count = without_lines(document, np.array([hash_of("Menu here")], dtype="<u8"))
    assert (rest.text, count) == ("One two\nThree four", 1)
    assert rest.words is not None
    assert rest.words.tolist() == [3, 7, 8, 13]
    same, count = without_lines(document, np.array([hash_of("other")], dtype="<u8"))
    assert same is document
    assert count == 0
