"""T5's texts, written by hand from the paper's appendix D and the code's preprocessors."""

import numpy as np
import pytest

from plmctl.corpus.labelled import Row
from plmctl.errors import DataError
from plmctl.tasks import text_to_text
from plmctl.tasks._t5_casts import CASTS, cast_metrics, f1_with_invalid, label_of, spaced

CASES = [
    ("cola", {"sentence": "They sang.", "label": 1}, "cola sentence: They sang.", "acceptable"),
    ("sst2", {"sentence": "so dull", "label": 0}, "sst2 sentence: so dull", "negative"),
    (
        "mrpc",
        {"sentence1": "A b.", "sentence2": "C d.", "label": 1},
        "mrpc sentence1: A b. sentence2: C d.",
        "equivalent",
    ),
    (
        "qqp",
        {"question1": "Why?", "question2": "How?", "label": 0},
        "qqp question1: Why? question2: How?",
        "not_duplicate",
    ),
    (
        "stsb",
        {"sentence1": "A b.", "sentence2": "C d.", "label": 3.799999952316284},
        "stsb sentence1: A b. sentence2: C d.",
        "3.8",
    ),
    (
        "mnli",
        {"premise": "It rains.", "hypothesis": "It is wet.", "label": 0},
        "mnli hypothesis: It is wet. premise: It rains.",
        "entailment",
    ),
    (
        "qnli",
        {"question": "Who?", "sentence": "Anna did.", "label": 1},
        "qnli question: Who? sentence: Anna did.",
        "not_entailment",
    ),
    (
        "rte",
        {"sentence1": "A.", "sentence2": "B.", "label": "entailment"},
        "rte sentence1: A. sentence2: B.",
        "entailment",
    ),
    (
        "squad",
        {
            "question": "Who won (in 1999)?",
            "context": "It was John O'Neil-Smith.",
            "answers": {"text": ["O'Neil-Smith", "John"], "answer_start": [12, 7]},
        },
        "question: Who won ( in 1999 ) ? context: It was John O ' Neil - Smith .",
        "O ' Neil - Smith",
    ),
    (
        "squad_trivia",
        {"question": "Who won?", "answers": ["Neil"]},
        "squad trivia question: Who won ?",
        "Neil",
    ),
]


def test_every_cast_is_here() -> None:
    assert [case[0] for case in CASES] == list(CASTS)


@pytest.mark.parametrize(("cast", "values", "source", "target"), CASES, ids=lambda v: str(v)[:12])
def test_texts_of_a_row(cast: str, values: dict, source: str, target: str) -> None:
    config = text_to_text.Config(cast=cast)
    row = Row(values, "rows:1")
    assert text_to_text.TextToText(config).source(row) == source
    assert text_to_text.TextToText(config).targets(row)[0] == target
    assert set(text_to_text.TextToText(config).text_columns()) | {config.written} == set(values)


def test_squad_keeps_all_answers_and_marks_stand_apart() -> None:
    row = Row(CASES[8][1], "rows:1")
    config = text_to_text.Config(cast="squad")
    assert text_to_text.TextToText(config).targets(row) == ("O ' Neil - Smith", "John")
    assert spaced("a  “b”_c\n$5.0") == "a “b” _ c $ 5 . 0"  # marks of ASCII only


@pytest.mark.parametrize(
    ("value", "word"), [(0, "0.0"), (5.0, "5.0"), (2.5, "2.4"), (2.7, "2.8"), (3.25, "3.2")]
)
def test_similarities_are_fifths(value: float, word: str) -> None:
    # 2.5 and 2.7 are 12.5 and 13.5 fifths: the even one is taken, as TensorFlow rounds.
    assert label_of("stsb", value, "rows:1") == word
    assert len(CASTS["stsb"].labels) == 26


@pytest.mark.parametrize(("cast", "value"), [("rte", -1), ("rte", 2), ("cola", "yes"), ("stsb", 6)])
def test_what_is_no_label_is_refused(cast: str, value: object) -> None:
    with pytest.raises(DataError, match=r"rows:7: (label|similarity) "):
        label_of(cast, value, "rows:7")


def test_outputs_that_are_no_label_are_wrong() -> None:
    truth = [["duplicate"], ["duplicate"], ["not_duplicate"], ["not_duplicate"], ["duplicate"]]
    outputs = ["duplicate", "dup", "not_duplicate", "", "not_duplicate"]
    metrics = cast_metrics("qqp", outputs, truth)
    assert metrics["accuracy"] == 2 / 5
    # "dup" counts as not_duplicate, "" as duplicate: 1 right of 2 that were said, of 3 that are
    assert metrics["f1"] == pytest.approx(2 * 1 / (2 + 3))
    assert metrics["no_label"] == 2 / 5
    assert metrics["majority"] == 3 / 5
    assert f1_with_invalid(np.array([0, -1]), np.array([0, 0])) == 0


def test_similarities_are_read_as_numbers() -> None:
    truth = [["0.0"], ["2.0"], ["4.0"]]
    metrics = cast_metrics("stsb", ["1", "2.2", "4.6"], truth)
    assert metrics["spearman"] == pytest.approx(1)
    assert metrics["no_label"] == 0
    # "good" is read as -1: the order is turned round
    metrics = cast_metrics("stsb", ["2", "1.0", "good"], truth)
    assert metrics["spearman"] == pytest.approx(-1)
    assert metrics["no_label"] == 1 / 3
    assert cast_metrics("stsb", ["nan"] * 3, truth)["pearson"] == 0
