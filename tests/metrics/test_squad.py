"""SQuAD's and CMRC's scores, counted by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plmctl.errors import DataError
from plmctl.metrics import squad


def one(prediction: str, *references: str, metric: squad.Metric = "squad") -> tuple[float, float]:
    scores = squad.scores([prediction], [references], metric)
    return scores.exact[0], scores.f1[0]


def test_case_marks_articles_and_spaces_do_not_count():
    assert one("The  Cat, sat!", "cat sat") == (1, 1)
    assert one("theatre", "atre") == (0, 0)  # an article is a whole word
    assert one("“cat”", "cat") == (0, 0)  # only ASCII marks are left out


def test_f1_counts_shared_words_as_often_as_both_have_them():
    # Shared: cat, cat; 2 of 4 words and 2 of 3: precision 1/2, recall 2/3.
    assert one("cat cat cat dog", "cat cat bird") == (0, pytest.approx(2 * 2 / (4 + 3)))


def test_the_best_reference_counts():
    assert one("red", "blue", "dark red", "red") == (1, 1)
    assert one("red", "blue", "dark red") == (0, pytest.approx(2 / 3))


def test_nothing_left_of_an_answer():
    assert one("the", "a") == (1, 0)
    assert one("the", "a", metric="squad2") == (1, 1)
    assert one("", "cat", metric="squad2") == (0, 0)
    assert one("cat", metric="squad2") == (0, 0)
    assert one("", metric="squad2") == (1, 1)


def test_squad2_leaves_out_references_of_which_nothing_is_left():
    assert one("", "the", "cat", metric="squad2") == (0, 0)  # "cat" stays and counts
    assert one("", "the", metric="squad2") == (1, 1)
    assert squad.scores([""], [["the"]], "squad2").answerable == (True,)


def test_unanswered_questions_count_in_squad_1():
    scores = squad.scores(["cat", ""], [["cat"], ["dog"]], "squad")
    assert squad.summary(scores) == {"exact_match": 50, "f1": 50, "total": 2}


def test_answered_and_unanswered_questions_apart():
    scores = squad.scores(["red cat", "dog", "", "x"], [["cat"], ["dog"], [], []], "squad2")
    third = pytest.approx(100 * (2 / 3 + 1) / 2)
    assert squad.by_answerability(scores) == {
        "exact_match": 50,
        "f1": pytest.approx(100 * (2 / 3 + 1 + 1) / 4),
        "total": 4,
        "HasAns_exact_match": 50,
        "HasAns_f1": third,
        "HasAns_total": 2,
        "NoAns_exact_match": 50,
        "NoAns_f1": 50,
        "NoAns_total": 2,
    }


def test_the_sweep_by_hand():
    # All silent: 2 of 5. Then in the order of no_answer: 0.1 right (3), 0.2 has no answer (2),
    # 0.3 half right (2.5), 0.4 right (3.5, the best), 0.9 has no answer (2.5).
    predictions = ["a1", "x", "a3", "a4", "x"]
    values = [1, 0, 0.5, 1, 0]
    answerable = [True, False, True, True, False]
    no_answer = [0.1, 0.2, 0.3, 0.4, 0.9]
    assert squad.best_threshold(predictions, values, answerable, no_answer) == (70, 0.4)
    # An answer that is "" costs nothing where there is none.
    assert squad.best_threshold(["", ""], [0, 1], [False, True], [0.1, 0.2]) == (100, 0.2)
    # Where silence is best the threshold stays 0.
    assert squad.best_threshold(["x"], [0], [False], [-3.0]) == (100, 0.0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["cat", "red cat", "dog"]),
            st.lists(st.sampled_from(["cat", "dog"]), max_size=2),
            st.integers(-4, 4),
        ),
        min_size=1,
        max_size=12,
        unique_by=lambda row: row[2],
    )
)
def test_the_best_threshold_is_the_best_of_all(rows):
    predictions, references, no_answer = zip(*rows, strict=True)
    scores = squad.scores(predictions, references, "squad2")
    best, threshold = squad.best_threshold(predictions, scores.f1, scores.answerable, no_answer)
    reached = [
        squad.summary(squad.forced(scores, no_answer, candidate))["f1"]
        for candidate in (-9, *no_answer)
    ]
    assert best == pytest.approx(max(reached))
    if threshold:
        forced = squad.forced(scores, no_answer, threshold)
        assert squad.summary(forced)["f1"] == pytest.approx(best)


def test_chinese_by_characters():
    assert squad.chinese_units("由韩国Nexon 2开发。") == [
        "由",
        "韩",
        "国",
        "nexon",
        "2",
        "开",
        "发",
    ]
    assert one("4分钟。", "4分钟", metric="cmrc") == (1, 1)
    # The longest common run: 国开 of 由韩国开发 (5 units) and 中国开放 (4).
    assert one("由韩国开发", "中国开放", metric="cmrc") == (0, pytest.approx(2 * 2 / (5 + 4)))
    # Not the longest common subsequence: 甲 and 丙 of both, but apart.
    assert one("甲乙丙", "甲丁丙", metric="cmrc") == (0, pytest.approx(2 * 1 / 6))
    assert one("", "甲", metric="cmrc") == (0, 0)
    assert one("", metric="cmrc") == (1, 1)
    assert one("甲", metric="cmrc") == (0, 0)


def test_nothing_to_score():
    with pytest.raises(DataError, match="no questions"):
        squad.scores([], [], "squad")
    with pytest.raises(DataError, match="1 answers to 2 questions"):
        squad.scores(["a"], [["a"], ["b"]], "squad")
