"""Counting: hand-computed cases, the same result twice, bounds, wrong input, and real rows."""

import sys

import numpy as np
import pytest

from plmctl.corpus.labelled import read_rows
from plmctl.counting import rows, spans, tags, texts, written
from plmctl.errors import ConfigError, DataError

GOOD = ["a good film", "good work", "so good a day", "good and kind", "very good", "good again"]
BAD = ["a bad film", "bad work", "so bad a day", "bad and cold", "very bad", "bad again"]
ONE = [(text,) for text in [*GOOD, *BAD]]
TARGETS = np.repeat([1, 0], 6)


def test_rows_are_drawn_the_same_way_and_in_order():
    some = rows.drawn(range(1000), 100)
    assert some == sorted(some) == rows.drawn(range(1000), 100)
    assert len(set(some)) == 100
    assert rows.drawn("abc", 3) == list("abc")
    assert rows.held_out(1003).sum() == 200
    assert rows.held_out(4).sum() == 0


def test_a_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    with pytest.raises(ConfigError, match=r"scikit-learn .*: pip install 'plmctl\[counting\]'"):
        texts.learn_label(ONE, TARGETS, 2)


def test_a_broken_package_says_what_is_wrong(tmp_path, monkeypatch):
    (tmp_path / "broken_one.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="^no_such is not installed: pip install"):
        rows.package("no_such.module")
    with pytest.raises(ConfigError, match="^broken_one cannot be imported .*no_such_library"):
        rows.package("broken_one")


def test_one_label():
    predict = texts.learn_label(ONE, TARGETS, 2)
    chances = predict([("good times",), ("bad times",)])
    assert chances.argmax(1).tolist() == [1, 0]
    assert chances.sum(1) == pytest.approx(1)
    assert (texts.learn_label(ONE, TARGETS, 2)([("good times",)]) == chances[0]).all()


def test_a_label_id_that_no_row_has_gets_nothing():
    assert texts.learn_label(ONE, TARGETS * 2, 3)([("good",)]).shape == (1, 3)
    assert texts.learn_label(ONE, TARGETS * 2, 3)([("good",)])[0, 1] == 0


def test_characters_where_there_are_no_spaces():
    rows = [("这部电影很好看",), ("好看的书",), ("很难看的电影",), ("难看的书",)] * 3
    predict = texts.learn_label(rows, np.tile([1, 1, 0, 0], 3), 2)
    assert predict([("真好看",), ("真难看",)]).argmax(1).tolist() == [1, 0]


def test_several_labels_and_one_that_all_rows_have():
    targets = np.stack([TARGETS, 1 - TARGETS, np.ones(12, int)], axis=1)
    chances = texts.learn_labels(ONE, targets)([("good times",)])
    assert (chances[0] >= 0.5).tolist() == [True, False, True]


def test_numbers():
    predicted = texts.learn_number(ONE, np.where(TARGETS, 5.0, 1.0))([("good times",), ("bad",)])
    assert predicted.shape == (2, 1)
    assert predicted[0, 0] > 3 > predicted[1, 0]


def test_overlap_by_hand():
    # words: the cat sat down | the cat ran: two of 4 and of 3 shared, 5 together; pairs: 1, 3, 2, 4
    assert texts.overlap("The cat sat down", "the cat ran") == pytest.approx(
        [np.log(5) / 4, np.log(4) / 4, 2 / 4, 2 / 3, 2 / 5, 1 / 3, 1 / 2, 1 / 4]
    )
    assert texts.overlap("", "") == [0.0] * 8


def test_pairs_are_told_apart_by_overlap():
    rng = np.random.default_rng(0)
    vocabulary = [f"word{n}x" for n in range(300)]
    pairs, targets = [], []
    for number in range(200):
        first = list(rng.choice(vocabulary, 8, replace=False))
        second = first[2:5] if number % 2 else list(rng.choice(vocabulary, 3, replace=False))
        pairs.append((" ".join(first), " ".join(second)))
        targets.append(number % 2)
    predict = texts.learn_label(pairs[:100], np.array(targets[:100]), 2)
    assert (predict(pairs[100:]).argmax(1) == targets[100:]).mean() > 0.95


def test_choices():
    options = [[("which one is it", good), ("which one is it", bad)] for good, bad in
               zip(GOOD, BAD, strict=True)]  # fmt: skip
    choose = texts.learn_choice(options, np.zeros(6, int))
    given = choose([[("which", "bad day"), ("which", "good day"), ("which", "bad time")]])
    assert given[0].argmax() == 1
    assert given[0].sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("rows", "targets", "message"),
    [
        (ONE, np.zeros(12, int), "the training rows have one label"),
        (ONE, np.arange(12) * 100, "1,101 labels, and at most 100 are counted"),
        ([("",), (" ",)], np.array([0, 1]), "the training rows have no words"),
    ],
)
def test_what_cannot_be_counted(rows, targets, message):
    with pytest.raises(DataError, match=message):
        texts.learn_label(rows, targets, int(targets.max()) + 1)


