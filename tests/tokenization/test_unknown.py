"""What a tokenizer does not know of a text: counted, said and refused in one way."""

import unicodedata
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from plmctl.errors import DataError
from plmctl.tokenization.encode import Encoder
from plmctl.tokenization.lost import lost_letters
from plmctl.tokenization.units import plain_tokenizer
from plmctl.tokenization.unknown import Unknown, UnknownCounter, report_text, sampled
from tests.scripts_of_text import SCRIPTS
from tests.tokenization.conftest import config_of, template_of, train

KINDS = [
    ("wordpiece", "bert"),
    ("unigram", "t5"),
    ("unigram", "albert"),
    ("bpe", "gpt1"),
    ("byte_bpe", "gpt2"),
    ("byte_bpe", "roberta"),
]

Saved = Callable[[str, str], str]


def counter(folder: str) -> UnknownCounter:
    return UnknownCounter(plain_tokenizer(Tokenizer.from_file(f"{folder}/tokenizer.json")))


@pytest.mark.parametrize(("algorithm", "family"), KINDS)
@pytest.mark.parametrize("script", ["devanagari", *(
    pytest.param(name, marks=pytest.mark.sweep) for name in SCRIPTS if name != "devanagari"
)])  # fmt: skip
def test_text_of_every_script_is_known_or_told(
    algorithm: str, family: str, script: str, saved: Saved
) -> None:
    """A tokenizer of another script keeps every letter of a text, or says what it does not know."""
    folder, text = saved(algorithm, family), SCRIPTS[script]
    encoder = Encoder(folder)
    unknown = counter(folder).count([text])
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert unknown.characters >= sum(map(str.isalpha, text))
    assert (unknown.unknown > 0) == (encoder.unknown.id in ids)
    facts = Unknown.of_facts(encoder.unknown_of([text], np.array(ids)))
    assert (facts.characters, facts.unknown) == (unknown.characters, unknown.unknown)
    if algorithm == "byte_bpe":
        assert unknown.unknown == 0
        assert tokenizer.decode(ids).strip() == text
    # The rest is there after decoding, but for what the rules drop, which is told, too.
    elif unknown.share < 0.05:
        normalizer = tokenizer.normalizer
        assert "�" not in tokenizer.decode(ids)
        assert lost_letters(normalizer.normalize_str, [text]).report() or unknown.unknown == 0
    else:
        told = pytest.raises(DataError) if unknown.share >= 0.9 else nullcontext()
        with told:
            assert "such as" in str(unknown.report("the text", "tok"))


def test_the_share_is_of_characters_and_long_words_are_named(saved: Saved) -> None:
    count = counter(saved("wordpiece", "bert")).count
    assert count(["the cat sat", "the mat"]) == Unknown(15)
    assert count(["हिन्दी 12.5, 2024"]).share == 1
    some = count(["the cat हिन्दी sat on the mat and the cat sat on the mat"])
    assert (some.unknown, some.examples) == (6, ("हिन्दी",))
    line = str(some.report("the rows", "tok"))
    assert line.startswith("14.0 % of the characters of the rows are unknown to the tokenizer tok")
    assert "such as 'हिन्दी'" in line
    with pytest.raises(DataError, match="100.0 % of the characters of the text are unknown"):
        count(["हिन्दी भाषा"]).report("the text", "tok")
    with pytest.raises(DataError, match="longer than its max_word_length") as caught:
        count(["cat" * 50, "sat" * 40]).report("the text", "tok")
    assert "byte_bpe or unigram" in str(caught.value.hint)
    assert Unknown(100, 4, 0, ("x",)).report("the text", "tok") is None
    assert "UNK" in count(["[UNK] [MASK] a"]).examples  # names of special tokens are text


