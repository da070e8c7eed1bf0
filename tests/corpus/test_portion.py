from pathlib import Path

import pytest

from plmctl.config.sections import TextConfig
from plmctl.corpus.subsample import subsample_bytes
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
