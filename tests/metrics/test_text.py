import math
import sys
import unicodedata

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st
from rouge_score import rouge_scorer

from plmctl.errors import ConfigError, DataError
from plmctl.metrics import modules, squad, text


def test_bleu_by_hand():
    # 6 words of a reference of 7: 1- to 4-grams right 5/6, 3/5, 1/4, 0/3, which sacrebleu smooths
    # to 1/(2*3); the text is shorter than its reference, so that exp(1 - 7/6) is the penalty.
    guess, truth = "the cat sat on a mat", "the cat sat upon the mat on"
    matches = [5 / 6, 2 / 5, 1 / 4, 1 / (2 * 3)]  # the+cat+sat+on+mat; the cat, cat sat; the..sat
    expected = math.exp(1 - 7 / 6) * math.prod(matches) ** (1 / 4)
    assert text.bleu([guess], [[truth]]) == pytest.approx(100 * expected)
    assert text.bleu([truth], [[truth]]) == pytest.approx(100)


def test_bleu_of_chinese_is_of_characters():
    guess, truth = ["对嵌入式表单的支持。"], [["对嵌入式表单的支持。"]]
    assert text.bleu(guess, truth, "zh") == pytest.approx(100)
    other = [["对嵌入式表单和独立表单的支持。"]]
    # 13a takes the whole for one word, and finds nothing of it in the other.
    assert text.bleu(guess, other, "13a") < 1 < text.bleu(guess, other, "zh")


def test_rows_may_have_more_references_than_others():
    guesses, references = ["a b c d", "e f g h"], [["x y z w", "a b c d"], ["e f g h"]]
    assert text.bleu(guesses, references) == pytest.approx(100)
    assert text.chrf(guesses, references) == pytest.approx(100)
    assert text.rouge(guesses, references)["rouge2"] == pytest.approx(100)
    assert text.sequence_accuracy(guesses, references) == 1


def test_rouge_by_hand():
    # Words: 3 of 4 against 3 of 6; pairs: 2 of 3 against 2 of 5; the longest row in common is 3.
    results = text.rouge(["the cat sat down"], [["on it the cat sat today"]])
    assert results["rouge1"] == pytest.approx(100 * 2 * 3 / (4 + 6))
    assert results["rouge2"] == pytest.approx(100 * 2 * 2 / (3 + 5))
    assert results["rougeL"] == pytest.approx(100 * 2 * 3 / (4 + 6))


def test_rouge_lsum_takes_lines_for_sentences():
    guess, truth = ["a b\nc d"], [["c d\na b"]]
    assert text.rouge(guess, truth)["rougeLsum"] == pytest.approx(100)
    assert text.rouge(guess, truth)["rougeL"] == pytest.approx(50)


def test_rouge_of_chinese_is_of_characters_and_numbers():
    guess, truth = ["今天 12 度"], [["今天 12 度雨"]]
    for tokens in ("13a", "intl", "zh"):
        rouge1 = text.rouge(guess, truth, tokens)["rouge1"]
        assert rouge1 == pytest.approx(100 * 2 * 4 / (4 + 5))


EQUAL = {
    "accents": "schön façade señor",
    "cyrillic": "мама мыла раму",
    "greek": "καλημέρα κόσμε",
    "arabic": "ذهب الولد إلى المدرسة",
    "hebrew": "שָׁלוֹם עולם",
    "devanagari": "पानी ठंडा है",
    "sinhala": "ශ්‍රී ලංකාව",
    "thai": "ฉันไปตลาด",
    "burmese": "မြန်မာစာ",
    "japanese": "東京タワーへ行く",
    "korean": "한국어 공부",
}


@pytest.mark.parametrize("one", EQUAL.values(), ids=EQUAL)
def test_a_text_of_any_script_is_equal_to_itself_and_to_no_other(one):
    for tokens in ("13a", "intl", "zh", "char"):
        scores = text.rouge([one], [[one]], tokens)
        assert scores["rouge1"] == scores["rougeL"] == pytest.approx(100)
        assert text.rouge([one], [["zzz"]], tokens)["rouge1"] == 0
    assert text.bleu([one], [[one]], "char") == pytest.approx(100)
    assert text.chrf([one], [[one]]) == pytest.approx(100)
    for score in (text.sequence_accuracy, text.exact_match, text.f1):
        assert score([one], [[unicodedata.normalize("NFD", one)]]) == 1