def test_estimates_and_sums_of_many_texts(saved: Saved) -> None:
    tool = counter(saved("wordpiece", "bert"))
    texts = ["the cat sat on the mat", "हिन्दी the cat", "the mat"] * 2000
    exact, about = tool.count(texts), tool.estimate(texts)
    assert about.characters == pytest.approx(exact.characters, rel=0.01)
    assert about.share == pytest.approx(exact.share, rel=0.1)
    assert tool.count(texts[:3]) + tool.count(texts[3:]) == exact
    assert sum(map(len, sampled(texts, 1000))) <= 2000
    assert sampled(["a" * 5000], 100) == ["a" * 100]


def test_a_prepared_text_is_reported(saved: Saved) -> None:
    said: list[str] = []
    facts = {"characters": 10, "unknown": 2, "long": 0, "examples": ["я"]}
    manifest = {"train": {"unknown": facts}, "valid": {}, "notes": ["a mark"]}
    report_text(manifest, "tok", said.append, "web")
    assert said[0] == "web: a mark"
    assert said[1].startswith("20.0 % of the characters of the text of web are unknown")
    report_text({"train": {}}, "tok", said.append)  # a store of an earlier version
    assert len(said) == 2


LOST = [
    ("bert", {}, "résumé café", "U+0301 (combining acute accent) 3 times", "strip_accents=false"),
    ("bert", {}, "पानी हिन्दी", "U+094D (devanagari sign virama)", "strip_accents=false"),
    (
        "bert",
        {"lowercase": False},
        "می\u200cخواهم",
        "U+200C (zero width non-joiner)",
        "joiners=true",
    ),
    ("t5", {}, "ශ්\u200dරී", "'ශ්\\u200dරී' becomes 'ශ් රී'", "set keep_joiners=true to keep them"),
    ("albert", {}, "ශ්\u200dරී ёж", "U+200D", "keep_joiners=true and strip_accents=false"),
    ("gpt1", {}, "ёжик", "U+0308", "strip_accents=false"),
]


@pytest.mark.parametrize(("family", "rules", "text", "what", "key"), LOST)
def test_what_the_rules_drop_is_said_and_can_be_kept(
    family: str, rules: dict[str, object], text: str, what: str, key: str
) -> None:
    algorithm = {"bert": "wordpiece", "gpt1": "bpe"}.get(family, "unigram")

    def normalizer(**more: object) -> Callable[[str], str]:
        config = config_of(algorithm, family, **{**rules, **more})
        normalize: Callable[[str], str] = (
            template_of(config).make({})
        ).backend_tokenizer.normalizer.normalize_str
        return normalize

    line = str(lost_letters(normalizer(), [text]).report())
    assert what in line
    assert key in line
    kept = lost_letters(normalizer(keep_joiners=True, strip_accents=False), [text])
    assert kept.report() is None
    assert kept.changed == 0


@pytest.mark.parametrize(
    ("algorithm", "family"), [*KINDS[:4], ("word", "elmo"), ("byte_bpe", "gpt2")]
)
def test_joiners_stay_within_words(algorithm: str, family: str, tmp_path: Path) -> None:
    words = ["ශ්\u200dරී", "ක්\u200dෂේත්\u200dරය", "می\u200cخواهم", "ab\u200b\x07c"]
    config = config_of(
        algorithm, family, keep_joiners=True, strip_accents=False, limit_alphabet=None
    )
    tokenizer = train(config, [" ".join(words)] * 20).tokenizer
    tokenizer.save_pretrained(tmp_path)
    encoder = Encoder(str(tmp_path))
    (encoded,) = encoder([" ".join(words[:3])])
    ids = tokenizer(" ".join(words[:3]), add_special_tokens=False)["input_ids"]
    assert encoded[0].tolist() == ids
    assert tokenizer.unk_token_id is None or tokenizer.unk_token_id not in ids
    text = unicodedata.normalize("NFC", tokenizer.decode(ids))  # ALBERT takes letters apart
    assert all(unicodedata.normalize("NFC", word) in text for word in words[:3])
    if family != "gpt2":
        assert "\x07" not in tokenizer.decode(tokenizer(words[3])["input_ids"])
