"""Each family's tokenizer, as a user of transformers finds it."""

import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from plmctl.errors import ConfigError, PlmError
from plmctl.tokenization.check import check_saved
from tests.tokenization.conftest import TEXTS, config_of, template_of, train

Saved = Callable[[str, str], str]


def trained(folder: Path, algorithm: str, family: str, **settings: object) -> Any:
    """A tokenizer that was trained, saved and loaded."""
    tokenizer = train(config_of(algorithm, family, **settings), TEXTS).tokenizer
    tokenizer.save_pretrained(folder)
    check_saved(folder, tokenizer, TEXTS[:5])
    return AutoTokenizer.from_pretrained(folder)


def shown(tokenizer: Any, *texts: str) -> list[str]:
    return tokenizer.convert_ids_to_tokens(tokenizer(*texts)["input_ids"])


def test_bert(saved: Saved) -> None:
    tokenizer = AutoTokenizer.from_pretrained(saved("wordpiece", "bert"))
    assert type(tokenizer).__name__ == "BertTokenizer"
    assert tokenizer.convert_ids_to_tokens(range(5)) == [
        "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]",
    ]  # fmt: skip
    assert tokenizer.model_max_length == 512
    pair = tokenizer("The CAFÉ, mat.", "the [MASK]")
    assert tokenizer.convert_ids_to_tokens(pair["input_ids"]) == [
        "[CLS]", "the", "cafe", ",", "mat", ".", "[SEP]", "the", "[MASK]", "[SEP]",
    ]  # fmt: skip
    assert pair["token_type_ids"] == [0] * 7 + [1] * 3


def test_bert_cased(tmp_path: Path) -> None:
    tokenizer = trained(tmp_path, "wordpiece", "bert", lowercase=False)
    assert type(tokenizer).__name__ == "BertTokenizer"
    assert shown(tokenizer, "The the café résumé") == [
        "[CLS]", "The", "the", "café", "résumé", "[SEP]",
    ]  # fmt: skip
    assert tokenizer.do_lower_case is False


def test_bert_can_fold_case_and_keep_accents(tmp_path: Path) -> None:
    tokenizer = trained(tmp_path, "wordpiece", "bert", strip_accents=False)
    assert type(tokenizer).__name__ == "BertTokenizer"
    assert shown(tokenizer, "CAFÉ") == ["[CLS]", "café", "[SEP]"]


def test_gpt2(saved: Saved) -> None:
    tokenizer = AutoTokenizer.from_pretrained(saved("byte_bpe", "gpt2"))
    assert type(tokenizer).__name__ == "GPT2Tokenizer"
    assert tokenizer.convert_ids_to_tokens([0, 93, 94, 187, 188, 220]) == list("!~¡ÿĀĠ")
    assert tokenizer.convert_ids_to_tokens(len(tokenizer) - 1) == "<|endoftext|>"
    assert tokenizer.bos_token == tokenizer.eos_token == tokenizer.unk_token == "<|endoftext|>"
    assert tokenizer.pad_token is None
    assert tokenizer.model_max_length == 1024
    assert shown(tokenizer, "The cat<|endoftext|>") == ["The", "Ġcat", "<|endoftext|>"]


def test_roberta(saved: Saved) -> None:
    tokenizer = AutoTokenizer.from_pretrained(saved("byte_bpe", "roberta"))
    assert type(tokenizer).__name__ == "RobertaTokenizer"
    assert tokenizer.convert_ids_to_tokens(range(4)) == ["<s>", "<pad>", "</s>", "<unk>"]
    assert tokenizer.mask_token_id == len(tokenizer) - 1
    # The mask swallows the space before it; a pair has two separators in its middle.
    assert shown(tokenizer, "The <mask> cat", "The") == [
        "<s>", "The", "<mask>", "Ġcat", "</s>", "</s>", "The", "</s>",
    ]  # fmt: skip
    assert "token_type_ids" not in tokenizer("the")


def test_gpt1(saved: Saved) -> None:
    tokenizer = AutoTokenizer.from_pretrained(saved("bpe", "gpt1"))
    assert type(tokenizer).__name__ == "OpenAIGPTTokenizer"
    assert tokenizer.unk_token_id == 0
    assert shown(tokenizer, "The Cat, mats") == ["the</w>", "cat</w>", ",</w>", "mats</w>"]
    assert tokenizer.decode(tokenizer("The Cat, mats")["input_ids"]) == "the cat , mats"
    # Every character of the alphabet may end a word.
    assert tokenizer.unk_token_id not in tokenizer("p q r h c e u")["input_ids"][2:]


