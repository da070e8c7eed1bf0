import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plmctl.errors import DataError
from plmctl.metrics.classification import (
    classification_metrics,
    f1,
    multi_label_f1_macro,
    multi_label_f1_micro,
    multi_label_metrics,
    regression_metrics,
    subset_accuracy,
)

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
