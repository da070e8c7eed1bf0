"""Label cells of every type, through every task and format: read with one meaning, or refused."""

import csv
import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plmctl.corpus.labelled import Row, check_rows, read_rows
from plmctl.errors import ConfigError, DataError
from plmctl.tasks._word_labels import row_tags, row_words
from plmctl.tasks.base import get_task
from plmctl.tasks.multiple_choice import item_of, right_option
from plmctl.tasks.question_answering import TextPieces, answers_in, place_of
from tests.tasks.conftest import rows_of

CLASSIFICATION, TAGGING = get_task("classification"), get_task("tagging")
CHOICE, TEXT = get_task("multiple_choice"), get_task("text_to_text")
NAN, REFUSED = float("nan"), "refused"
DAY = datetime.date(2024, 1, 2)


# --- A column written in every format ---


def write(folder: Path, kind: str, column: str, values: list[Any], **others: list[Any]) -> str:
    """A file with a column of values; a csv or tsv file has their texts, as pandas writes them."""
    table = {"text": [f"text {n}" for n in range(len(values))], **others, column: values}
    path = folder / f"rows.{kind}"
    rows = [dict(zip(table, cells, strict=True)) for cells in zip(*table.values(), strict=True)]
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif kind == "json":
        path.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    elif kind in ("csv", "tsv"):
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, delimiter="," if kind == "csv" else "\t")
            writer.writerow(table)
            writer.writerows(
                ["" if cell is None else cell for cell in row.values()] for row in rows
            )
    elif kind == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table(table), path)
    else:
        from datasets import Dataset

        Dataset.from_dict(table).save_to_disk(path)
    return str(path)


FORMATS = [
    "jsonl",
    "csv",
    *(pytest.param(kind, marks=pytest.mark.sweep) for kind in ("json", "tsv", "parquet", "data")),
]


# --- Classification and regression ---


