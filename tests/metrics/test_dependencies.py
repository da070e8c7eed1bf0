"""Attachment scores, on values by hand; ``tests/tasks/test_parsing.py`` has files with ranges."""

import pytest

from plmctl.errors import DataError
from plmctl.metrics import dependencies

GOLD = [
    ["2 nsubj", "0 root", "2 obl:tmod", "2 punct"],
    ["2 det", "3 nsubj:pass", "0 root"],
]
GIVEN = [
    # right; right; right but for the subtype; a wrong head
    ["2 nsubj", "0 root", "2 obl", "3 punct"],
    # a wrong relation, which is of content; right; right
    ["2 amod", "3 nsubj", "0 root"],
]


def test_values_by_hand() -> None:
    scores = dependencies.attachment(GIVEN, GOLD)
    assert scores["words"] == 7
    assert scores["uas"] == 6 / 7
    assert scores["las"] == dependencies.las(GIVEN, GOLD) == 5 / 7
    # Five content words of the reference, six of the answer (amod), five of them right.
    assert scores["clas"] == pytest.approx(2 * 5 / (5 + 6))
    assert [dependencies.right_words(*pair) for pair in zip(GIVEN, GOLD, strict=True)] == [
        (3, 3),
        (3, 2),
    ]


def test_no_words_and_other_words_are_errors() -> None:
    with pytest.raises(DataError, match="no words"):
        dependencies.attachment([[]], [[]])
    with pytest.raises(DataError, match="not as many"):
        dependencies.attachment([["0 root"]], GOLD)
