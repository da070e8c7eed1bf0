"""SentencePiece's words are looked up as others are: the ids and word starts of whole texts."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plmctl.tokenization.encode import Encoder, encode_texts, encode_units
from plmctl.tokenization.units import kind_of, plain
from tests.tokenization.conftest import TEXTS
from tests.tokenization.test_encode import ODD, TEXT, raw

Saved = Callable[[str, str], str]
EXTRA = ["``a'' b", "a\u00a8b \u00b4", "a \u0301b", "\u00a0\u0301x", "\x0ba b\x0b", "ｶﾞ ﾞ", "x ำ"]


@pytest.mark.parametrize("family", ["t5", "albert"])
def test_ids_and_starts_are_those_of_whole_texts(saved: Saved, family: str) -> None:
    folder = saved("unigram", family)
    encoder, oracle = Encoder(folder), raw(folder)
    assert kind_of(oracle) == "spaces"

    @settings(max_examples=200, deadline=None)
    @given(st.lists(TEXT, min_size=1, max_size=4))
    @example([*ODD, *EXTRA])
    @example(TEXTS)
    def check(texts: list[str]) -> None:
        got, expected = encoder(texts), encode_texts(oracle, texts, marks=True, segmented=False)
        assert np.concatenate([ids for ids, _ in got]).tolist() == expected.ids.tolist()
        assert np.concatenate([s for _, s in got]).tolist() == expected.starts.tolist()
        assert [len(ids) for ids, _ in got] == expected.sizes.tolist()

    check()


@pytest.mark.parametrize("text", ["a \u0301b", "\u200b", "\x0b", "\U0001f600", "x ำ", "\u2028"])
def test_what_attaches_to_a_space_is_given_whole(text: str) -> None:
    assert not plain(text)
    assert plain("naïve “quoted” 中国，Ⅷ½ — x²")


def test_units_come_back_in_their_order(saved: Saved) -> None:
    oracle = raw(saved("wordpiece", "bert"))
    units = ["中", "cat", ",", "the", "\u200b", "sat2"]
    encoded = encode_units(oracle, units, "bert")
    ends = np.cumsum(encoded.sizes)[:-1]
    assert [part.tolist() for part in np.split(encoded.ids, ends)] == [
        oracle.encode(unit, add_special_tokens=False).ids for unit in units
    ]


def test_text_that_does_not_repeat_is_given_whole(
    saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plmctl.tokenization.encode._SAMPLE", 5)
    encoder, oracle = Encoder(saved("byte_bpe", "gpt2")), raw(saved("byte_bpe", "gpt2"))
    texts = ["one two three four five six", "seven 中国人民 eight"]
    assert [ids.tolist() for ids, _ in encoder(texts)] == [
        e.ids for e in oracle.encode_batch(texts, add_special_tokens=False)
    ]
    assert not encoder._table.numbers
    repeated = ["the the the the the the"]
    encoder(repeated)
    assert encoder._table.numbers


@pytest.mark.parametrize("corpus", ["wikitext2", "zh_news"])
@pytest.mark.parametrize(
    ("algorithm", "family"), [("wordpiece", "bert"), ("byte_bpe", "gpt2"), ("unigram", "t5")]
)
def test_real_text(
    saved: Saved, shared_data: Path, algorithm: str, family: str, corpus: str
) -> None:
    folder = saved(algorithm, family)
    lines = (
        (shared_data / "corpora" / corpus / "valid.txt")
        .read_text(encoding="utf-8")
        .split("\n")[:400]
    )
    expected = raw(folder).encode_batch(lines, add_special_tokens=False)
    assert [ids.tolist() for ids, _ in Encoder(folder)(lines)] == [e.ids for e in expected]