# What it is, its cells, the labels of one label and of several per row, and the numbers.
CELLS: list[tuple[str, list[Any], Any, Any, Any]] = [
    ("whole numbers", [1, 0, 2, 1], ("0", "1", "2"), ("0", "1", "2"), [1, 0, 2, 1]),
    ("whole floats", [1.0, 0.0, 2.0], ("0", "1", "2"), ("0", "1", "2"), [1, 0, 2]),
    ("negative numbers", [-1, 1, -1], ("-1", "1"), ("-1", "1"), [-1, 1, -1]),
    ("decimals", [0.5, 1.5, 0.5], ("0.5", "1.5"), REFUSED, [0.5, 1.5, 0.5]),
    ("true and false", [True, False], ("False", "True"), ("False", "True"), REFUSED),
    ("texts", ["b", "a", "c d"], ("a", "b", "c d"), ("a", "b", "c d"), REFUSED),
    ("texts of numbers", ["2.0", "1", "-0.0"], ("0", "1", "2"), ("0", "1", "2"), [2, 1, 0]),
    ("white space", ["a ", "\xa0a", "b", "\u3000b\u200b"], ("a", "b"), ("a", "b"), REFUSED),
    ("invisible", ["a\u200bb", "ab", "c\ufeff", "\u2060c"], ("ab", "c"), ("ab", "c"), REFUSED),
    ("spaces inside", ["a  b", "a\xa0b", "c"], ("a b", "c"), ("a b", "c"), REFUSED),
    ("accents", ["e\u0301", "\xe9", "x"], ("x", "\xe9"), ("x", "\xe9"), REFUSED),
    ("no value", ["a", None, "b"], REFUSED, {REFUSED, ("a", "b")}, REFUSED),
    ("no number", [1.0, NAN, 2.0], REFUSED, REFUSED, REFUSED),
    ("no value as text", ["a", "nan", "b"], REFUSED, REFUSED, REFUSED),
    ("nothing as text", ["a", "None", "b"], REFUSED, REFUSED, REFUSED),
    ("empty", ["a", " ", "b"], REFUSED, ("a", "b"), REFUSED),
    ("infinity", [1.0, float("inf"), 2.0], {REFUSED, ("1", "2", "inf")},
     {REFUSED, ("1", "2", "inf")}, REFUSED),
    ("lists of names", [["a", "b"], ["a"], [], ["b"]], REFUSED, ("a", "b"), REFUSED),
    ("lists of numbers", [[0], [2, 0], [1]], REFUSED, ("0", "1", "2"), REFUSED),
    ("vectors", [[1, 0, 0], [0, 1, 0]], REFUSED, ("0", "1", "2"), REFUSED),
    ("vectors of floats", [[1.0, 0.0], [0.0, 1.0]], REFUSED, ("0", "1"), REFUSED),
    ("vectors of true and false", [[True, False], [True, True]], REFUSED, ("0", "1"), REFUSED),
    ("vectors of two lengths", [[1, 0, 1, 1], [0, 1]], REFUSED, REFUSED, REFUSED),
    ("probabilities", [[0.2, 0.8], [0.5, 0.5]], REFUSED, REFUSED, REFUSED),
    ("lists with no value", [["a", None], ["b", None]], REFUSED, REFUSED, REFUSED),
    ("0 or 1 by name", [{"a": 1, "b": 0}, {"a": 0, "b": 1}], REFUSED, ("a", "b"), REFUSED),
    ("scores by name", [{"a": 0.5, "b": 0.1}, {"a": 0, "b": 1}], REFUSED, REFUSED, REFUSED),
    ("a list of JSON", ['["a", "b"]', '["a"]', "[]"], REFUSED, ("a", "b"), REFUSED),
    ("a list of Python", ["['a', 'b']", "['a']", "[]"], REFUSED, ("a", "b"), REFUSED),
    ("a list of NumPy", ["['a' 'b']", "['a']"], REFUSED, ("a", "b"), REFUSED),
    ("a vector as text", ["[1, 0]", "[0, 1]"], REFUSED, ("0", "1"), REFUSED),
    ("a vector of NumPy", ["[1 0 1]", "[0. 1. 0.]"], REFUSED, ("0", "1", "2"), REFUSED),
    ("a vector without brackets", ["1,0,1", "0,1,1"], {("0,1,1", "1,0,1")}, ("0", "1", "2"),
     REFUSED),
    ("names without brackets", ["a, b", "a"], ("a", "a, b"), ("a", "b"), REFUSED),
    ("parentheses", ["(a)", "(b)"], ("(a)", "(b)"), ("(a)", "(b)"), REFUSED),
    ("half a list", ["[a, b]", "[b]"], {("[a, b]", "[b]")}, REFUSED, REFUSED),
    ("bits", ["0100", "1011"], ("0100", "1011"), REFUSED, [100, 1011]),
    ("bytes as text", ["b'x'", "b'y'"], REFUSED, REFUSED, REFUSED),
    ("separated thousands", ["1_000", "2_000"], ("1_000", "2_000"), ("1_000", "2_000"), REFUSED),
    ("other digits", ["٣.٥", "١.٥"], ("١.٥", "٣.٥"), ("١.٥", "٣.٥"), REFUSED),
    ("commas in numbers", ["3,5", "1,5"], ("1,5", "3,5"), ("1", "3", "5"), REFUSED),
]  # fmt: skip
OF_ARROW: list[tuple[str, list[Any], Any, Any, Any]] = [
    ("bytes", [b"a", b"b"], REFUSED, REFUSED, REFUSED),
    ("dates", [DAY, datetime.date(2024, 1, 3)], REFUSED, REFUSED, REFUSED),
    ("times", [datetime.datetime(2024, 1, 2), datetime.datetime(2024, 1, 3)], REFUSED, REFUSED,
     REFUSED),
    ("decimal numbers", [Decimal("1.00"), Decimal("2.00")], ("1", "2"), ("1", "2"), [1, 2]),
    ("decimal fractions", [Decimal("1.50"), Decimal("2.00")], ("1.5", "2"), REFUSED, [1.5, 2]),
    ("no number in a list", [[1.0, NAN], [2.0, NAN]], REFUSED, REFUSED, REFUSED),
]  # fmt: skip