@pytest.mark.parametrize(
    ("algorithm", "family", "settings", "text", "tokens"),
    [
        ("wordpiece", "bert", {"normalization": "nfkc"}, "ｃａｔ", ["[CLS]", "cat", "[SEP]"]),
        ("byte_bpe", "gpt2", {"lowercase": True}, " The Cat", ["Ġthe", "Ġcat"]),
        ("byte_bpe", "gpt2", {"strip_accents": True, "vocab_size": 600}, " café", ["Ġcafe"]),
        ("bpe", "gpt1", {"lowercase": False}, "The the", ["The</w>", "the</w>"]),
        ("wordpiece", "bert", {"space_chinese": False}, "北京", ["[CLS]", "北京", "[SEP]"]),
    ],
)
def test_rules_of_ones_own(
    tmp_path: Path,
    algorithm: str,
    family: str,
    settings: dict[str, object],
    text: str,
    tokens: list[str],
) -> None:
    assert shown(trained(tmp_path, algorithm, family, **settings), text) == tokens


def test_rules_that_no_class_has_are_kept_by_the_general_one(tmp_path: Path) -> None:
    tokenizer = trained(tmp_path, "wordpiece", "bert", normalization="nfkc")
    assert type(tokenizer).__name__ == "TokenizersBackend"
    assert tokenizer("a", "b")["token_type_ids"] == [0, 0, 0, 1, 1]
    assert tokenizer.mask_token_id == 4
    assert tokenizer.model_max_length == 512


@pytest.mark.parametrize(
    ("family", "before"), [("gpt2", []), ("roberta", ["<s>"]), ("modernbert", ["[CLS]"])]
)
def test_marks_that_stay_with_letters_after_loading(
    tmp_path: Path, family: str, before: list[str]
) -> None:
    """transformers' own class of GPT-2 puts GPT-2's pattern back when it loads a folder."""
    config = config_of("byte_bpe", family, pattern="marks", vocab_size=600)
    tokenizer = train(config, ["हिन्दी में किताबें"] * 9).tokenizer
    tokenizer.save_pretrained(tmp_path)
    check_saved(tmp_path, tokenizer, TEXTS[:5])
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    ids = loaded("हिन्दी में किताबें")["input_ids"]
    tokens = [loaded.decode([id_]) for id_ in ids]
    assert tokens[: len(before) + 3] == [*before, "हिन्दी", " में", " किताबें"]


def test_length_of_words_as_in_the_original(tmp_path: Path) -> None:
    word = "cat" * 50
    ours = trained(tmp_path / "a", "wordpiece", "bert")
    assert shown(ours, word) == ["[CLS]", "[UNK]", "[SEP]"]
    original = trained(tmp_path / "b", "wordpiece", "bert", max_word_length=200)
    assert "[UNK]" not in shown(original, word)
    assert shown(original, word * 2) == ["[CLS]", "[UNK]", "[SEP]"]


def test_text_of_special_tokens_as_in_the_original(tmp_path: Path) -> None:
    ours = trained(tmp_path / "a", "wordpiece", "bert", limit_alphabet=500)
    assert ours.mask_token_id in ours("the [MASK]")["input_ids"]
    original = trained(tmp_path / "b", "wordpiece", "bert", split_special_tokens=True)
    assert original.mask_token_id not in original("the [MASK]")["input_ids"]


def test_more_special_tokens(tmp_path: Path) -> None:
    tokenizer = trained(tmp_path, "wordpiece", "bert", special_tokens=["[unused0]", "[DOC]"])
    assert tokenizer.convert_tokens_to_ids(["[unused0]", "[DOC]"]) == [5, 6]
    assert shown(tokenizer, "[DOC] the") == ["[CLS]", "[DOC]", "the", "[SEP]"]
    assert {5, 6} <= set(tokenizer.all_special_ids)


@pytest.mark.parametrize("tokens", [["[CLS]"], ["[A]", "[A]"]])
def test_special_tokens_that_repeat(tokens: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"is there twice"):
        train(config_of("wordpiece", "bert", special_tokens=tokens), TEXTS)


@pytest.mark.parametrize(
    ("algorithm", "family", "words"),
    [("byte_bpe", "gpt2", "256 single"), ("wordpiece", "bert", "5 special tokens")],
)
def test_a_vocabulary_that_is_too_small(algorithm: str, family: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        train(config_of(algorithm, family, vocab_size=101), TEXTS)
    assert "vocab_size" in caught.value.message


def test_a_self_test_that_fails(saved: Saved, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(saved("byte_bpe", "gpt2"))
    other = trained(tmp_path, "byte_bpe", "gpt2", vocab_size=300)
    with pytest.raises(PlmError, match="special tokens changed"):
        check_saved(tmp_path, tokenizer, TEXTS)
    assert len(other) == 300


def test_the_self_test_passes_text_that_names_special_tokens(saved: Saved) -> None:
    folder = saved("wordpiece", "bert")
    text = "the cat [MASK] on the mat"
    check_saved(Path(folder), AutoTokenizer.from_pretrained(folder), [text])


# Unicode: byte-level BPE gives any text back; each family's rules and the options against them.


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
    normalizer = template_of(config).make({}).backend_tokenizer.normalizer
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
