"""Vocabularies of whole words: ELMo's."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from plmctl.tokenization.check import check_saved
from plmctl.tokenization.encode import Encoder
from plmctl.tokenization.load import Vocab
from tests.tokenization.conftest import config_of, train

TEXT = ["The cat saw the dog .", "the cat , the cat", "U.S. dogs 我们 saw cats"]


def learned(folder: Path, **settings: object) -> Vocab:
    config = config_of("word", "elmo", min_frequency=1, **settings)
    tokenizer = train(config, TEXT).tokenizer
    tokenizer.save_pretrained(folder)
    check_saved(folder, tokenizer, TEXT)
    return Vocab.from_folder(str(folder))


def test_words_by_frequency_after_the_marks(tmp_path: Path) -> None:
    vocab = learned(tmp_path, vocab_size=100)
    assert vocab.words is not None
    # Three times each, by code points; then the one that is there twice.
    assert vocab.words[:7] == ("<S>", "</S>", "<UNK>", ".", "cat", "the", "saw")
    assert set(vocab.words[3:]) == {
        "the", "cat", "saw", "The", "dog", "dogs", "cats", ".", ",", "U", "S", "我", "们",
    }  # fmt: skip
    assert (vocab.bos, vocab.eos, vocab.unk, vocab.pad) == (0, 1, 2, None)
    assert vocab.size == len(vocab.words)


def test_pretokenized_text_is_cut_at_spaces_alone(tmp_path: Path) -> None:
    vocab = learned(tmp_path, vocab_size=100, pretokenized=True)
    assert vocab.words is not None
    assert {"U.S.", "我们", "dogs"} <= set(vocab.words)
    ids = Encoder(str(tmp_path))(["the U.S. zebra"])[0][0]
    assert [vocab.words[number] for number in ids] == ["the", "U.S.", "<UNK>"]


def test_rare_words_are_left_out(tmp_path: Path) -> None:
    config = config_of("word", "elmo", min_frequency=2, vocab_size=100)
    trained = train(config, TEXT)
    trained.tokenizer.save_pretrained(tmp_path)
    assert Vocab.from_folder(str(tmp_path)).words == (
        "<S>", "</S>", "<UNK>", ".", "cat", "the", "saw",
    )  # fmt: skip


@pytest.mark.parametrize("pretokenized", [False, True])
def test_the_store_has_the_ids_of_the_tokenizer(tmp_path: Path, pretokenized: bool) -> None:
    learned(tmp_path, vocab_size=100, pretokenized=pretokenized)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for text, (ids, starts) in zip(TEXT, Encoder(str(tmp_path))(TEXT), strict=True):
        assert ids.tolist() == tokenizer(text)["input_ids"]
        assert starts.all()


def test_other_tokenizers_have_no_words(tmp_path: Path) -> None:
    config = config_of("wordpiece", "bert", vocab_size=120)
    train(config, TEXT).tokenizer.save_pretrained(tmp_path)
    assert Vocab.from_folder(str(tmp_path)).words is None
