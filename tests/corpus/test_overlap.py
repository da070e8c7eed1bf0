"""Held-out text that is training text, and sentences that repeat."""

import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plmctl.config.sections import DataConfig
from plmctl.corpus.document import share_of
from plmctl.corpus.overlap import Overlap, OverlapCounter, measure

WORDS = [f"{a}{b}{c}" for a in "bdfgkl" for b in "aeiou" for c in "mnrst"]


def compared(train: list[str], valid: list[str]) -> Overlap:
    counter = OverlapCounter()
    for text in train:
        counter.add(text)
    for text in valid:
        counter.add(text, held_out=True)
    return counter.result()


def words(count: int, seed: int = 0) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def test_shares_are_exact() -> None:
    known, other = words(20, 1), words(20, 2)
    assert compared([known], [other]).held_out == 0
    assert compared([known], [known.upper().replace(" ", ", \n")]).held_out == 1
    # Of 13 runs of 8 among 20 words, 3 are within the first ten words.
    half = " ".join(known.split()[:10] + other.split()[:10])
    assert compared([known], [half]).held_out == pytest.approx(3 / 13)
    # A run over the end of a document is none.
    first, second = " ".join(known.split()[:7]), " ".join(known.split()[7:14])
    assert compared([first, second], [known]).held_out == 0
    assert compared([words(8)], [words(7)]) == Overlap(None, 0.0, 4 * 15 - 2)


def test_sentences_that_repeat() -> None:
    first, second = words(9, 3), words(12, 4)
    result = compared([f"{first}. {second}! {first}?", "Oh yes. Oh yes. Oh yes."], [f"{first}\n"])
    assert result.repeated == pytest.approx(2 / 4)
    assert compared([f"3.14 {first}. 2.71 {first}."], []).repeated == 0
    assert compared(["Oh yes. Oh yes."], []).repeated is None


def test_scripts_without_spaces_are_compared_by_character() -> None:
    text = "今天天气很好我们一起去公园散步"  # 15 characters: 4 runs of 12
    found = compared([text], [text[:8] + "，" + text[8:]])
    assert found.held_out == 1
    assert "100.0 % of its 12-grams of characters stand" in found.line()
    assert compared([text], ["他说" + text[:13]]).held_out == pytest.approx(2 / 4)
    # A run is of what it begins with: 4 of "Anna said ..." (8 words or more) and 4 of characters.
    mixed = compared([f"Anna said b c {text}"], [f"Anna said b d {text}"])
    assert mixed.held_out == pytest.approx(4 / 8)
    assert not mixed.characters
    assert compared([f"{text}。{text}。"], []).repeated == 0.5
    thai = "ภาษาไทยเป็นภาษาที่มีระดับเสียง"
    assert compared([thai], [thai]).held_out == 1
    hindi = "यह एक बहुत लंबा वाक्य है जिसमें आठ शब्द"  # 9 words: vowel signs are in words
    assert compared([hindi], [hindi[3:]]).held_out == 1


def test_lines_for_the_user() -> None:
    assert str(Overlap(0.002, 0.013, 1).line()) == (
        "held-out text: 0.2 % of its 8-grams stand in the training text; 1.3 % of sentences repeat"
    )
    assert (
        Overlap(0.5, None, 10**8, whole=False)
        .line()
        .endswith(" (in 100 MB that were drawn from the text)")
    )
    assert compared([], []).line() == "held-out text: none to compare"
    share, files = DataConfig(train=("a",)), DataConfig(train=("a",), valid=("b",))
    assert Overlap(0.04, 0.04, 1).warning(share) is None
    assert "data.valid=1%" in str(Overlap(0.06, 0, 1).warning(files))
    assert "set data.near_copies=together; else" in str(Overlap(0.06, 0, 1).warning(share))
    assert "measured on text that it learned from" in str(Overlap(0.06, 0, 1).warning())
    assert "data.duplicates" not in str(Overlap(0, 0.06, 1).warning())
    assert "data.duplicates=drop" in str(Overlap(0, 0.06, 1).warning(share))


def plain(train: list[str], valid: list[str]) -> tuple[float | None, float | None]:
    """The same with sets of words."""

    def runs(text: str) -> list[tuple[str, ...]]:
        found = re.findall(r"[a-z]+", text)
        return [tuple(found[at : at + 8]) for at in range(len(found) - 7)]

    known = {run for text in train for run in runs(text)}
    held_out = [run in known for text in valid for run in runs(text)]
    sentences = [
        " ".join(found)
        for text in [*train, *valid]
        for sentence in re.split(r"[.\n]", text)
        if len(found := re.findall(r"[a-z]+", sentence)) >= 8
    ]
    return (
        sum(held_out) / len(held_out) if held_out else None,
        1 - len(set(sentences)) / len(sentences) if sentences else None,
    )


_texts = st.lists(
    st.lists(st.sampled_from(["a", "b", "ab", ". ", "\n", "b, "]), max_size=40).map(" ".join),
    max_size=5,
)


@given(_texts, _texts)
def test_equals_a_plain_comparison(train: list[str], valid: list[str]) -> None:
    result, expected = compared(train, valid), plain(train, valid)
    assert result.held_out == pytest.approx(expected[0])
    assert result.repeated == pytest.approx(expected[1])


def test_many_runs_are_estimated_by_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    train = [words(1000, seed) + "." for seed in range(100)]
    valid = [words(1000, seed) for seed in (1, 2, 2000, 2001)]
    exact = compared(train, valid)
    assert exact.held_out == 0.5
    monkeypatch.setattr("plmctl.corpus.overlap._MOST", 10_000)
    monkeypatch.setattr("plmctl.corpus.overlap._BATCH", 10_000)
    assert compared(train, valid).held_out == pytest.approx(0.5, abs=0.1)
    assert compared([words(30_000)], []).held_out is None  # one document in several parts


def test_the_sides_are_those_of_the_store(tmp_path: Path) -> None:
    texts = [words(30, seed) for seed in range(200)]
    (tmp_path / "a.txt").write_text("\n\n".join([*texts, *texts[:50]]), encoding="utf-8")
    name = (str(tmp_path / "a.txt"),)
    held_out = [text for text in [*texts, *texts[:50]] if share_of(text) < 0.2]
    result = measure([DataConfig(train=name, valid=0.2)])
    assert result.held_out == 0  # a copy is on the side of its original
    assert result.repeated == pytest.approx(0.2)
    assert len(held_out) > 20
    assert measure([DataConfig(train=name, valid=0.2, duplicates="drop")]).repeated == 0
    assert measure([DataConfig(train=name, valid=name)]).held_out == 1
    assert measure([DataConfig(train=name, valid=None)]).held_out is None
    (tmp_path / "b.txt").write_text(texts[0], encoding="utf-8")  # one line
    one = DataConfig(train=(str(tmp_path / "b.txt"),), valid=name)
    assert measure([one]).held_out == pytest.approx(2 / 250)


def test_of_a_large_text_a_part_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        texts = [words(30, 1000 * number + seed) for seed in range(100)]
        (tmp_path / f"{number}.txt").write_text("\n\n".join(texts), encoding="utf-8")
    data = DataConfig(train=(str(tmp_path / "*.txt"),), valid=0.1)
    whole = measure([data])
    assert whole.whole
    monkeypatch.setattr("plmctl.corpus.overlap._TRAIN", 20_000)
    monkeypatch.setattr("plmctl.corpus.overlap._PIECE", 5_000)
    part = measure([data])
    assert not part.whole
    assert 10_000 < part.size <= 20_000 < whole.size
    assert measure([data]) == part
