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
def test_the_figures_are_scikit_learns(both: tuple[list, list]) -> None:
    from sklearn.metrics import accuracy_score, f1_score

    said, true = np.array(both[0]), np.array(both[1])
    for average, function in (("micro", multi_label_f1_micro), ("macro", multi_label_f1_macro)):
        expected = f1_score(true, said, average=average, zero_division=0)
        assert function(said, true) == pytest.approx(expected)
    assert subset_accuracy(said, true) == pytest.approx(accuracy_score(true, said))


def test_by_hand() -> None:
    said = [[1, 1, 0], [0, 1, 0], [0, 0, 0]]
    true = [[1, 0, 0], [0, 1, 0], [0, 0, 0]]
    figures = multi_label_metrics(said, true, ("a", "b", "c"))
    assert figures["f1_micro"] == pytest.approx(2 * 2 / (3 + 2))
    assert figures["f1_macro"] == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert figures["subset_accuracy"] == pytest.approx(2 / 3)
    assert figures["per_class"][1] == {
        "label": "b", "precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3), "support": 1,
    }  # fmt: skip
    with pytest.raises(DataError, match="nothing to score"):
        multi_label_f1_micro(np.zeros((0, 2)), np.zeros((0, 2)))
    with pytest.raises(DataError, match="do not match"):
        multi_label_f1_micro([[1, 0]], [[1]])


def test_binary_f1_is_that_of_the_positive_class() -> None:
    said, true = [1, 1, 0, 1, 0], [1, 0, 0, 1, 1]
    assert f1(said, true, "binary") == pytest.approx(2 / 3)
    assert f1(said, true, "binary", positive=0) == pytest.approx(0.5)
    names = f1(["y", "y", "n"], ["y", "n", "n"], "binary", positive="y")
    assert names == pytest.approx(2 / 3)
    figures = classification_metrics(said, true, ("no", "yes"))
    assert figures["f1"] == pytest.approx(2 / 3)
    figures = classification_metrics(said, true, ("no", "yes"), positive=0)
    assert figures["f1"] == pytest.approx(0.5)
    assert "f1" not in classification_metrics([0, 1, 2], [0, 1, 2], ("a", "b", "c"))


def test_regression_by_hand() -> None:
    figures = regression_metrics([1.0, 2.0, 4.0], [1.0, 3.0, 2.0])
    assert figures["mean_squared_error"] == pytest.approx(5 / 3)
    assert figures["spearman"] == pytest.approx(0.5)
    assert figures["pearson"] == pytest.approx(1 / np.sqrt(14 / 3 * 2))
    assert figures["pearson_spearman"] == pytest.approx(
        (figures["pearson"] + figures["spearman"]) / 2
    )
    assert regression_metrics([3.0, 3.0], [1.0, 2.0])["pearson"] == 0.0