def outcome(path: str, read: Any) -> Any:
    """What was read, or that it was refused with the file and the column."""
    try:
        return read(read_rows([path]))
    except DataError as error:
        assert path in error.message  # noqa: PT017
        assert len(str(error)) < 600  # noqa: PT017
        return REFUSED


def labels_by(problem: str) -> Any:
    task = CLASSIFICATION(CLASSIFICATION.Config(problem=problem))

    def read(rows: list[Row]) -> Any:
        from plmctl.tasks.classification import label_targets

        labels = task.labels(rows)
        targets = label_targets(task.config, rows, labels)
        if problem == "regression":
            return targets.tolist()
        for row, names in zip(targets, task.labels_of(rows, labels), strict=True):
            expected = [labels[row]] if problem == "single_label" else [
                name for name, there in zip(labels, row, strict=True) if there
            ]  # fmt: skip
            assert [name for _, name in names] == expected
        return labels

    return read


@pytest.mark.parametrize("kind", FORMATS)
def test_classes_and_numbers(kind: str, tmp_path: Path) -> None:
    wrong = []
    cells = CELLS + (OF_ARROW if kind == "parquet" else [])
    for number, (what, values, single, several, numbers) in enumerate(cells):
        if kind in ("parquet", "data") and what == "0 or 1 by name":
            continue  # Arrow has one type for the values of a name
        (folder := tmp_path / str(number)).mkdir()
        path = write(folder, kind, "label", values)
        for problem, expected in (
            ("single_label", single), ("multi_label", several), ("regression", numbers)
        ):  # fmt: skip
            got = outcome(path, labels_by(problem))
            if got not in (expected if isinstance(expected, set) else [expected]):
                wrong.append((what, problem, got, expected))
    assert not wrong


def test_columns_of_labels() -> None:
    config = CLASSIFICATION.Config(problem="multi_label", label=("a", "b"))
    rows = rows_of({"a": 1, "b": "0"}, {"a": False, "b": 1.0}, {"a": "0.0", "b": "true"})
    task = CLASSIFICATION(config)
    assert task.labels(rows) == ("a", "b")
    names = [[name for _, name in row] for row in task.labels_of(rows, ("a", "b"))]
    assert names == [["a"], ["b"], ["b"]]
    with pytest.raises(DataError, match="column 'b': 'yes'; a column of one label has 0 or 1"):
        task.labels_of(rows_of({"a": 1, "b": "yes"}), ("a", "b"))
    dropping = CLASSIFICATION(config.model_copy(update={"unlabelled": "drop"}))
    assert [dropping.is_labelled(row) for row in rows_of({"a": 1, "b": None}, rows[0].values)] == [
        False,
        True,
    ]
    with pytest.raises(ConfigError, match="2 columns of labels, and 3 labels: x, y, z"):
        task.labels_of(rows, ("x", "y", "z"))
    with pytest.raises(ValueError, match="are for multi_label"):
        CLASSIFICATION.Config(label=("a", "b"))


def test_labels_that_a_config_names_have_the_same_forms() -> None:
    from plmctl.tasks.classification import class_weights, positive_label

    assert positive_label("1.0", ("0", "1")) == "1"
    assert positive_label(("x", "good "), ("bad", "good")) == "good"
    assert class_weights({"good ": 3}, np.array([0, 1]), ("bad", "good")).tolist() == [1, 3]


