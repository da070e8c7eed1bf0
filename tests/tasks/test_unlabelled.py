"""Rows without a gold label: reported, left out on request, never learned as a class by default."""

import pytest

from plmctl.errors import DataError
from plmctl.tasks.base import get_task, make_task
from tests.tasks.conftest import rows_of

CLASSIFICATION = get_task("classification")
NLI = ("entailment", "neutral", "contradiction")


def kept(task: str, labels: list, **fields: object) -> list:
    config = get_task(task).Config(unlabelled="drop", **fields)
    rows = rows_of(*({"label": label} for label in labels))
    return [row.values["label"] for row in rows if make_task(config).is_labelled(row)]


def test_what_is_left_out() -> None:
    labels = ["x", "-", "-1", -1, "", "  ", None, 0, "-x"]
    assert kept("classification", labels) == ["x", 0, "-x"]
    assert kept("multiple_choice", ["A", 0, "-", -1, None]) == ["A", 0]
    assert kept("classification", [1.5, -1, "", None, "-"], problem="regression") == [1.5, -1]
    several = [["x"], [], "", None]
    assert kept("classification", several, problem="multi_label") == [["x"], [], ""]
    missing = rows_of({"text": "a"})[0]  # a missing column is reported when it is read
    assert make_task(CLASSIFICATION.Config(unlabelled="drop")).is_labelled(missing)
    unlabelled = rows_of({"label": None})[0]
    assert make_task(CLASSIFICATION.Config()).is_labelled(unlabelled)


@pytest.mark.parametrize("labels", [(*NLI, "-"), (*NLI, "-1"), (0, 1, 2, -1), (0, 1, -1)])
def test_marks_of_no_label_are_refused_unless_they_are_said_to_be_one(labels: tuple) -> None:
    rows = rows_of(*({"label": label} for label in labels))
    with pytest.raises(DataError, match=rf"rows.jsonl:{len(labels)}: .*means no label") as e:
        CLASSIFICATION(CLASSIFICATION.Config()).labels(rows)
    assert "task.unlabelled=drop" in str(e.value.hint)
    names = CLASSIFICATION(CLASSIFICATION.Config(unlabelled="keep")).labels(rows)
    assert set(names) == set(map(str, labels))


@pytest.mark.parametrize("labels", [(-1, 1), (-2, -1, 0, 1, 2)])
def test_negative_numbers_that_are_classes(labels: tuple) -> None:
    rows = rows_of(*({"label": label} for label in labels))
    assert CLASSIFICATION(CLASSIFICATION.Config()).labels(rows) == tuple(map(str, labels))
