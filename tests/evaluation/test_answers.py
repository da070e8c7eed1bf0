"""Answers as SQuAD and TriviaQA compare them."""

import pytest

from plmctl.evaluation.answers import exact_match, normalise_squad, normalise_triviaqa


@pytest.mark.parametrize(
    ("text", "squad", "triviaqa"),
    [
        ("The  Eiffel Tower!", "eiffel tower", "eiffel tower"),
        ("rock-'n'-roll", "rocknroll", "rock n roll"),
        ("King’s “Cross”", "king’s “cross”", "king s “cross”"),
        ("snake_case", "snakecase", "snake case"),
        ("a theatre, an anthem", "theatre anthem", "theatre anthem"),
        ("U.S.A.", "usa", "u s"),  # the article: what stood alone as "a" goes
        ("the", "", ""),
    ],
)
def test_normalisation(text: str, squad: str, triviaqa: str) -> None:
    assert normalise_squad(text) == squad
    assert normalise_triviaqa(text) == triviaqa


def test_exact_match_takes_any_alias() -> None:
    assert exact_match("the United States.", ["USA", "United States"], "squad")
    assert not exact_match("United", ["USA", "United States"], "squad")
    assert exact_match("jay z", ["Jay-Z"], "triviaqa")
    assert not exact_match("jay z", ["Jay-Z"], "squad")
    assert exact_match("the", ["a"], "squad")  # both are nothing