def test_names_of_the_places_of_vectors() -> None:
    rows = rows_of({"label": [1, 0, 1]}, {"label": [0, 0, 0]}, {"label": []})
    task = CLASSIFICATION(CLASSIFICATION.Config(problem="multi_label", labels=("x", "b", "c")))
    assert task.labels(rows) == ("x", "b", "c")
    assert [len(row) for row in task.labels_of(rows, ("x", "b", "c"))] == [2, 0, 0]
    # A model with names does not guess which place is which name.
    other = CLASSIFICATION(CLASSIFICATION.Config(problem="multi_label"))
    with pytest.raises(DataError, match=r"rows.jsonl:1: .*\[1, 0, 1\] is no list of labels"):
        other.labels_of(rows, ("b", "c", "x"))
    few = CLASSIFICATION(CLASSIFICATION.Config(problem="multi_label", labels=("x", "b")))
    with pytest.raises(ConfigError, match="2 names, and the vectors .* 3 places"):
        few.labels(rows)


def test_labels_of_a_model_that_are_written_in_another_way() -> None:
    task = CLASSIFICATION(CLASSIFICATION.Config())
    targets = task.make(rows_of({"text": "a", "label": "good "}), *made(("bad ", "good "))).targets
    assert targets.tolist() == [1]
    with pytest.raises(DataError, match="label 'GOOD' is not .*; did you mean 'good'") as refused:
        task.make(rows_of({"text": "a", "label": "GOOD"}), *made(("bad", "good")))
    assert "fix the row" in str(refused.value.hint)
    with pytest.raises(DataError, match="not among the training labels") as refused:
        task.make(rows_of({"text": "a", "label": 3.25}), *made(("1.5", "2")))
    assert "task.problem: regression" in str(refused.value.hint)


def made(labels: tuple[str, ...]) -> tuple[Any, tuple[str, ...], int, str]:
    from tests.tasks.conftest import tokenizer_of

    return tokenizer_of("bert"), labels, 16, "score"


def test_what_is_left_out_and_what_is_kept() -> None:
    rows = rows_of(*({"text": str(n), "label": v} for n, v in enumerate(["a", "NaN", "N/A", "b"])))
    dropping = CLASSIFICATION(CLASSIFICATION.Config(unlabelled="drop"))
    assert [dropping.is_labelled(row) for row in rows] == [True, False, False, True]
    keeping = CLASSIFICATION(CLASSIFICATION.Config(unlabelled="keep"))
    assert keeping.labels(rows) == ("N/A", "NaN", "a", "b")
    with pytest.raises(DataError, match="'NaN', no value; expected a label") as refused:
        CLASSIFICATION(CLASSIFICATION.Config()).labels(rows)
    assert "task.unlabelled=drop; if 'NaN' is a label: task.unlabelled=keep" in str(refused.value)


def test_a_label_in_a_field_of_a_column() -> None:
    task = CLASSIFICATION(CLASSIFICATION.Config(label="gold.name"))
    rows = rows_of({"text": "x", "gold": {"name": "a "}}, {"text": "y", "gold": {"name": "b"}})
    assert task.labels(rows) == ("a", "b")
    assert task.labels_of(rows, ("a", "b")) == [[("a ", "a")], [("b", "b")]]
    marked = rows_of({"gold": {"name": "-"}})
    with pytest.raises(DataError, match=r"rows.jsonl:1: .*'-', which 1 training"):
        task.labels([*rows, *marked])


def test_weights_that_learn_nothing() -> None:
    config = CLASSIFICATION.Config(class_weights={"a": 0, "b": 0})
    rows = rows_of({"text": "x", "label": "a"}, {"text": "y", "label": "b"})
    with pytest.raises(ConfigError, match="every weight is 0"):
        CLASSIFICATION(config).make(rows, *made(("a", "b"))[:3], "train")


