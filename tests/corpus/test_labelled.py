import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from plmctl.config.sections import DataConfig, TableConfig
from plmctl.corpus.labelled import Row, check_rows, read_rows, split_rows, summarize_checks
from plmctl.corpus.reading import documents
from plmctl.corpus.source import Source, resolve
from plmctl.corpus.tabular import rows
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


CONLLU = """# newdoc id = d
# sent_id = s1
# text = Vámonos al mar
1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\tV\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\tP\t_\t1\tobj\t_\t_
3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_
3\ta\ta\tADP\tA\t_\t5\tcase\t_\t_
4\tel\tel\tDET\tD\t_\t5\tdet\t_\t_
5\tmar\tmar\tNOUN\tN\t_\t1\tobl\t_\t_
5.1\tva\tir\tVERB\tV\t_\t_\t_\t_\t_

# a comment of more words than there are columns
1\t#\t#\tSYM\tS\t_\t0\troot\t_\t_
"""


@pytest.mark.parametrize("name", ["a.conllu", "a.conll", "a.txt", "a.conllu.gz"])
def test_universal_dependencies(tmp_path: Path, name: str) -> None:
    for number, text in enumerate((CONLLU, CONLLU.replace("\n", "\r\n"))):
        path = tmp_path / f"{number}{name}"
        path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
        first, second = read_rows([str(path)])
        assert first.values["tokens"] == ["Vamos", "nos", "a", "el", "mar"]
        assert first.values["tags"] == first.values["upos"] == first.values["3"]
        assert first.values["tags"] == ["VERB", "PRON", "ADP", "DET", "NOUN"]
        assert first.values["deprel"] == ["root", "obj", "case", "det", "obl"]
        assert (second.values["form"], second.values["0"]) == (["#"], ["1"])
        assert first.origin == f"{path}:4"


def test_all_tags_are_those_of_conll_2018(tmp_path: Path) -> None:
    """Features of one language are left out, others in order."""
    feats = "Number=Sing|Number[psor]=Plur|Own=Yes|Case=Nom"
    text = f"1\ta\ta\tNOUN\tN|x\t{feats}\t0\troot\t_\t_\n2\tb\tb\tX\t_\t_\t1\tdep\t_\t_\n"
    (row,) = read_rows([write(tmp_path / "a.conllu", text)])
    assert row.values["alltags"] == ["NOUN|N|x|Case=Nom|Number=Sing", "X|_|_"]


def test_columns_that_the_file_names(tmp_path: Path) -> None:
    text = "# global.columns = ID FORM UPOS\n1\ta\tX\n1.1\t_\t_\n2\tb\tY\n"
    (row,) = read_rows([write(tmp_path / "a.conllup", text)])
    assert (row.values["tokens"], row.values["tags"]) == (["a", "b"], ["X", "Y"])


def test_numbered_words(tmp_path: Path) -> None:
    name = write(tmp_path / "a.conll", "1 a X\n2-3 bc _\n2 b Y\n3 c Y\n\n1 # Z\n")
    rows = read_rows([name])
    assert [row.values["tokens"] for row in rows] == [["a", "b", "c"], ["#"]]
    assert [row.values["tags"] for row in rows] == [["X", "Y", "Y"], ["Z"]]
    name = write(tmp_path / "b.conll", "1 CD O\n\n# SYM O\n2-3 CD O\n")  # numbers are words here
    assert [row.values["tokens"] for row in read_rows([name])] == [["1"], ["#", "2-3"]]
    name = write(tmp_path / "c.conll", "1 a X\n2 b Y\n\n3 c Y\n")
    with pytest.raises(DataError, match=r"c.conll:4: the first column has no numbers from 1 on"):
        read_rows([name])


def test_a_word_that_begins_with_a_number_sign(tmp_path: Path) -> None:
    name = write(tmp_path / "a.conll", "# O\nyes O\n\n#x= B-X\n\n# id = 3\n#id = 3\nno O\n# O\n")
    tokens = [row.values["tokens"] for row in read_rows([name])]
    assert tokens == [["#", "yes"], ["#x="], ["no", "#"]]


@pytest.mark.parametrize(
    "blank", ["", " ", "\t", " \t ", "\xa0", "\u3000 ", "\u200b", "\t\ufeff", "\r"]
)
def test_lines_in_which_nothing_can_be_seen_are_blank(tmp_path: Path, blank: str) -> None:
    name = write(tmp_path / "a.conll", f"a\tO\nb \tB-X \n{blank}\nc\tO\n")
    rows = read_rows([name])
    assert [row.values["tokens"] for row in rows] == [["a", "b"], ["c"]]
    assert rows[0].values["tags"] == ["O", "B-X"]


def test_lines_that_do_not_match_are_told_of(tmp_path: Path) -> None:
    name = write(tmp_path / "c.conll", "a O\nb\xa0O\n")
    with pytest.raises(DataError, match=r"c.conll:2: 1 columns .* have 2: b\\xa0O"):
        read_rows([name])
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
    checks = check_rows(rows, {}, ["text"], lambda rows: [[], [("b", "b")]])
    (line, *_) = summarize_checks(checks)
    assert line == "train: 2 rows, 1 duplicate (50.0%); no label 50%, b 50%"


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


# SQuAD's nested JSON as rows.


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


