"""SQuAD's nested JSON as rows."""

import gzip
import json
from pathlib import Path

import pytest

from plmctl.corpus.labelled import read_rows
from plmctl.corpus.source import Source
from plmctl.corpus.tabular import rows
from plmctl.errors import DataError

SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "Rivers",
            "paragraphs": [
                {
                    "context": "The Elbe is long.",
                    "qas": [
                        {
                            "id": "q1",
                            "question": "What is long?",
                            "answers": [
                                {"text": "The Elbe", "answer_start": 0},
                                {"text": "Elbe", "answer_start": 4},
                            ],
                            "is_impossible": False,
                        },
                        {
                            "id": "q2",
                            "question": "What is short?",
                            "answers": [],
                            "plausible_answers": [{"text": "Elbe", "answer_start": 4}],
                            "is_impossible": True,
                        },
                    ],
                },
                {"context": "The Havel.", "qas": [{"id": 3, "question": "Which river?"}]},
            ],
        }
    ],
}
ROW = {
    "id": "q1",
    "title": "Rivers",
    "context": "The Elbe is long.",
    "question": "What is long?",
    "answers": {"text": ["The Elbe", "Elbe"], "answer_start": [0, 4]},
    "is_impossible": False,
}


@pytest.mark.parametrize("indent", [None, 1, 4])
@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_a_question_is_a_row(tmp_path: Path, indent: int | None, name: str) -> None:
    text = json.dumps(SQUAD, indent=indent).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    rows = read_rows([str(tmp_path / name)])
    assert rows[0].values == ROW
    assert rows[1].values["answers"] == {"text": [], "answer_start": []}
    assert rows[1].values["is_impossible"]
    assert rows[2].values["id"] == "3"
    assert rows[2].values["answers"] is None
    assert [row.origin for row in rows] == [
        f"{tmp_path / name}: Rivers/{place}" for place in ("1/q1", "1/q2", "2/3")
    ]


def test_the_flat_form_in_data_and_a_line_each(tmp_path: Path) -> None:
    (tmp_path / "flat.json").write_text(json.dumps({"data": [ROW]}))
    (tmp_path / "lines.json").write_text(json.dumps(ROW) + "\n" + json.dumps(ROW) + "\n")
    (flat,) = read_rows([str(tmp_path / "flat.json")])
    assert (flat.values, flat.origin) == (ROW, f"{tmp_path / 'flat.json'}: q1")
    lines = read_rows([str(tmp_path / "lines.json")])
    assert [row.values for row in lines] == [ROW, ROW]
    assert lines[1].origin == f"{tmp_path / 'lines.json'}:2"


def test_pieces_of_a_file_have_its_rows_once(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(SQUAD, indent=1))
    source = Source(str(path), "jsonl")
    assert len([*rows(source, 0, 50), *rows(source, 50, 100), *rows(source, 100)]) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["data"][0]["paragraphs"][0].pop("context"), "Rivers/1: no text 'context'"),
        (lambda d: d["data"][0]["paragraphs"][1].pop("qas"), "Rivers/2: no list 'qas'"),
        (
            lambda d: d["data"][0]["paragraphs"][0]["qas"][1].pop("question"),
            "Rivers/1/q2: no text 'question'",
        ),
        (
            lambda d: d["data"][0]["paragraphs"][0]["qas"][0]["answers"][1].pop("text"),
            "Rivers/1/q1: an answer: no text 'text'",
        ),
        (lambda d: d["data"].append("x"), "article 2: a str, not an object"),
    ],
)
def test_what_is_missing_is_named_with_its_place(tmp_path: Path, change, message: str) -> None:
    broken = json.loads(json.dumps(SQUAD))
    change(broken)
    (tmp_path / "a.json").write_text(json.dumps(broken))
    with pytest.raises(DataError, match=f"a.json: {message}"):
        read_rows([str(tmp_path / "a.json")])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n"data": [\n', "the file as a whole is not JSON"),
        ('[\n{"id": 1}\n]\n', "no list 'data'"),
        ('{"id": 1,\n', ":1: not JSON"),
    ],
)
def test_files_that_are_neither(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=message):
        read_rows([str(tmp_path / "a.json")])
