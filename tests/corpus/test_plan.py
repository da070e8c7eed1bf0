import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plmctl.config.sections import TextConfig
from plmctl.corpus.reading import Unit, cut_source, documents
from plmctl.corpus.source import Source
from plmctl.errors import DataError

LINES = st.lists(st.sampled_from(["", " ", "\u3000", "One.", "Second line.", "三", "x" * 30]))


@settings(deadline=None)  # it writes files
@given(
    lines=LINES,
    end=st.sampled_from(["\n", "\r\n"]),
    unit=st.sampled_from(["blank_line", "line"]),
    size=st.integers(1, 60),
    mark=st.booleans(),
)
def test_pieces_of_a_text_file_have_each_document_once(
    lines: list[str], end: str, unit: Unit, size: int, mark: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.txt")
        path.write_bytes((("\ufeff" if mark else "") + end.join(lines)).encode())
        source = Source(str(path), "text")
        config = TextConfig(train=(str(path),), documents=unit)
        pieces = cut_source(source, unit, size)
        from_pieces = [d.text for p in pieces for d in documents(source, config, p.start, p.end)]
        assert from_pieces == [d.text for d in documents(source, config)]
        assert sum(piece.size for piece in pieces) == path.stat().st_size


def test_a_large_file_is_cut_into_pieces_of_about_the_size(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("A line of text.\nAnother.\n\n" * 4_000, encoding="utf-8")  # 26 bytes each
    pieces = cut_source(Source(str(path), "text"), "blank_line", 10_000)
    assert len(pieces) == 11
    assert all(10_000 <= piece.size <= 10_026 for piece in pieces[:-1])
    assert all(piece.start % 26 == 0 for piece in pieces)
    assert len(cut_source(Source(str(path), "text"), "file", 10_000)) == 1


def test_pieces_of_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"text": "{n}"}}\n\n' for n in range(100)), encoding="utf-8")
    source = Source(str(path), "jsonl")
    config = TextConfig(train=(str(path),))
    pieces = cut_source(source, "file", 200)
    assert len(pieces) > 5
    from_pieces = [d.text for p in pieces for d in documents(source, config, p.start, p.end)]
    assert from_pieces == [str(n) for n in range(100)]


def test_a_mistake_in_a_later_piece_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "x"}\n' * 50 + b"{\n" + b'{"text": "x"}\n' * 50)
    source = Source(str(path), "jsonl")
    config = TextConfig(train=(str(path),))
    piece = next(p for p in cut_source(source, "file", 100) if p.end and p.start <= 700 < p.end)
    assert piece.start > 0
    with pytest.raises(DataError, match=r"a\.jsonl:51: not JSON"):
        list(documents(source, config, piece.start, piece.end))
    path.write_bytes(b"text\n\n" * 50 + b"\xff\n")
    with pytest.raises(DataError, match=r"a\.jsonl:101: not UTF-8"):
        list(documents(Source(str(path), "text"), TextConfig(train=("x",)), 120, None))


def test_pieces_of_parquet_are_row_groups(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    texts = [f"text {n} " + "long " * n for n in range(50)]
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path, row_group_size=7)
    source = Source(str(path), "parquet")
    config = TextConfig(train=(str(path),))
    pieces = cut_source(source, "file", 500)
    assert 1 < len(pieces) <= 8
    from_pieces = [d for p in pieces for d in documents(source, config, p.start, p.end)]
    assert [d.text for d in from_pieces] == texts
    assert [d.origin for d in from_pieces] == [f"{path}:row {n}" for n in range(1, 51)]


def test_pieces_of_a_datasets_folder(tmp_path: Path) -> None:
    from datasets import Dataset

    texts = [str(n) for n in range(30)]
    Dataset.from_dict({"text": texts}).save_to_disk(tmp_path / "data")
    source = Source(str(tmp_path / "data"), "datasets")
    config = TextConfig(train=("x",))
    pieces = cut_source(source, "file", 50)
    assert len(pieces) > 3
    assert [d.text for p in pieces for d in documents(source, config, p.start, p.end)] == texts