def test_letters_and_vowel_signs_are_not_dropped_by_rouge():
    for one, other in [("schön", "schän"), ("पानी", "पिनू"), ("קָמַץ", "קֻמְץ"), ("ශ්‍රී", "ශ්‍රා")]:
        for tokens in ("13a", "intl"):
            assert text.rouge([one], [[other]], tokens)["rouge1"] == 0
    # Letters of a script without spaces: 6 of 8 are the same.
    half = text.rouge(["ฉันไปตลาด"], [["เขาไปตลาด"]])["rouge1"]
    assert 50 < half < 100
    assert squad.answer_metrics(["ตลาด"], [["ไปตลาด"]], "cmrc")["f1"] > 50


@given(st.text("abzXYZ019 '-.,\n“”—’", max_size=60), st.text("abzXYZ019 '-.,\n“”—’", max_size=60))
def test_rouge_of_latin_text_is_that_of_rouge_score(guess, truth):
    names = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    expected = rouge_scorer.RougeScorer(names).score(truth, guess)
    got = text.rouge([guess], [[truth]])
    assert got == {name: pytest.approx(100 * expected[name].fmeasure, abs=1e-9) for name in names}


@pytest.mark.parametrize("tokens", ["13a", "intl", "zh", "char"])
def test_bleu_is_that_of_sacrebleu(tokens):
    guess, truth = ["Der Hund ist schön.", "a b c d e"], [["Der Hund war schön."], ["a b c e d"]]
    expected = sacrebleu.corpus_bleu(guess, [[one[0] for one in truth]], tokenize=tokens).score
    assert text.bleu(guess, truth, tokens) == pytest.approx(expected, abs=1e-9)


def test_rules_of_answers():
    assert text.exact_match(["The  U.S."], [["us"]]) == 1
    assert text.exact_match(["The U.S."], [["u s"]]) == 0
    assert text.exact_match(["The U.S."], [["u s"]], "trivia_qa") == 1
    assert text.exact_match(["Rhône’s"], [["rhône s"]], "trivia_qa") == 1
    assert text.exact_match(["x", "b"], [["x"], ["a", "c"]]) == 0.5
    # 2 words of 3 and 2 of 2
    assert text.f1(["old New York"], [["Paris", "the New York"]]) == pytest.approx(4 / 5)
    assert text.sequence_accuracy(["a b ", "A"], [["a b"], ["a"]]) == 0.5


@given(st.lists(st.text("ab .,", min_size=1), min_size=1, max_size=5))
def test_a_text_is_equal_to_itself(texts):
    references = [[one, "other"] for one in texts]
    assert text.sequence_accuracy(texts, references) == 1
    assert text.exact_match(texts, references) == 1


@pytest.mark.parametrize(
    "score", [text.bleu, text.chrf, text.rouge, text.exact_match, text.sequence_accuracy, text.f1]
)
def test_what_cannot_be_scored_is_refused(score):
    with pytest.raises(DataError, match="nothing to score"):
        score([], [])
    with pytest.raises(DataError, match="1 predictions do not match 2"):
        score(["a"], [["a"], ["b"]])
    with pytest.raises(DataError, match="row 0: the references are no list"):
        score(["a"], ["a"])


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(ConfigError, match=r"plmctl\[text\]"):
        text.bleu(["a"], [["a"]])
    with pytest.raises(ConfigError, match="the package sacrebleu is not installed"):
        text.require(["exact_match", "chrf"])
    text.require(["rouge", "exact_match"])


def test_modules_of_texts():
    guess, truth = ["a b c d", "e"], [["a b c d"], ["f", "e"]]
    for name, function in {"bleu": text.bleu, "chrf": text.chrf}.items():
        results = modules.load(name).compute(predictions=guess, references=truth)
        assert results == {name: pytest.approx(function(guess, truth))}
    results = modules.load("rouge").compute(predictions=guess, references=truth, tokens="intl")
    assert results == {name: pytest.approx(100 if name != "rouge2" else 50) for name in results}
    assert set(results) == {"rouge1", "rouge2", "rougeL", "rougeLsum"}


@pytest.mark.parametrize(
    ("answer", "squad", "trivia_qa"),
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
def test_normalisation(answer, squad, trivia_qa):
    assert text.normalized(answer, "squad") == squad
    assert text.normalized(answer, "trivia_qa") == trivia_qa


def test_a_match_with_any_reference_counts():
    assert text.is_match("the United States.", ["USA", "United States"])
    assert not text.is_match("United", ["USA", "United States"])
    assert text.is_match("jay z", ["Jay-Z"], "trivia_qa")
    assert not text.is_match("jay z", ["Jay-Z"], "squad")
    assert text.is_match("the", ["a"])  # both are nothing
