"""Encoding for the store: the ids of the tokenizers library, and where words start."""

import json
import pickle
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.processors import ByteLevel

from plmctl.errors import ConfigError
from plmctl.tokenization.encode import Encoder, encode_texts, encode_units
from plmctl.tokenization.load import Vocab
from plmctl.tokenization.train import count_units, count_words
from plmctl.tokenization.units import Kind, cut, kind_of, plain
from tests.tokenization.conftest import TEXTS, config_of, train

Saved = Callable[[str, str], str]
KINDS = [("wordpiece", "bert"), ("byte_bpe", "gpt2")]
ODD = [
    "", " ", "\n", "a", "  two  spaces ", "tab\tand\r\nlines\n\n  end ", "don't I'LL 'tis 'should",
    "zero\u200bwidth\u200djoin\x00null\x1cfs\x85nel\x0bvt",
    "e\u0301 = e\u0338 =\u0338 \u0301 .\u0301",
    "½ ² Ⅷ x² ١٢٣ 五", "👩‍👩‍👧 👍🏽 😀text", "שָׁלוֹם عَرَبِيّ", "_a_b__c", "中国abc北京 ，。《中》ｶﾞ",
    "[MASK] [CLS] <|endoftext|> <s>", "\ufeffbom", "\U00020000\u3400\uf900", "ﬁ ǆ ẞ İ ΑΣ",
    "a\u0378b !\u0378a 1\U0001fae8! \U0001fae8a ..\U00011f02x 0\u2e52", "a-\ue000b",
]  # fmt: skip


# Any text there is, with more of the characters that rules turn on than chance would give.
TEXT = st.text(
    st.one_of(
        st.characters(codec="utf-8"), st.sampled_from(" \t\n'’sS_.,-0中国，e\u0301\u200b\xa0\x1c")
    )
)


def raw(folder: str) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    return tokenizer


@pytest.mark.parametrize(("algorithm", "family"), KINDS)
def test_ids_and_words_are_those_of_the_library(saved: Saved, algorithm: str, family: str) -> None:
    folder = saved(algorithm, family)
    encoder, oracle = Encoder(folder), raw(folder)

    @settings(max_examples=300, deadline=None)
    @given(st.lists(TEXT, max_size=4))
    @example(ODD)
    @example(TEXTS)
    @example([])
    def check(texts: list[str]) -> None:
        expected = oracle.encode_batch(texts, add_special_tokens=False)
        got = encoder(texts)
        assert [ids.tolist() for ids, _ in got] == [e.ids for e in expected]
        for (_, starts), e in zip(got, expected, strict=True):
            words = np.diff(e.word_ids, prepend=-1) != 0
            assert (starts >= words).all()  # the pre-tokenizer's words all start
            if family == "bert":  # and BERT's has each Chinese character by itself already
                assert (starts == words).all()

    check()


def test_marks_that_stay_with_letters_cut_the_same_everywhere(tmp_path: Path) -> None:
    """Ids, words counted and the fast cuts are those of the pre-tokenizer alone."""
    texts = [*TEXTS, *["हिन्दी भाषा में, किताबें १२3 हैं। ภาษาไทยน้ำ कि॑ ශ්‍රී لا‌نه ❤️ 1️⃣, ́x"] * 3]
    folder = tmp_path / "marks"
    train(config_of("byte_bpe", "gpt2", pattern="marks"), texts).tokenizer.save_pretrained(folder)
    encoder, oracle = Encoder(str(folder)), raw(str(folder))
    assert kind_of(oracle) == "bytes"
    cut_at = [place for _, place in oracle.pre_tokenizer.pre_tokenize_str("किताबें ❤️")]
    assert cut_at == [(0, 7), (7, 10)]  # GPT-2's pattern: six pieces
    hindi = st.text("क ि्षอิน้ำ‍‌ 1,'s।❤️́⃣a͸", max_size=30)

    @settings(max_examples=300, deadline=None)
    @given(st.lists(hindi | TEXT, max_size=4))
    @example(ODD)
    @example(texts)
    def check(texts: list[str]) -> None:
        expected = oracle.encode_batch(texts, add_special_tokens=False)
        assert [ids.tolist() for ids, _ in encoder(texts)] == [e.ids for e in expected]
        words = Counter(
            word for text in texts for word, _ in oracle.pre_tokenizer.pre_tokenize_str(text)
        )
        counts = count_units(texts, "bytes", budget=10**6, seed=1, marks_stay=True)
        assert +Counter(count_words(oracle, counts)) == words

    check()


