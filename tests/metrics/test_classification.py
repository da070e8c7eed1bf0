import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import (
    confusion_matrix,
    matthews_corrcoef,
    precision_recall_fscore_support,
)

from plmctl.errors import DataError
from plmctl.metrics import statistics
from plmctl.metrics.classification import (
    accuracy,
    accuracy_of_counts,
    classification_metrics,
    confusion,
    f1,
    f1_of_counts,
    majority,
    matthews,
    matthews_of_counts,
    multi_label_f1_macro,
    multi_label_f1_micro,
    multi_label_metrics,
    pearson,
    perplexity,
    precision,
    recall,
    regression_metrics,
    spearman,
    subset_accuracy,
)

# Ten entries of three classes, counted by hand:
#            predicted a b c
#   truth a            3 1 0
#   truth b            1 2 0
#   truth c            2 0 1
TRUTH = [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
GUESS = [0, 0, 0, 1, 0, 1, 1, 0, 0, 2]
LABELS = ["a", "b", "c"]


# a: precision 3/6, recall 3/4, F1 3/5;  b: 2/3, 2/3, 2/3;  c: 1/1, 1/3, 1/2
F1 = [3 / 5, 2 / 3, 1 / 2]
classes = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40)


def test_confusion_has_the_truth_in_its_rows():
    assert confusion(GUESS, TRUTH, 3).tolist() == [[3, 1, 0], [1, 2, 0], [2, 0, 1]]


def test_averages_by_hand():
    assert accuracy(GUESS, TRUTH) == 6 / 10
    assert f1(GUESS, TRUTH) == pytest.approx(sum(F1) / 3)
    assert f1(GUESS, TRUTH, "weighted") == pytest.approx((4 * F1[0] + 3 * F1[1] + 3 * F1[2]) / 10)
    assert f1(GUESS, TRUTH, "micro") == pytest.approx(6 / 10)
    assert precision(GUESS, TRUTH) == pytest.approx((1 / 2 + 2 / 3 + 1) / 3)
    assert recall(GUESS, TRUTH) == pytest.approx((3 / 4 + 2 / 3 + 1 / 3) / 3)
    assert majority(TRUTH) == 4 / 10


def test_classification_by_hand():
    results = classification_metrics(GUESS, TRUTH, LABELS)
    assert results["accuracy"] == 0.6
    assert results["majority"] == 0.4
    assert results["f1_macro"] == pytest.approx(sum(F1) / 3)
    assert [row["label"] for row in results["per_class"]] == LABELS
    assert [row["f1"] for row in results["per_class"]] == pytest.approx(F1)
    assert [row["support"] for row in results["per_class"]] == [4, 3, 3]
    assert results["per_class"][2]["precision"] == 1.0
    assert results["confusion"] == {
        "labels": LABELS,
        "matrix": [[3, 1, 0], [1, 2, 0], [2, 0, 1]],
    }


def test_matthews_of_two_classes_by_hand():
    truth = [1] * 6 + [0] * 4
    guess = [1, 1, 1, 1, 0, 0, 0, 0, 0, 1]  # 4 true and 1 false positive, 3 true and 2 false neg.
    expected = (4 * 3 - 1 * 2) / math.sqrt((4 + 1) * (4 + 2) * (3 + 1) * (3 + 2))
    assert matthews(guess, truth) == pytest.approx(expected)


def test_matthews_of_three_classes_by_hand():
    # Gorodkin's R_K: (correct * N - sum p_k t_k) / sqrt((N^2 - sum p_k^2) (N^2 - sum t_k^2))
    predicted, true = [6, 3, 1], [4, 3, 3]
    above = 6 * 10 - sum(p * t for p, t in zip(predicted, true, strict=True))
    below = math.sqrt((100 - 36 - 9 - 1) * (100 - 16 - 9 - 9))
    assert matthews(GUESS, TRUTH) == pytest.approx(above / below)


