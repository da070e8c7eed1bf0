from pathlib import Path

import pytest

from plmctl.config.sections import TableConfig
from plmctl.corpus.labelled import Row, read_rows, split_rows
from plmctl.errors import DataError


def keys(rows: list[Row]) -> list[str]:
    return [row.values["n"] for row in rows]


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "a.csv"
    lines = "".join(f"{n},text {n % 250},{n % 3}\n" for n in range(500))
    path.write_text(f"n,text,label\n{lines}", encoding="utf-8")
    return str(path)


def test_rows_keep_their_order_and_origin(tmp_path: Path) -> None:
    (tmp_path / "b.tsv").write_text("n\ttext\n1\tx y\n\n2\tz\n", encoding="utf-8")
    (tmp_path / "a.jsonl").write_text('{"n": 3, "text": "w"}\n', encoding="utf-8")
    rows = read_rows([str(tmp_path / "b.tsv"), str(tmp_path / "*.jsonl")])
    assert rows == [
        Row({"n": "1", "text": "x y"}, f"{tmp_path}/b.tsv:2"),
        Row({"n": "2", "text": "z"}, f"{tmp_path}/b.tsv:4"),
        Row({"n": 3, "text": "w"}, f"{tmp_path}/a.jsonl:1"),
    ]


def test_labels_of_datasets_are_given_by_name(tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features({"text": Value("string"), "label": ClassLabel(names=["no", "yes"])})
    data = Dataset.from_dict({"text": ["a", "b", "c"], "label": [1, 0, -1]}, features=features)
    data.save_to_disk(tmp_path / "saved")
    data.to_parquet(tmp_path / "a.parquet")
    labels = zip("abc", (1, 0, -1), strict=True)
    expected = [{"text": text, "label": label} for text, label in labels]
    assert [row.values for row in read_rows([str(tmp_path / "a.parquet")])] == expected
    saved = read_rows([str(tmp_path / "saved")])
    assert [row.origin for row in saved] == [f"{tmp_path}/saved:row {n}" for n in (1, 2, 3)]
    assert [row.values for row in saved] == [
        {"text": "a", "label": "yes"},
        {"text": "b", "label": "no"},
        {"text": "c", "label": None},
    ]


def test_held_out_rows_keep_equal_texts_on_one_side(table: str) -> None:
    split = split_rows(TableConfig(train=(table,), valid=0.2), 0, ["text"])
    train, valid = split.train, split.valid["valid"]
    texts = [{row.values["text"] for row in rows} for rows in (train, valid)]
    assert not texts[0] & texts[1]
    assert len(train) + len(valid) == 500
    assert 60 <= len(valid) <= 140  # 100 are expected, with a standard deviation of 13
    again = split_rows(TableConfig(train=(table,), valid=0.2), 7, ["text"]).train
    assert keys(again) == keys(train)  # whatever the seed


def test_a_smaller_sample_is_part_of_a_larger_one(table: str) -> None:
    def taken(count: int, seed: int = 1) -> list[str]:
        config = TableConfig(train=(table,), valid=(table,), max_rows=count)
        return keys(split_rows(config, seed, ["n"]).train)

    assert len(set(taken(50))) == 50
    assert set(taken(50)) < set(taken(200))
    assert set(taken(50)) != set(taken(50, seed=2))
    assert taken(500) == [str(n) for n in range(500)]


def test_sides_without_rows_are_refused(tmp_path: Path, table: str) -> None:
    (tmp_path / "empty.csv").write_text("n,text\n", encoding="utf-8")
    with pytest.raises(DataError, match="no rows in"):
        read_rows([str(tmp_path / "empty.csv")])
    with pytest.raises(DataError, match="500 training rows, and validation rows: 0 of valid"):
        split_rows(TableConfig(train=(table,), valid=0.0), 0, ["n"])
    (tmp_path / "a.txt").write_text("x", encoding="utf-8")
    with pytest.raises(DataError, match="a text file has no columns"):
        read_rows([str(tmp_path / "a.txt")])


def test_a_text_of_several_columns() -> None:
    values = {
        "question": "who?",
        "answer": 3,
        "target": {"name": "it"},
        "{raw}": "kept",
        "none": None,
    }
    row = Row(values, "f:1")
    assert row.cell("Question: {question} Answer: {answer}") == "Question: who? Answer: 3"
    assert row.cell('Is "{target.name}" {answer}?') == 'Is "it" 3?'
    assert row.cell("target.name") == "it"
    assert row.cell("{raw}") == "kept"  # a column of this name is a column
    with pytest.raises(DataError, match="f:1: no column 'quest'; did you mean 'question'"):
        row.cell("{quest}")
    with pytest.raises(DataError, match="'none' is null"):
        row.cell("{none}")
    with pytest.raises(DataError, match=r"no column 'target\.nme"):
        row.cell("{target.nme}")
