from pathlib import Path

import pytest

from plmctl.corpus.labelled import Row, check_rows, read_rows, summarize_checks
from plmctl.errors import DataError

CONLL = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

\xa0 NNP B-NP B-PER


-DOCSTART- -X- -X- O

He PRP B-NP O
"""


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_sentences_of_columns(tmp_path: Path) -> None:
    name = write(tmp_path / "eng.testa", CONLL)
    rows = read_rows([name])
    assert rows[0] == Row(
        {
            "tokens": ["EU", "rejects"],
            "tags": ["B-ORG", "O"],
            "0": ["EU", "rejects"],
            "1": ["NNP", "VBZ"],
            "2": ["B-NP", "B-VP"],
            "3": ["B-ORG", "O"],
        },
        f"{name}:3",
    )
    # A space of another kind is a word; it is no blank line.
    assert [(row.values["tokens"], row.origin) for row in rows[1:]] == [
        (["\xa0"], f"{name}:6"),
        (["He"], f"{name}:11"),
    ]


@pytest.mark.parametrize("name", ["a.conll", "a.bio", "a.iob2", "a.txt", "a.conll.gz"])
def test_tabs_and_file_names(tmp_path: Path, name: str) -> None:
    import gzip

    text = "New York\tB-LOC\r\n.\tO\r\n \r\n\nx y\tO\n"  # a word with a space in it
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    assert [row.values["tokens"] for row in read_rows([str(path)])] == [["New York", "."], ["x y"]]


def test_lines_that_do_not_match_are_told_of(tmp_path: Path) -> None:
    name = write(tmp_path / "a.conll", "a O\nb O\n\nc B-X I-X\n")
    with pytest.raises(DataError, match=r"a.conll:4: 3 columns where the lines before have 2"):
        read_rows([name])
    name = write(tmp_path / "b.conll", "a\nb\n")
    with pytest.raises(DataError, match=r"b.conll:1: one column, and no tags"):
        read_rows([name])


def test_lists_of_class_labels_are_given_by_name(tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset, Features, List, Value

    features = Features(
        {"tokens": List(Value("string")), "ner": List(ClassLabel(names=["O", "B-PER"]))}
    )
    data = Dataset.from_dict({"tokens": [["a", "b"], []], "ner": [[1, 0], []]}, features=features)
    data.save_to_disk(tmp_path / "saved")
    rows = read_rows([str(tmp_path / "saved")])
    assert [row.values for row in rows] == [
        {"tokens": ["a", "b"], "ner": ["B-PER", "O"]},
        {"tokens": [], "ner": []},
    ]


def test_one_duplicate_and_rows_without_a_label() -> None:
    rows = [Row({"text": text, "label": label}, "a:1") for text, label in (("x", []), ("x", ["b"]))]
    checks = check_rows(rows, {}, ["text"], "label")
    checks["train"]["labels"] = {"": 3, "b": 1}
    (line, *_) = summarize_checks(checks)
    assert line == "train: 2 rows, 1 duplicate (50.0%); no label 75%, b 25%"