def test_correlations_by_hand():
    x, y = [1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 10.0]
    # deviations -1.5 -.5 .5 1.5 and -3 -1 -2 6: products sum to 13, squares to 5 and 50
    assert pearson(x, y) == pytest.approx(13 / math.sqrt(5 * 50))
    assert spearman(x, y) == pytest.approx(1 - 6 * (0 + 1 + 1 + 0) / (4 * 15))


def test_spearman_gives_ties_their_mean_rank():
    # ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: deviations -1.5 0 0 1.5 and -1.5 -.5 .5 1.5
    expected = 4.5 / math.sqrt(4.5 * 5)
    assert spearman([1.0, 5.0, 5.0, 9.0], [1.0, 2.0, 3.0, 4.0]) == pytest.approx(expected)


@pytest.mark.parametrize("metric", [pearson, spearman])
@pytest.mark.parametrize("pair", [([2, 2, 2], [1, 2, 3]), ([1, 2, 3], [5, 5, 5]), ([1], [2])])
def test_a_constant_side_correlates_with_nothing(metric, pair):
    assert metric(*pair) == 0.0


def test_one_class_on_both_sides_is_all_right_and_correlates_with_nothing(recwarn):
    results = classification_metrics([1, 1], [1, 1], ["x", "y"])
    assert (results["accuracy"], results["f1_macro"], results["matthews"]) == (1.0, 1.0, 0.0)
    assert not recwarn.list


def test_a_constant_prediction_is_scored_without_a_warning(recwarn):
    results = classification_metrics([0] * 4, [0, 0, 1, 1], ["x", "y"])
    assert results["matthews"] == 0.0
    assert results["accuracy"] == results["majority"] == 0.5
    assert results["per_class"][1] == {
        "label": "y",
        "precision": 0.0,
        "recall": 0.0,
        "f1": 0.0,
        "support": 2,
    }
    assert results["f1_macro"] == pytest.approx((2 / 3 + 0) / 2)
    assert not recwarn.list


def test_a_label_that_never_occurs_has_a_row_and_no_vote():
    results = classification_metrics([0, 1], [0, 1], ["x", "y", "never"])
    assert results["f1_macro"] == 1.0
    assert results["per_class"][2]["support"] == 0
    assert results["confusion"]["matrix"][2] == [0, 0, 0]


def test_names_are_scored_as_numbers_are():
    names = [LABELS[k] for k in GUESS], [LABELS[k] for k in TRUTH]
    assert accuracy(*names) == accuracy(GUESS, TRUTH)
    assert f1(*names) == f1(GUESS, TRUTH)


@pytest.mark.parametrize(
    "score",
    [
        accuracy,
        f1,
        matthews,
        pearson,
        lambda predictions, references: majority(references),
        lambda predictions, references: classification_metrics(predictions, references, LABELS),
        lambda predictions, references: perplexity(0.0, 0),
    ],
)
def test_nothing_to_score_is_an_error_of_the_data(score):
    with pytest.raises(DataError, match="nothing to score"):
        score([], [])


def test_what_does_not_match_or_is_no_number_is_refused():
    with pytest.raises(DataError, match=r"predictions \(2,\) do not match references \(3,\)"):
        accuracy([1, 2], [1, 2, 3])
    with pytest.raises(DataError, match="not a finite number"):
        pearson([1.0, float("nan")], [1.0, 2.0])
    with pytest.raises(DataError, match="class numbers 0 to 3 of 3 classes"):
        confusion([0, 3], [0, 1], 3)


def test_perplexity_is_of_the_whole_set():
    # Two texts, of 1 and 3 tokens: the mean of their perplexities would be another number.
    assert perplexity(math.log(2) + 3 * math.log(4), 4) == pytest.approx(2 ** (7 / 4))
    assert perplexity(math.log(8192) * 100, 100) == pytest.approx(8192)
    assert perplexity(1e6, 1) == math.inf
    assert math.isnan(perplexity(math.nan, 5))


