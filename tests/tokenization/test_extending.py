"""A tokenizer that is extended: old ids stay, new text takes fewer tokens."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoTokenizer

from plmctl.errors import ConfigError
from plmctl.run.configs import TokenizerConfig
from plmctl.tokenization.check import check_saved
from plmctl.tokenization.encode import Encoder
from tests.conftest import Cli
from tests.tokenization.conftest import TEXTS, config_of, random_lines, train

Saved = Callable[[str, str], str]
# A domain with words of its own, and letters that were not seen before.
DOMAIN = [*random_lines(60), *["thrombocytes Ωμέγα thrombocytosis Ωμέγα thrombocytic"] * 20]
FAMILIES = [
    ("wordpiece", "bert"), ("byte_bpe", "gpt2"), ("byte_bpe", "roberta"), ("bpe", "gpt1"),
    ("unigram", "t5"), ("unigram", "albert"),
]  # fmt: skip


def extended(folder: str, algorithm: str, family: str, size: int) -> Any:
    config = config_of(algorithm, family, extend=folder, vocab_size=size)
    return train(config, DOMAIN)


@pytest.mark.parametrize(("algorithm", "family"), FAMILIES)
def test_old_ids_stay(saved: Saved, tmp_path: Path, algorithm: str, family: str) -> None:
    folder = saved(algorithm, family)
    old = AutoTokenizer.from_pretrained(folder)
    size = len(old) + 120
    trained = extended(folder, algorithm, family, size)
    assert trained.size == size
    trained.tokenizer.save_pretrained(tmp_path)
    check_saved(tmp_path, trained.tokenizer, [*TEXTS[:5], *DOMAIN[-30:]])
    new = AutoTokenizer.from_pretrained(tmp_path)
    assert type(new) is type(old)
    vocab = new.get_vocab()
    assert {token: vocab[token] for token in old.get_vocab()} == old.get_vocab()
    assert sorted(vocab.values()) == list(range(size))
    assert new.special_tokens_map == old.special_tokens_map
    assert new.all_special_ids == old.all_special_ids
    assert new.model_max_length == old.model_max_length
    # The template is the same, and so is text in which nothing new is.
    assert new("中国的首都 2024", "123")["input_ids"] == old("中国的首都 2024", "123")["input_ids"]
    text = "thrombocytes Ωμέγα"
    assert len(new.tokenize(text)) < len(old.tokenize(text))
    assert new.unk_token_id not in new(text, add_special_tokens=False)["input_ids"]
    before = sum(map(len, old(DOMAIN)["input_ids"]))
    assert sum(map(len, new(DOMAIN)["input_ids"])) < 0.8 * before
    assert Encoder(str(tmp_path)).vocab_size == size
    again = extended(folder, algorithm, family, size).tokenizer
    assert again.backend_tokenizer.to_str() == trained.tokenizer.backend_tokenizer.to_str()


def test_sentinels_keep_their_ids(saved: Saved) -> None:
    old = AutoTokenizer.from_pretrained(saved("unigram", "t5"))
    new = extended(saved("unigram", "t5"), "unigram", "t5", len(old) + 50).tokenizer
    for token in ("<extra_id_0>", "<extra_id_99>"):
        assert new.convert_tokens_to_ids(token) == old.convert_tokens_to_ids(token)
        assert new.tokenize(f"the {token}")[-1] == token


def test_an_extension_can_be_extended(saved: Saved, tmp_path: Path) -> None:
    folder = saved("byte_bpe", "gpt2")
    old = AutoTokenizer.from_pretrained(folder)
    first = extended(folder, "byte_bpe", "gpt2", len(old) + 20).tokenizer
    first.save_pretrained(tmp_path)
    both = extended(str(tmp_path), "byte_bpe", "gpt2", len(old) + 40).tokenizer
    once = extended(folder, "byte_bpe", "gpt2", len(old) + 40).tokenizer
    # Merges are learned one after the other, so twice twenty are once forty.
    assert both.get_vocab() == once.get_vocab()
    assert both.convert_tokens_to_ids("<|endoftext|>") == len(old) - 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"vocab_size": 100}, "ids already"),
        ({"algorithm": "byte_bpe", "family": "gpt2"}, "is wordpiece, not byte_bpe"),
    ],
)
def test_what_it_refuses(saved: Saved, settings: dict[str, Any], words: str) -> None:
    values = {"algorithm": "wordpiece", "family": "bert", "vocab_size": 500, **settings}
    config = config_of(**values, extend=saved("wordpiece", "bert"))
    with pytest.raises(ConfigError, match=words):
        train(config, DOMAIN)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no tokenizer.json here"):
        train(config_of("wordpiece", "bert", extend=str(tmp_path)), DOMAIN)


def test_rules_are_those_of_the_old() -> None:
    values = config_of("wordpiece", "bert").model_dump()
    for key, value, empty in (
        ("lowercase", False, "lowercase=null"),
        ("special_tokens", ["[X]"], r"special_tokens=\[\]"),
        ("max_length", 64, "max_length=null"),
    ):
        with pytest.raises(ValueError, match=f"{key} cannot change in a tokenizer.*{empty}"):
            TokenizerConfig.model_validate(values | {"extend": "old", key: value})


@pytest.mark.parametrize(
    ("family", "key", "value", "needed"),
    [
        ("bert", "sentinels", 4, "family t5"),
        ("bert", "pretokenized", True, "family elmo"),
        ("gpt2", "max_word_length", 200, "algorithm wordpiece"),
    ],
)
def test_an_option_of_another_family_is_refused(
    family: str, key: str, value: object, needed: str
) -> None:
    algorithm = "wordpiece" if family == "bert" else "byte_bpe"
    values = config_of(algorithm, family).model_dump()
    with pytest.raises(ValueError, match=f"{key} is only supported with {needed}"):
        TokenizerConfig.model_validate(values | {key: value})
    TokenizerConfig.model_validate(values)  # its default is no mistake


def test_the_command(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(saved("wordpiece", "bert"), "old")
    Path("text.txt").write_text("\n".join(DOMAIN), encoding="utf-8")
    size = len(AutoTokenizer.from_pretrained("old")) + 30
    config = config_of("wordpiece", "bert", vocab_size=size).model_dump(mode="json")
    Path("tok.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    code, out, _ = cli("train-tokenizer", "tok.yaml", "--from", "old")
    assert code == 0
    assert f"{size:,}" in out
    assert len(AutoTokenizer.from_pretrained("tok")) == size
