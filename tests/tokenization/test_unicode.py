"""Unicode: byte-level BPE gives any text back; each family's rules and the options against them."""

import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from plmctl.tokenization.templates import make_tokenizer
from tests.tokenization.conftest import config_of

Saved = Callable[[str, str], str]
ALGORITHM = {
    "bert": "wordpiece", "gpt1": "bpe", "gpt2": "byte_bpe", "roberta": "byte_bpe", "t5": "unigram",
    "albert": "unigram",
}  # fmt: skip
# Control characters, emoji with joiners, right to left, combining marks, scripts above four digits.
KINDS = {
    "control": "a\x00b\x07\x1b\x7f\x9f\u200b\ufeff\ufffd",
    "spaces": " \t\r\n\x0b\x0c\x85\xa0\u2028\u3000 a  b ",
    "emoji": "\U0001f469\u200d\U0001f4bb \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd ☃\ufe0f",
    "right to left": "\u202eשָׁלוֹם\u202c مَرْحَبًا",
    "combining": "e\u0301\u0302\u0327 Z\u0351\u0343 각 가\u11a8 ﬁ Å",
    "far": "𝒳𠀀𐍈\U0010ffff",
    "special": "<|endoftext|> <s></s><mask> [MASK]",
}


@pytest.fixture(scope="module")
def byte_level(saved: Saved) -> Tokenizer:
    tokenizer = Tokenizer.from_file(f"{saved('byte_bpe', 'gpt2')}/tokenizer.json")
    tokenizer.encode_special_tokens = True
    return tokenizer


@settings(deadline=None, max_examples=300)
@given(st.text())
@example("".join(KINDS.values()))
@example("".join(map(chr, range(0x300))))
def test_byte_level_bpe_gives_any_text_back(byte_level: Tokenizer, text: str) -> None:
    ids = byte_level.encode(text).ids
    assert byte_level.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("family", ALGORITHM)
@pytest.mark.parametrize("kind", KINDS)
def test_every_family_takes_every_text(saved: Saved, family: str, kind: str) -> None:
    tokenizer = Tokenizer.from_file(f"{saved(ALGORITHM[family], family)}/tokenizer.json")
    text = KINDS[kind]
    encoding = tokenizer.encode(text)
    assert all(0 <= begin <= end <= len(text) for begin, end in encoding.offsets)
    decoded = tokenizer.decode(encoding.ids)
    assert decoded.isprintable() or family in ("gpt2", "roberta")


def normal(family: str, text: str, **rules: object) -> str:
    config = config_of(ALGORITHM[family], family, **rules)
    normalizer = make_tokenizer(config, {}).backend_tokenizer.normalizer
    return normalizer.normalize_str(text) if normalizer else text


TEXT = "Ünï ﬁx e\u0301 İ 北京\x07"


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("bert", "uni ﬁx e i  北  京 "),
        ("gpt1", "uni ﬁx e i  北  京 "),
        ("gpt2", TEXT),
        ("roberta", TEXT),
        ("t5", "Ünï fix é İ 北京"),
        ("albert", "uni fix e i 北京"),
    ],
)
def test_each_familys_published_rules(family: str, expected: str) -> None:
    assert normal(family, TEXT) == expected


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_forms(form: str) -> None:
    text = "Ü e\u0301 ﬁ Ａ 가"
    for family in ("gpt2", "t5"):
        normalized = normal(family, text, normalization=form.lower())
        assert normalized == unicodedata.normalize(form, text)
    normalized = normal("bert", text, normalization=form.lower(), lowercase=False)
    assert normalized == unicodedata.normalize(form, text)


def test_none_leaves_all_as_it_is() -> None:
    assert normal("t5", "ﬁ e\u0301\x07", normalization="none") == "ﬁ e\u0301\x07"


@pytest.mark.parametrize("family", ALGORITHM)
def test_case_accents_and_chinese(family: str) -> None:
    assert "A" in normal(family, "AÉ", lowercase=False, strip_accents=False)
    assert "a" in normal(family, "AÉ", lowercase=True)
    assert "E" in normal(family, "É", lowercase=False, strip_accents=True)
    normalized = normal(family, "é", strip_accents=False, lowercase=False)
    assert unicodedata.normalize("NFC", normalized) == "é"
    assert normal(family, "北京", space_chinese=True).split() == ["北", "京"]
    assert normal(family, "北京", space_chinese=False).split() == ["北京"]
