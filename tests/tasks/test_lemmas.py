"""Rules of lemmas, which of them are learned, and what is right."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from plmctl.arrays import IGNORE
from plmctl.errors import DataError
from plmctl.evaluation.scoring import answers
from plmctl.models.network import Network
from plmctl.tasks import lemmas
from tests.tasks.conftest import Folder, load_head, rows_of


def task(**fields: object) -> lemmas.Lemmas:
    return lemmas.Lemmas(lemmas.Config(**fields))


@pytest.mark.parametrize(
    ("form", "lemma", "rule"),
    [
        ("cats", "cat", "lower 0+ 1+"),
        ("Bodies", "body", "lower 0+ 3+y"),
        ("gegangen", "gehen", "lower 0+ 6+hen"),
        ("Gaerdydd", "Caerdydd", "title 1+c 0+"),  # Welsh: the first sound changes
        ("PARIS", "Paris", "title 0+ 0+"),
        ("nasa", "NASA", "upper 0+ 0+"),
        ("iPhones", "iPhone", "keep 0+ 1+"),
        ("is", "be", "=be"),
        ("a lot", "a lot", "lower 0+ 0+"),
        ("ad", "ad hoc", "=ad hoc"),  # no white space in a rule
        ("图书", "图书", "lower 0+ 0+"),
    ],
)
def test_rules(form: str, lemma: str, rule: str) -> None:
    assert lemmas.rule_of(form, lemma) == rule
    assert lemmas.apply(rule, form) == lemma


@given(st.text(min_size=1, max_size=8), st.text(min_size=1, max_size=8))
@example("İstanbul", "istanbul")
@example("Straße", "STRASSE")
@example("ab", "=ab")
def test_a_rule_makes_its_lemma(form: str, lemma: str) -> None:
    assert lemmas.apply(lemmas.rule_of(form, lemma), form) == lemma


def test_a_rule_is_for_other_words_too() -> None:
    assert [lemmas.apply("lower 0+ 3+y", word) for word in ("Ladies", "Ad")] == ["lady", "Ad"]
    assert lemmas.apply("O", "rome") == "O"  # the label of another task's folder


ROWS = rows_of(
    {"tokens": ["Cats", "dogs", "cows", "be"], "lemma": ["cat", "dog", "cow", "be"]},
    {"tokens": ["a", "b", "went"], "lemma": ["a", "b", "go"]},
    {"tokens": "x _", "lemma": ["_", "_"]},
)


def test_rules_of_three_words_are_learned() -> None:
    assert task().labels(ROWS) == ("lower 0+ 0+", "lower 0+ 1+")
    assert task().labels(ROWS[1:]) == ("=go", "lower 0+ 0+")  # too few are so frequent
    assert task().right_answer(ROWS[1]) == "a/a b/b went/go"
    with pytest.raises(DataError, match="have no lemmas: all of 'lemma' are _") as error:
        task().labels(rows_of({"tokens": ["a"], "lemma": ["_"]}))
    assert "task.tags" in str(error.value)


@pytest.fixture
def bert(folder: Folder) -> str:
    return folder("bert")


def test_what_is_learned_and_what_is_right(bert: str) -> None:
    labels = task().labels(ROWS)
    examples = task().make(ROWS, task().tokenizer(bert), labels, 40, "score")
    assert examples.label_ids == [[1, 1, 1, 0], [0, 0, IGNORE], [IGNORE, 0]]
    assert examples.notices == (
        "1 words need a rule that was not learned",
        "1 words have no lemma (_): any answer is right",
    )
    given = [
        {"prediction": ["cat", "dog", "cow", "b"]},
        {"prediction": ["a", "b", "went"]},
        {"prediction": ["anything", "_"]},
    ]
    metrics = examples.compute_metrics(given)
    assert (metrics["accuracy"], metrics["words"]) == (7 / 9, 9)
    assert (metrics["unmade_lemmas"], metrics["unknown_lemmas"]) == (1, 1)
    assert examples.per_example_scores(given)[1] == [3 / 4, 2 / 3, 1.0]


def test_answers_are_lemmas(bert: str) -> None:
    """Of a network that gives every piece the second rule."""
    labels = task().labels(ROWS)
    model = load_head(task(), bert, labels, new_heads=print)
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(torch.tensor([0.0, 1.0]))
    examples = task().make(ROWS, task().tokenizer(bert), labels, 40, "predict")
    network = Network(model.eval(), lemmas.Lemmas.forward)
    given = answers(network, examples, torch.device("cpu"))
    assert [answer["prediction"] for answer in given] == [
        ["cat", "dog", "cow", "b"], ["a", "b", "wen"], ["x", "_"],
    ]  # fmt: skip


def test_counting_knows_the_words_and_their_ends() -> None:
    (counted,) = task().count(ROWS, ())
    new = rows_of({"tokens": ["cows", "bows", "went"], "lemma": ["_", "_", "_"]})
    (answer,) = counted.answers(new, None)
    assert answer["prediction"] == ["cow", "bow", "go"]


def test_targets_stand_on_one_piece(bert: str) -> None:
    examples = task().make(ROWS[:1], task().tokenizer(bert), task().labels(ROWS), 40, "train")
    batch = examples.collate(np.zeros(1, int), np.zeros(1, int))
    tags = batch.targets["tag"]
    assert tags[tags != IGNORE].tolist() == [1, 1, 1, 0]