@given(classes)
def test_the_metrics_agree_with_the_confusion_matrix(pairs):
    guess, truth = np.array(pairs).T
    matrix = confusion(guess, truth, 4)
    assert matrix.sum() == len(pairs)
    assert accuracy(guess, truth) == pytest.approx(np.trace(matrix) / matrix.sum())
    assert f1(guess, truth, "micro") == pytest.approx(accuracy(guess, truth))
    assert majority(truth) == pytest.approx(matrix.sum(axis=1).max() / matrix.sum())
    assert recall(guess, truth, "weighted") == pytest.approx(accuracy(guess, truth))


@pytest.mark.filterwarnings("ignore:A single label was found")
@given(classes)
def test_one_label_per_row_as_scikit_learn(pairs):
    guess, truth = np.array(pairs).T
    for average in ("macro", "micro", "weighted"):
        expected = precision_recall_fscore_support(truth, guess, average=average, zero_division=0)
        ours = [function(guess, truth, average) for function in (precision, recall, f1)]
        assert ours == pytest.approx(list(expected[:3]))
    assert matthews(guess, truth) == pytest.approx(matthews_corrcoef(truth, guess))
    rows = classification_metrics(guess, truth, ["a", "b", "c", "d"])["per_class"]
    expected = precision_recall_fscore_support(truth, guess, labels=range(4), zero_division=0)
    for name, values in zip(("precision", "recall", "f1", "support"), expected, strict=True):
        assert [row[name] for row in rows] == pytest.approx(values.tolist())
    matrix = confusion_matrix(truth, guess, labels=range(4))
    assert confusion(guess, truth, 4).tolist() == matrix.tolist()


@given(classes)
def test_the_order_of_the_entries_does_not_matter(pairs):
    guess, truth = np.array(pairs).T
    names = ["a", "b", "c", "d"]
    assert classification_metrics(guess, truth, names) == classification_metrics(
        guess[::-1], truth[::-1], names
    )


def test_very_many_labels_have_no_confusion_matrix() -> None:
    """A thousand labels: the same numbers, without a matrix of a million cells."""
    draws = np.random.default_rng(1)
    true = draws.integers(1000, size=3000)
    predicted = np.where(draws.random(3000) < 0.4, true, draws.integers(1000, size=3000))
    results = classification_metrics(predicted, true, [str(n) for n in range(1000)])
    assert "confusion" not in results
    assert len(results["per_class"]) == 1000
    assert results["matthews"] == pytest.approx(matthews_corrcoef(true, predicted), rel=1e-12)
    few = classification_metrics(predicted % 9, true % 9, [str(n) for n in range(9)])
    assert len(few["confusion"]["matrix"]) == 9


# Figures of confusion matrices equal those of the rows, and so do their standard errors.


DRAWS = np.random.default_rng(5)


@pytest.mark.parametrize("classes", [2, 4])
def test_results_are_those_of_the_rows(classes: int) -> None:
    rows = [DRAWS.integers(classes, size=(2, 50)) for _ in range(6)]
    matrices = np.stack([confusion(predicted, true, classes) for predicted, true in rows])
    for function, whole in (
        (accuracy_of_counts, accuracy),
        (matthews_of_counts, matthews),
        (
            lambda counts: f1_of_counts(counts, 1),
            lambda predicted, true: f1(predicted, true, "binary", 1),
        ),
    ):
        assert function(matrices) == pytest.approx(
            [whole(predicted, true) for predicted, true in rows]
        )


def test_what_is_undefined_is_0() -> None:
    constant = np.array([[[7, 0], [3, 0]], [[0, 0], [0, 9]]])
    assert matthews_of_counts(constant).tolist() == [0, 0]
    assert f1_of_counts(constant, 1).tolist() == [0, 1]
    assert f1_of_counts(np.array([[[7, 0], [0, 0]]]), 1).tolist() == [0]