CUTS: dict[Kind, dict[str, list[str]]] = {
    "bytes": {
        "The cat's 2nd, (well).": ["The", " cat's", " 2", "nd", ",", " (", "well", ")."],
        " two  spaces \n\nend ": [" two", " ", " spaces", " \n", "\n", "end", " "],
        "café\u3000bar\xa0x": ["café", "\u3000", "bar", "\xa0", "x"],
        "中国，3年": ["中国", "，", "3", "年"],
        "a\u0378b, c": ["a\u0378b", ",", " c"],  # no character of any Unicode so far
    },
    "marks": {
        "The cat's 2nd.": ["The", " cat", "'", "s", " 2nd", "."],
        "中国\t3年": ["中", "国", "\t", "3", "年"],
        "0\x0c0": ["0\x0c0"],  # BERT drops this, as if nothing were there
    },
    "spaces": {"The cat's, 中国 end": ["The", " cat's,", " 中国", " end"]},
}


@pytest.mark.parametrize("kind", CUTS)
def test_where_texts_are_cut(kind: Kind) -> None:
    texts = [*CUTS[kind], "", *CUTS[kind]]
    parts = cut(texts, kind)
    assert sorted(parts.texts) == sorted({part for own in CUTS[kind].values() for part in own})
    all_parts = iter([parts.texts[number] for number in parts.which])
    assert parts.lengths.tolist() == [len(parts.texts[number]) for number in parts.which]
    for text, count in zip(texts, parts.counts, strict=True):
        assert list(islice(all_parts, count)) == CUTS[kind].get(text, [])
    assert cut([], kind).counts.tolist() == []


def test_text_of_special_tokens_is_only_text(saved: Saved) -> None:
    bert, gpt2 = saved("wordpiece", "bert"), saved("byte_bpe", "gpt2")
    [(ids, _)] = Encoder(bert)(["[MASK] [SEP]"])
    vocab = Vocab.from_folder(bert)
    assert not set(ids.tolist()) & {vocab.mask, vocab.sep, vocab.cls, vocab.pad}
    [(ids, _)] = Encoder(gpt2)(["a<|endoftext|>b"])
    assert Vocab.from_folder(gpt2).eos not in ids
    assert raw(gpt2).decode(ids.tolist(), skip_special_tokens=False) == "a<|endoftext|>b"


def words_of(folder: str, text: str) -> list[str]:
    """The text of each word that the encoder finds."""
    [(ids, starts)] = Encoder(folder)([text])
    ends = [*np.flatnonzero(starts)[1:], len(ids)]
    pieces = zip(np.flatnonzero(starts), ends, strict=True)
    return [raw(folder).decode(ids[a:b].tolist()) for a, b in pieces]


def test_each_chinese_character_starts_a_word(saved: Saved) -> None:
    text = "to 京北abc 民x人1"  # in no pair that the training text has
    assert words_of(saved("wordpiece", "bert"), text) == [
        "to",
        *"京北",
        "abc",
        "民",
        "x",
        "人",
        "1",
    ]
    expected = ["to", " 京", "北", "abc", " 民", "x", "人", "1"]
    assert words_of(saved("byte_bpe", "gpt2"), text) == expected


def test_words_of_other_scripts_are_whole(saved: Saved) -> None:
    assert words_of(saved("byte_bpe", "gpt2"), "flatness don't كتاب") == [
        "flatness", " don", "'t", " كتاب",
    ]  # fmt: skip
    assert words_of(saved("wordpiece", "bert"), "Flatness don't") == ["flatness", "don", "'", "t"]


def test_it_can_be_sent_to_another_process(saved: Saved) -> None:
    encoder = Encoder(saved("wordpiece", "bert"))
    before = encoder(["the cat"])
    again = pickle.loads(pickle.dumps(encoder))
    assert again.fingerprint == encoder.fingerprint
    assert again.vocab_size == encoder.vocab_size
    assert [ids.tolist() for ids, _ in again(["the cat"])] == [before[0][0].tolist()]


