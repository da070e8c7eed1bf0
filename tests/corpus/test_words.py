"""Words as the BabyLM tasks count them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plmctl.corpus.words import SPACES, count_words, word_rule


def test_text_with_spaces() -> None:
    assert word_rule(["Anna sees Bela, again."], 10, needed=False).name == SPACES
    assert count_words(" Anna  sees\nBela, again. ", SPACES) == 4


def test_chinese_is_cut_by_jieba() -> None:
    jieba = pytest.importorskip("jieba")
    opening = "\u6211\u6765\u5230\u5317\u4eac\u6e05\u534e\u5927\u5b66\u3002 GPT"
    rule = word_rule([opening], 10, needed=True)
    assert rule.name.startswith("jieba ")
    text = "\u6211\u6765\u5230\u5317\u4eac\u6e05\u534e\u5927\u5b66\u3002\n"
    assert count_words(text, rule.name) == len(list(jieba.cut(text))) == 6


def test_what_is_not_counted() -> None:
    thai = "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e04\u0e23\u0e31\u0e1a"
    assert "no spaces" in word_rule([thai], 10, needed=True).reason
    pytest.importorskip("jieba")
    chinese = "\u6211\u6765\u5230\u5317\u4eac"
    for needed in (True, False):
        assert "2 GB" in word_rule([chinese], 3 * 10**9, needed=needed).reason
    assert "plmctl prepare" in word_rule([chinese], 10, needed=False).reason


@given(text=st.text(st.sampled_from("ab \n\t\u3000\x1c中")), size=st.integers(1, 5))
def test_words_of_a_long_text_are_counted_in_parts(text: str, size: int) -> None:
    assert count_words(text, SPACES, size) == len(text.split())