QUESTIONS = [
    {
        "id": f"q{n}",
        "question": f"What {n}?",
        "answers": [{"text": "Elbe", "answer_start": 4}],
        "is_impossible": False,
    }
    for n in (1, 2)
]
PARAGRAPH = {"context": "The Elbe is long.", "qas": QUESTIONS}
CMRC = {
    "context_id": "D",
    "context_text": "The Elbe is long.",
    "title": "t",
    "qas": [{"query_id": f"q{n}", "query_text": f"What {n}?", "answers": ["Elbe"]} for n in (1, 2)],
}
ARTICLE = {"title": "Rivers", "paragraphs": [PARAGRAPH]}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    "document",
    [
        {"data": [ARTICLE]},
        [ARTICLE],
        ARTICLE,
        {"data": [PARAGRAPH]},
        [PARAGRAPH],
        PARAGRAPH,
        [CMRC],
        {"data": [CMRC]},
        [{**question, "context": PARAGRAPH["context"]} for question in QUESTIONS],
    ],
)
def test_forms_of_questions_and_contexts(tmp_path: Path, document: Any, indent: int | None) -> None:
    from plmctl.tasks.question_answering import answers_in

    rows = read_rows([write(tmp_path / "a.json", json.dumps(document, indent=indent))])
    assert [row.values["id"] for row in rows] == ["q1", "q2"]
    assert [row.values["question"] for row in rows] == ["What 1?", "What 2?"]
    assert {row.values["context"] for row in rows} == {"The Elbe is long."}
    start = None if "context_text" in json.dumps(document) else 4
    assert [answers_in(row, "answers") for row in rows] == [[("Elbe", start)]] * 2


def test_questions_without_an_id_are_numbered(tmp_path: Path) -> None:
    text = json.dumps({"context": "c", "qas": [{"question": "a"}, {"question": "b"}]})
    for name, where in (("a.json", ":1/"), ("a.jsonl", ":1/")):
        name = write(tmp_path / name, text)
        assert [row.origin for row in read_rows([name])] == [f"{name}{where}{n}" for n in (1, 2)]
        assert [row.values["id"] for row in read_rows([name])] == [None, None]


def test_lists_of_rows_and_what_is_none(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": None}]
    for indent in (None, 1):
        name = write(tmp_path / "a.json", json.dumps(rows, indent=indent))
        assert [row.values for row in read_rows([name])] == rows
        (source,) = resolve((name,))
        texts = [document.text for document in documents(source, DataConfig(train=(name,)))]
        assert texts == ["a", "b"]  # as a corpus, too
    lines = write(tmp_path / "a.jsonl", json.dumps(rows))
    with pytest.raises(DataError, match=r"a JSON list, not an object\n.*name it .json"):
        read_rows([lines])
    for document in ({"text": {"0": "a"}, "label": {"0": 1}}, {"data": [["a", 1]]}, [["a", 1]]):
        for indent in (None, 1):
            name = write(tmp_path / "b.json", json.dumps(document, indent=indent))
            with pytest.raises(DataError, match="orient='records'"):
                read_rows([name])


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_key_that_is_there_twice(tmp_path: Path, name: str) -> None:
    text = '{"text": "a", "label": 1, "label": 2}'
    with pytest.raises(DataError, match=rf"{name}:1: the key 'label' is here twice"):
        read_rows([write(tmp_path / name, text)])
    nested = '[\n{"text": "a", "label": {"x": 1, "x": 2}}\n]'
    with pytest.raises(DataError, match="the key 'x' is here twice"):
        read_rows([write(tmp_path / "b.json", nested)])


QUOTED = [["a\tb", "good"], ['"a" she said', "bad"], ["it 's", "good"], ["a\nb", "1"]]


@pytest.mark.parametrize("style", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_tsv_file_that_quotes_fields(tmp_path: Path, style: Any, end: str) -> None:
    with (tmp_path / "a.tsv").open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t", quoting=style, lineterminator=end)
        writer.writerows([["text", "label"], *QUOTED])
    rows = read_rows([str(tmp_path / "a.tsv")])
    assert [list(row.values.values()) for row in rows] == QUOTED


@pytest.mark.parametrize(
    "texts",
    [
        ['a "good" film', "b"],
        ['" all of it "', 'x "'],
        ['"all of it"', "b"],
        ['"all" of it', '6" long'],
        ["it 's", '"'],
        ['"a ""b"" c"', 'he said "no"'],
    ],
)
def test_a_tsv_file_in_which_quotes_are_only_quotes(tmp_path: Path, texts: list[str]) -> None:
    lines = "".join(f"{text}\t1\n" for text in texts)
    rows = read_rows([write(tmp_path / "a.tsv", f"text\tlabel\n{lines}")])
    assert [row.values["text"] for row in rows] == texts
    with pytest.raises(DataError, match=r"a.tsv:4: 3 fields .*\n.*as pandas and csv.writer do"):
        read_rows([write(tmp_path / "a.tsv", f'text\tlabel\n{lines}"a\tb" c\t1\n')])


def test_few_validation_rows_are_a_warning() -> None:
    rows = [Row({"text": str(n)}, "a:1") for n in range(60)]
    for count, line in (
        (1, "  1 row is few: one row is 100 % of a score; validate on more rows (data.valid), or"),
        (49, "  49 rows are few: one row is 2 % of a score"),
    ):
        lines = summarize_checks(check_rows(rows, {"valid": rows[:count]}, ["text"], None))
        assert lines[2].startswith(line)
    lines = summarize_checks(check_rows(rows[:9], {"valid": rows[:50]}, ["text"], None))
    assert not any("few" in line for line in lines)


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
        (lambda d: d["data"].append("x"), "entry 2 is a str, not an object"),
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
        ('[\n{"id": 1},\n', "the file as a whole is not JSON"),
        ('{\n"a": {}\n}\n', "no list of rows, and no list 'data'"),
        ('{"id": 1,\n', ":1: not JSON"),
    ],
)
def test_files_that_are_neither(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=message):
        read_rows([str(tmp_path / "a.json")])