def test_added_tokens_are_found_as_the_tokenizer_finds_them(saved: Saved, tmp_path: Path) -> None:
    # A token that was added and is not special is matched across words, so units do not do.
    tokenizer = raw(saved("byte_bpe", "gpt2"))
    tokenizer.encode_special_tokens = False
    tokenizer.add_tokens(["the mat"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    [(ids, starts)] = Encoder(str(tmp_path))(["on the mat."])
    assert tokenizer.token_to_id("the mat") in ids
    assert len(ids) == len(starts)


def test_a_full_table_forgets_what_is_rare(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plmctl.tokenization.encode._TABLE", 8)
    encoder, folder = Encoder(saved("byte_bpe", "gpt2")), saved("byte_bpe", "gpt2")
    frequent = ["the mat", "the cat", "the end"]
    texts = [*frequent, *(f"the {word}" for word in TEXTS[0].split())]
    expected = [e.ids for e in raw(folder).encode_batch(texts, add_special_tokens=False)]
    for _ in range(3):  # what is kept, what was forgotten, and both in one call
        assert [ids.tolist() for ids, _ in encoder(texts)] == expected
        assert [ids.tolist() for ids, _ in encoder(frequent)] == expected[:3]
        assert len(encoder._table.numbers) <= 8
        assert "the" in encoder._table.numbers


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        Encoder(str(tmp_path))
    with pytest.raises(ConfigError, match="no such"):
        Encoder("nowhere-to-be-found")


def test_vocab_of_bert_and_gpt2(saved: Saved) -> None:
    bert = Vocab.from_folder(saved("wordpiece", "bert"))
    assert (bert.pad, bert.unk, bert.cls, bert.sep, bert.mask) == (0, 1, 2, 3, 4)
    assert (bert.bos, bert.eos) == (None, None)
    folder = saved("byte_bpe", "gpt2")
    gpt2 = Vocab.from_folder(folder)
    assert gpt2.bos == gpt2.eos == gpt2.unk == gpt2.size - 1
    assert (gpt2.pad, gpt2.cls, gpt2.sep, gpt2.mask) == (None, None, None, None)
    stored = json.loads((Path(folder) / "tokenizer.json").read_text(encoding="utf-8"))
    assert gpt2.size == len(stored["model"]["vocab"])


@pytest.mark.parametrize(("algorithm", "family"), [*KINDS, ("byte_bpe", "roberta")])
def test_places_are_the_first_tokens_there(
    saved: Saved, monkeypatch: pytest.MonkeyPatch, algorithm: str, family: str
) -> None:
    """Whatever the way of encoding, and inside words too; the ids are those of the whole text."""
    folder = saved(algorithm, family)
    encoder, oracle = Encoder(folder), raw(folder)
    if family != "bert":
        oracle.post_processor = ByteLevel(trim_offsets=False)
    texts = st.lists(st.tuples(TEXT, st.lists(st.integers(0, 40))), min_size=1, max_size=3)

    @settings(max_examples=200, deadline=None)
    @given(texts, st.booleans())
    @example([(text, list(range(0, len(text), 3))) for text in [*ODD, *TEXTS[:5]]], False)
    def check(cases: list[tuple[str, list[int]]], all_new: bool) -> None:
        with monkeypatch.context() as patch:
            if all_new:  # the way of text that does not repeat
                patch.setattr("plmctl.tokenization.encode._SAMPLE", 1)
                patch.setattr("plmctl.tokenization.encode._NEW", 0)
            places = [sorted({p for p in wanted if p <= len(t)}) for t, wanted in cases]
            got = encoder.with_places([text for text, _ in cases], places)
        for (text, _), wanted, (ids, starts, at) in zip(cases, places, got, strict=True):
            expected = oracle.encode(text, add_special_tokens=False)
            assert ids.tolist() == expected.ids
            assert len(starts) == len(ids)
            if family == "bert":  # normalization may move characters, so only the order is sure
                assert list(at) == sorted(at)
                continue
            begins = [begin for begin, _ in expected.offsets]
            assert list(at) == [sum(begin < place for begin in begins) for place in wanted]

    check()


def test_a_long_text_is_encoded_in_stretches(saved: Saved) -> None:
    folder = saved("byte_bpe", "gpt2")
    encoder, oracle = Encoder(folder), raw(folder)

    @settings(max_examples=300, deadline=None)
    @given(TEXT.map(lambda text: text * 3), st.integers(1, 9))
    @example(" ".join(ODD), 1)
    @example("\n\n".join(TEXTS), 7)
    def check(text: str, size: int) -> None:
        parts = encoder.stretches(text, size)
        assert "".join(parts) == text
        encoded = oracle.encode_batch(parts, add_special_tokens=False)
        expected = oracle.encode(text, add_special_tokens=False).ids
        assert [id_ for part in encoded for id_ in part.ids] == expected

    check()
    assert len(encoder.stretches("\n\n".join(TEXTS), 100)) > 10
    assert Encoder(saved("wordpiece", "bert")).stretches("a b c", 1) == ["a b c"]


def test_which_tokenizers_keep_white_space(saved: Saved) -> None:
    keeps = {
        family: Encoder(saved(algorithm, family)).keeps_white_space
        for algorithm, family in [*KINDS, ("byte_bpe", "roberta"), ("unigram", "t5")]
    }
    assert keeps == {"bert": False, "gpt2": True, "roberta": True, "t5": False}


# SentencePiece's words are looked up as others are: the ids and word starts of whole texts.


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
    encoded = encode_units(oracle, units, "marks")
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