def test_equal_sets_of_labels_cannot_be_counted():
    with pytest.raises(DataError, match="all training rows have the same labels"):
        texts.learn_labels(ONE, np.ones((12, 2), int))


def test_long_texts_are_cut(monkeypatch):
    monkeypatch.setattr(texts, "_CHARACTERS", 0)
    features = texts.Features([("word " * 50 + "unseen",)])
    assert features.tfidf(["word"]).nnz > 0
    assert features.tfidf(["unseen"])[:, :1].nnz == 0
    assert not any("unseen" in one.vocabulary_ for one in features._vectorizers)


def test_many_labels_have_fewer_features():
    assert len(texts.Features(ONE, 20)._vectorizers) == 2
    assert len(texts.Features(ONE, 21)._vectorizers) == 1


def test_the_nearest_row():
    write = written.learn_nearest(["a red house", "the green tree"], ["ein Haus", "ein Baum"])
    assert write(["red houses", "one green tree"]) == ["ein Haus", "ein Baum"]


SENTENCES = [["Anna", "runs"], ["Ben", "runs"], ["runs", "Anna"], ["the", "painter"]]
TAGS = [["N", "V"], ["N", "V"], ["V", "N"], ["D", "N"]]


def test_most_frequent_tags_by_hand():
    tag = tags.learn_most_frequent(SENTENCES, TAGS)
    # known words; an ending of three that is known; anything else has the most frequent tag
    assert tag([["the", "Anna", "runs", "winter", "ten"]]) == [["D", "N", "V", "N", "N"]]
    assert tags.learn_most_frequent([["a", "b"]], [["Y", "X"]])([["c"]]) == [["X"]]


def test_a_crf():
    pytest.importorskip("pycrfsuite")
    tag, learned = tags.learn_crf(SENTENCES * 5, TAGS * 5)
    assert learned == 20
    assert tag([["the", "runner"], ["Ben", "runs"], []]) == [["D", "N"], ["N", "V"], []]


def test_a_crf_keeps_what_it_has_learned():
    pytest.importorskip("pycrfsuite")
    sentences = [[f"a{n}", "b", f"c{n % 7}"] for n in range(3000)]
    tag, _ = tags.learn_crf(sentences, [["X", "Y", "Z"]] * 3000)
    others = [bytes(100_000) for _ in range(100)]  # where its model would be, were it freed
    assert tag(sentences) == [["X", "Y", "Z"]] * 3000
    assert len(others) == 100


def test_a_crf_is_bounded(monkeypatch):
    pytest.importorskip("pycrfsuite")
    monkeypatch.setattr(tags, "_WORK", 46_280)
    _, learned = tags.learn_crf(SENTENCES * 5, TAGS * 5)
    assert learned == 10  # of 20: 40 words with 3 tags are 40 * (14 + 2,300) = 92,560


def test_spans_by_hand():
    context = "Ada was born in Paris. The tower was built by Gustave Eiffel in 1889, it is said."
    asked = ["Who built the tower?", "Where was Ada born?", "?"]
    found = spans.find_spans(asked, [context] * 3, 30)
    assert [one.text for one in found[:2]] == ["by Gustave Eiffel in 1889", "in Paris"]
    assert context[found[0].start :].startswith("by Gustave")
    # three words, and one pair of the two that its context has: 5 of 8 equal weights
    assert found[0].score == pytest.approx(5 / 8)
    assert found[2].score == 0
    assert spans.find_spans(["Who?"], ["..."], 30) == [spans.Span("", 0, 0.0)]
    assert spans.find_spans(["Who built the tower?"], [context], 2)[0].text == "by Gustave"


def test_real_rows(shared_data):
    folder = shared_data / "classification" / "sst2"
    train = read_rows([str(folder / "train.jsonl")])[:300]
    valid = read_rows([str(folder / "dev.jsonl")])
    read = [[(str(row.values["sentence"]),) for row in rows] for rows in (train, valid)]
    predict = texts.learn_label(read[0], np.array([int(row.values["label"]) for row in train]), 2)
    right = predict(read[1]).argmax(1) == [int(row.values["label"]) for row in valid]
    assert 0.6 < right.mean() < 0.75


def test_real_tags(shared_data):
    folder = shared_data / "tagging" / "brown_pos"
    train = read_rows([str(folder / "train.jsonl")])[:500]
    valid = read_rows([str(folder / "dev.jsonl")])[:200]
    tag = tags.learn_most_frequent(*([row.values[key] for row in train] for key in
                                     ("tokens", "tags")))  # fmt: skip
    given = tag([row.values["tokens"] for row in valid])
    right = [a == b for row, of in zip(valid, given, strict=True)
             for a, b in zip(row.values["tags"], of, strict=True)]  # fmt: skip
    assert 0.7 < np.mean(right) < 0.95