@pytest.mark.parametrize(
    ("labels", "line"),
    [
        (["a", "A"], "separate labels that look alike: 'A' and 'a'; if they mean the same"),
        (["a1", "\uff41\uff11"], r"look alike: 'a1' and 'ａ１' (\uff41\uff11)"),
        (["cop", "\u0441\u043e\u0440"], r"look alike: 'cop' and 'сор' (\u0441\u043e\u0440)"),
        (["x-y", "x\u2013y"], "separate labels that look alike"),
        (["\u2764", "\u2764\ufe0f"], "separate labels that look alike"),
        ([5, "5", 6], "the label '5' is written in 2 ways: 5 and '5'"),
        (["good ", "good", "bad"], "the label 'good' is written in 2 ways: 'good ' and 'good'"),
        (["a", "NONE"], "'NONE' is learned as a label; if it means that there is none, leave"),
        ([0.5, 1.5, 1], "decimals such as 0.5 are learned as 3 separate labels, without an order"),
    ],
)
def test_lines_about_labels(labels: list[Any], line: str) -> None:
    task = CLASSIFICATION(CLASSIFICATION.Config())
    rows = rows_of(*({"text": str(n), "label": label} for n, label in enumerate(labels)))
    names = task.labels(rows)
    lines = check_rows(rows, {}, ["text"], lambda rows: task.labels_of(rows, names))["labels"]
    assert len(lines) == 1
    assert line in lines[0]


# --- Tags ---


TAGS: list[tuple[str, list[Any], Any]] = [
    ("lists", [["A", "B"], ["B", "B"]], [["A", "B"], ["B", "B"]]),
    ("texts", ["A B", "B  B"], [["A", "B"], ["B", "B"]]),
    ("numbers", [[0, 1], [1, 1]], [["0", "1"], ["1", "1"]]),
    ("whole floats", [[0.0, 1.0], [1.0, 1.0]], [["0", "1"], ["1", "1"]]),
    ("white space", [["A ", "\xa0B"], ["B\u200b", "B"]], [["A", "B"], ["B", "B"]]),
    ("lists as text", ["['A', 'B']", '["B", "B"]'], [["A", "B"], ["B", "B"]]),
    ("lists of NumPy", ["['A' 'B']", "['B' 'B']"], [["A", "B"], ["B", "B"]]),
    ("numbers as text", ["[0, 1]", "[1 1]"], [["0", "1"], ["1", "1"]]),
    ("half a list", ["[A, B]", "[B, B]"], REFUSED),
    ("an empty tag", [["A", " "], ["B", "B"]], REFUSED),
    ("no tag", [["A", None], ["B", "B"]], REFUSED),
    ("too few", [["A"], ["B"]], REFUSED),
    ("lists in lists", [[["A"], ["B"]], [["B"], ["B"]]], REFUSED),
    ("by name", [{"A": 1}, {"A": 0}], REFUSED),
]


@pytest.mark.parametrize("kind", FORMATS)
def test_tags(kind: str, tmp_path: Path) -> None:
    config, wrong = TAGGING.Config(scheme="pos"), []

    def read(rows: list[Row]) -> Any:
        labels = TAGGING(config).labels(rows)
        return [row_tags(config, row, row_words(config, row), labels) for row in rows]

    for number, (what, values, expected) in enumerate(TAGS):
        (folder := tmp_path / str(number)).mkdir()
        tokens = [["x", "y z"], ["z", "z"]] if number % 2 else ["x yz", "z z"]
        got = outcome(write(folder, kind, "tags", values, tokens=tokens), read)
        if got != expected:
            wrong.append((what, got))
    assert not wrong


# --- The number of an option, answers, and texts to write ---


CHOICES: list[tuple[list[Any], Any]] = [
    ([1, 0], [1, 0]),
    ([1.0, 0.0], [1, 0]),
    (["B", "a "], [1, 0]),
    (["1.0", " 0\u200b"], [1, 0]),
    ([True, False], REFUSED),
    ([0.5, 1.0], REFUSED),
    (["nan", "0"], REFUSED),
    ([None, 1], REFUSED),
    (["٠", "١"], REFUSED),
    ([[0, 1], [1, 0]], REFUSED),
    (["[0, 1]", "[1, 0]"], REFUSED),
    ([2, 0], REFUSED),
]

