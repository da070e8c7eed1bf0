from pathlib import Path

import pytest

from plmctl.config.sections import TextConfig
from plmctl.corpus.document import Document, share_of
from plmctl.corpus.subsample import SubsampleLimits, subsample_documents, truncate_document

TEXTS = [f"Document {number} has {'word ' * (number % 7)}inside it." for number in range(60)]


@pytest.fixture
def config(tmp_path: Path) -> TextConfig:
    path = tmp_path / "a.txt"
    path.write_text("\n".join(TEXTS), encoding="utf-8")
    return TextConfig(train=(str(path),), documents="line")


def texts(config: TextConfig, **limits: object) -> list[str]:
    return [
        document.text.strip() for document in subsample_documents(config, SubsampleLimits(**limits))
    ]


def test_without_limits_it_is_all_in_order(config: TextConfig) -> None:
    assert texts(config) == TEXTS


def test_a_smaller_excerpt_is_a_part_of_a_larger_one(config: TextConfig) -> None:
    few, more = texts(config, documents=5, seed=3), texts(config, documents=20, seed=3)
    assert len(few) == 5
    assert few == more[:5]
    assert set(more) <= set(TEXTS)
    assert texts(config, documents=5, seed=4) != few


def test_the_order_of_the_files_does_not_matter(config: TextConfig, tmp_path: Path) -> None:
    halves = [tmp_path / "1.txt", tmp_path / "2.txt"]
    for path, half in zip(halves, (TEXTS[30:], TEXTS[:30]), strict=True):
        path.write_text("\n".join(half), encoding="utf-8")
    other = TextConfig(train=tuple(map(str, halves)), documents="line")
    for limits in ({"documents": 7}, {"size": 300}, {"documents": 4, "size": 2000}):
        assert texts(other, **limits) == texts(config, **limits)


def test_bytes_are_cut_where_a_word_ends(config: TextConfig) -> None:
    parts = texts(config, size=200)
    assert 180 <= sum(map(len, parts)) <= 200
    assert all(any(text.startswith(part) for text in TEXTS) for part in parts)
    assert parts[:-1] == texts(config, documents=len(parts) - 1)


def test_the_beginning_of_each_document(config: TextConfig) -> None:
    assert texts(config, each=12) == [text[:12].rsplit(" ", 1)[0] for text in TEXTS]


def test_only_what_is_held_out(config: TextConfig) -> None:
    expected = [text for text in TEXTS if share_of(text) < 0.2]
    assert 0 < len(expected) < 30
    assert texts(config, held_out=0.2) == expected


@pytest.mark.parametrize(
    ("text", "size", "expected"),
    [
        ("one two three", 100, "one two three"),
        ("one two three", 13, "one two three"),
        ("one two three", 12, "one two"),
        ("one two three", 7, "one two"),
        ("one two three", 8, "one two"),
        ("你好世界", 7, "你好"),
        ("é" * 300, 21, "é" * 10),
    ],
)
def test_shortened(text: str, size: int, expected: str) -> None:
    assert truncate_document(Document(text, "x:1"), size).text == expected
