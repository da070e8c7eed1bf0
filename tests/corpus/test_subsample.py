from pathlib import Path

import pytest

from plmctl.config.sections import TextConfig
from plmctl.corpus.document import Document, share_of
from plmctl.corpus.subsample import (
    SubsampleLimits,
    subsample_bytes,
    subsample_documents,
    truncate_document,
)
from plmctl.errors import DataError


@pytest.fixture
def corpus(tmp_path: Path) -> TextConfig:
    """Two files of together 2 MB, a line numbered each."""
    for name in ("a.txt", "b.txt"):
        lines = [f"{name} line {number:06d} {'x' * 30}\n" for number in range(20_000)]
        (tmp_path / name).write_text("".join(lines), encoding="utf-8")
    return TextConfig(train=(str(tmp_path / "*.txt"),))


def lines_of(config: TextConfig, max_bytes: int, seed: int = 1) -> list[str]:
    return list(subsample_bytes(config, max_bytes, seed).lines(lambda done, total: None))


def test_all_of_a_small_corpus_in_order(corpus: TextConfig) -> None:
    part = subsample_bytes(corpus, 10**9, 1)
    lines = list(part.lines(lambda done, total: None))
    assert len(lines) == 40_000
    assert lines == sorted(lines)
    assert part.size == part.total == sum(len(line) + 1 for line in lines)


def test_a_part_by_bytes_from_all_over(corpus: TextConfig) -> None:
    lines = lines_of(corpus, 500_000)
    assert 490_000 < sum(len(line) + 1 for line in lines) < 540_000
    assert lines == sorted(lines)
    assert len(set(lines)) == len(lines)
    # A quarter of each fifth of the corpus, give or take its few pieces.
    for fifth in range(5):
        low = f"{'ab'[fifth // 3]}.txt line {fifth * 8000 % 20_000:06d}"
        assert sum(line >= low for line in lines) > (5 - fifth) / 5 * len(lines) * 0.5


def test_the_part_depends_on_the_seed_alone(corpus: TextConfig) -> None:
    assert lines_of(corpus, 200_000) == lines_of(corpus, 200_000)
    assert lines_of(corpus, 200_000) != lines_of(corpus, 200_000, seed=2)


def test_rows_of_a_source_that_has_no_pieces(tmp_path: Path) -> None:
    rows = "".join(f"row {number} of them\n" for number in range(50_000))
    (tmp_path / "a.csv").write_text("text\n" + rows, encoding="utf-8")
    config = TextConfig(train=(str(tmp_path / "a.csv"),))
    part = subsample_bytes(config, 200_000, 1)
    lines = list(part.lines(lambda done, total: None))
    assert 0.9 < len(lines) / (50_000 * 200_000 / part.total) < 1.1
    assert 190_000 < part.size < 210_000


def test_progress_ends_at_the_whole(corpus: TextConfig) -> None:
    seen: list[tuple[int, int]] = []
    list(subsample_bytes(corpus, 300_000, 1).lines(lambda done, total: seen.append((done, total))))
    assert seen[-1][0] == seen[-1][1]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(DataError):
        subsample_bytes(TextConfig(train=("nowhere.txt",)), 100, 1)


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