def test_the_error_is_that_of_drawing_rows() -> None:
    true = np.arange(400) % 2
    predicted = np.where(np.arange(400) % 5 == 0, 1 - true, true)  # 80 % right
    counts = confusion(predicted, true, 2)
    results = statistics.uncertainty_of_counts(
        {"accuracy": accuracy_of_counts, "matthews": matthews_of_counts}, counts
    )
    assert results["accuracy"]["se"] == pytest.approx(math.sqrt(0.8 * 0.2 / 400), rel=0.1)
    assert results["accuracy"]["low"] < 0.8 < results["accuracy"]["high"]
    by_rows = statistics.uncertainty(matthews, predicted, true)
    assert results["matthews"]["se"] == pytest.approx(by_rows["se"], rel=0.1)
    again = statistics.uncertainty_of_counts({"accuracy": accuracy_of_counts}, counts)
    assert again["accuracy"] == results["accuracy"]


def test_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="nothing to score"):
        statistics.uncertainty_of_counts({}, np.zeros((2, 2), np.int64))


ROWS = st.integers(1, 12).flatmap(
    lambda n: st.tuples(
        *(
            st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=n, max_size=n)
            for _ in range(2)
        )
    )
)


@given(ROWS)
def test_the_results_are_scikit_learns(both: tuple[list, list]) -> None:
    from sklearn.metrics import accuracy_score, f1_score

    predicted, true = np.array(both[0]), np.array(both[1])
    for average, function in (("micro", multi_label_f1_micro), ("macro", multi_label_f1_macro)):
        expected = f1_score(true, predicted, average=average, zero_division=0)
        assert function(predicted, true) == pytest.approx(expected)
    assert subset_accuracy(predicted, true) == pytest.approx(accuracy_score(true, predicted))


def test_by_hand() -> None:
    predicted = [[1, 1, 0], [0, 1, 0], [0, 0, 0]]
    true = [[1, 0, 0], [0, 1, 0], [0, 0, 0]]
    results = multi_label_metrics(predicted, true, ("a", "b", "c"))
    assert results["f1_micro"] == pytest.approx(2 * 2 / (3 + 2))
    assert results["f1_macro"] == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert results["subset_accuracy"] == pytest.approx(2 / 3)
    assert results["per_class"][1] == {
        "label": "b", "precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3), "support": 1,
    }  # fmt: skip
    with pytest.raises(DataError, match="nothing to score"):
        multi_label_f1_micro(np.zeros((0, 2)), np.zeros((0, 2)))
    with pytest.raises(DataError, match="do not match"):
        multi_label_f1_micro([[1, 0]], [[1]])


def test_binary_f1_is_that_of_the_positive_class() -> None:
    predicted, true = [1, 1, 0, 1, 0], [1, 0, 0, 1, 1]
    assert f1(predicted, true, "binary") == pytest.approx(2 / 3)
    assert f1(predicted, true, "binary", positive=0) == pytest.approx(0.5)
    names = f1(["y", "y", "n"], ["y", "n", "n"], "binary", positive="y")
    assert names == pytest.approx(2 / 3)
    results = classification_metrics(predicted, true, ("no", "yes"))
    assert results["f1"] == pytest.approx(2 / 3)
    results = classification_metrics(predicted, true, ("no", "yes"), positive=0)
    assert results["f1"] == pytest.approx(0.5)
    assert "f1" not in classification_metrics([0, 1, 2], [0, 1, 2], ("a", "b", "c"))


def test_regression_by_hand() -> None:
    results = regression_metrics([1.0, 2.0, 4.0], [1.0, 3.0, 2.0])
    assert results["mean_squared_error"] == pytest.approx(5 / 3)
    assert results["spearman"] == pytest.approx(0.5)
    assert results["pearson"] == pytest.approx(1 / np.sqrt(14 / 3 * 2))
    assert results["pearson_spearman"] == pytest.approx(
        (results["pearson"] + results["spearman"]) / 2
    )
    assert regression_metrics([3.0, 3.0], [1.0, 2.0])["pearson"] == 0.0