RIGHT = [[("x", 3)], [("y", 0)]]
ANSWERS: list[tuple[list[Any], Any]] = [
    ([{"text": ["x"], "answer_start": [3]}, {"text": ["y"], "answer_start": [0]}], RIGHT),
    ([{"text": ["x"], "answer_start": [3.0]}, {"text": ["y"], "answer_start": [0.0]}], RIGHT),
    ([{"text": "x", "answer_start": 3}, {"text": "y", "answer_start": 0}], RIGHT),
    ([[{"text": "x", "answer_start": 3}], [{"text": "y", "answer_start": 0}]], RIGHT),
    ([["x"], ["y"]], [[("x", None)], [("y", None)]]),
    ([{"text": ["x"], "answer_start": [17.9]}, {"text": ["y"], "answer_start": [0.0]}], REFUSED),
    ([{"text": ["x"], "answer_start": [True]}, {"text": ["y"], "answer_start": [False]}], REFUSED),
    ([{"text": ["x"], "answer_start": ["a"]}, {"text": ["y"], "answer_start": ["b"]}], REFUSED),
    ([{"text": ["x"], "answer_start": [3, 4]}, {"text": ["y"], "answer_start": [0]}], REFUSED),
    ([1, 2], REFUSED),
    (["x", "y"], REFUSED),
    (
        [
            "{'text': array(['x'], dtype=object), 'answer_start': array([3], dtype=int32)}",
            '{"text": ["y"], "answer_start": [0]}',
        ],
        RIGHT,
    ),
]

TARGETS: list[tuple[list[Any], Any]] = [
    (["a ", "\xa0a", "b"], [("a",), ("a",), ("b",)]),
    ([1.0, 2.0, 1.0], [("1",), ("2",), ("1",)]),
    ([["a", "b"], ["b"], ["a"]], [("a", "b"), ("b",), ("a",)]),
    (["['a', 'b']", "['b']", "['a']"], [("a", "b"), ("b",), ("a",)]),
    ([None, "a", "b"], REFUSED),
    (["nan", "a", "b"], REFUSED),
]


@pytest.mark.parametrize("kind", FORMATS)
def test_options_answers_and_targets(kind: str, tmp_path: Path) -> None:
    wrong: list[Any] = []
    choice = CHOICE.Config(options=("a", "b"), question="text")
    rank = TEXT(TEXT.Config(source="text", target="label", decoding="rank"))
    for what, cells, others, read in (
        ("choice", CHOICES, {"a": ["x", "x"], "b": ["y", "y"]},
         lambda rows: [right_option(choice, row) for row in rows]),
        ("answers", ANSWERS, {}, lambda rows: [answers_in(row, "label") for row in rows]),
        ("targets", TARGETS, {},
         lambda rows: [rank.targets(row) for row in rows if rank.labels(rows)]),
    ):  # fmt: skip
        for number, (values, expected) in enumerate(cells):
            (folder := tmp_path / f"{what}{number}").mkdir()
            got = outcome(write(folder, kind, "label", values, **others), read)
            if got != expected:
                wrong.append((what, values, got))
    assert not wrong


@pytest.mark.parametrize("options", [["a", "b c"], "['a', 'b c']", '["a", "b c"]', "['a' 'b c']"])
def test_options_that_a_table_has_as_text(options: Any) -> None:
    row = rows_of({"question": "x", "options": options, "label": "1.0"})[0]
    assert item_of(CHOICE.Config(), row) == ("", "x", ("a", "b c"))
    assert right_option(CHOICE.Config(), row) == 1


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("b", (1, 1)),
        ("a", "answer 'a' has no answer_start, and is 2 times there"),
        ("x", "answer 'x' has no answer_start, and is 0 times there"),
    ],
)
def test_an_answer_without_a_start_is_looked_for(answer: str, found: Any) -> None:
    context = TextPieces("a b a", np.array([1, 2, 1]), np.array([[0, 1], [2, 3], [4, 5]]))
    assert place_of(context, answer, None, None) == found
