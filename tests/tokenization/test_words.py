"""Where words start, for each kind of tokenizer: what whole-word masking goes by."""

import pickle
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from plmctl.config.sections import MaskingConfig
from plmctl.corpus.store import TokenStore
from plmctl.errors import ConfigError
from plmctl.run.preflight import check_words
from plmctl.tokenization.encode import Encoder
from plmctl.tokenization.words import albert_starts
from tests.tokenization.conftest import TEXTS, config_of, quiet

Saved = Callable[[str, str], str]
ENGLISH = "The cats' flatness (1999) isn't well-known: naïve résumé."
CHINESE = "中国人民站起来了。北京abc 2024年"


@pytest.fixture(scope="module")
def unigram(tmp_path_factory: pytest.TempPathFactory) -> str:
    """ALBERT's kind: pieces of a SentencePiece model, with a mark for the space before a word."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.UnigramTrainer(
        vocab_size=240, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator([*TEXTS, ENGLISH, CHINESE], trainer)
    folder = tmp_path_factory.mktemp("unigram")
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder)


def words_of(folder: str, text: str, words: str = "pretokenizer") -> list[str]:
    """The words of a text, each the characters of the text from its first token to the next's."""
    encoder = Encoder(folder, words)
    [(ids, starts)] = encoder([text])
    oracle = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    encoding = oracle.encode(text, add_special_tokens=False)
    assert encoding.ids == ids.tolist()
    begins = [offset[0] for offset, start in zip(encoding.offsets, starts, strict=True) if start]
    return [text[a:b].strip() for a, b in zip(begins, [*begins[1:], len(text)], strict=True)]


REST = ["well", "-", "known", ":", "naïve", "résumé", "."]
BERT_WORDS = ["The", "cats", "'", "flatness", "(", "1999", ")", "isn", "'", "t", *REST]
GPT2_WORDS = ["The", "cats", "'", "flatness", "(", "1999", ")", "isn", "'t", *REST]


def test_wordpiece(saved: Saved) -> None:
    assert words_of(saved("wordpiece", "bert"), ENGLISH) == BERT_WORDS


def test_byte_level_bpe(saved: Saved) -> None:
    assert words_of(saved("byte_bpe", "gpt2"), ENGLISH) == GPT2_WORDS


def test_unigram_has_marks_as_words(unigram: str) -> None:
    """Its pre-tokenizer cuts at spaces only: without more, `(1999)` would be one word."""
    assert words_of(unigram, ENGLISH) == BERT_WORDS


def test_chinese_characters_are_words(saved: Saved, unigram: str) -> None:
    characters = [*"中国人民站起来了。北京", "abc", "2024", "年"]
    assert words_of(saved("wordpiece", "bert"), CHINESE) == characters
    # The others have tokens of several characters, which nothing can divide; here they have none.
    for folder in (saved("byte_bpe", "gpt2"), unigram):
        assert words_of(folder, "京北 民人国，来起了") == [*"京北民人国，来起了"]


def test_chinese_words_by_jieba(saved: Saved, unigram: str) -> None:
    jieba = pytest.importorskip("jieba")
    words = ["中国", "人民", "站", "起来", "了", "。", "北京", "abc", "2024", "年"]
    assert words_of(saved("wordpiece", "bert"), CHINESE, "jieba") == words
    for folder in (saved("byte_bpe", "gpt2"), unigram):
        got = words_of(folder, "京人来国民起", "jieba")
        assert got == jieba.lcut("京人来国民起")
        assert len(got) < 6
    assert words_of(saved("wordpiece", "bert"), ENGLISH, "jieba") == BERT_WORDS


# What ALBERT's code takes for the inside of a word, said again as an expression: English letters
# and marks, but not a mark alone. Its list of marks has no apostrophe and none of < = >.
INSIDE = re.compile(r"(?![^a-zA-Z]$)[a-zA-Z!\"#$%&()*+,./:;?@\[\\\]^_`{|}~-]+")


def starts_as_published(pieces: list[str]) -> list[bool]:
    return [not INSIDE.fullmatch(piece) for piece in pieces]


def test_albert_s_word_starts_of_pieces() -> None:
    inside = ["s", "ing", "THE", "--", "),", "a.", "x-y", "z", "C"]
    begin = ["▁", "▁the", "▁9", "9", "1999", "'", "'s", ",", "-", "(", "<unk>", "<", ">", "="]
    begin += ["é", "café", "£", "€", "£5", "–", "中", "中国", "привет", "x²", "…", "▁中"]
    assert albert_starts(inside).tolist() == [False] * len(inside)
    assert albert_starts(begin).tolist() == [True] * len(begin)
    assert starts_as_published(inside + begin) == albert_starts(inside + begin).tolist()


def test_albert_s_words_in_text(saved: Saved) -> None:
    """Letters after a mark belong to it, and pieces of numbers and of Chinese are words."""
    folder = saved("unigram", "albert")
    words = ["The", "cat", "'s", "", "(mat", ")", ":", "it"]  # the space before ( is one as well
    assert words_of(folder, "The cat's (mat): it", "albert") == words
    texts = [*TEXTS[:5], ENGLISH, CHINESE, "", "£5, €3 and 1,999,000: x=y <b> “quoted” -- …"]
    encoder = pickle.loads(pickle.dumps(Encoder(folder, "albert")))
    oracle = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    for text, (ids, starts) in zip(texts, encoder(texts), strict=True):
        assert ids.tolist() == oracle.encode(text, add_special_tokens=False).ids
        pieces = [oracle.id_to_token(id_) for id_ in ids.tolist()]  # an unknown one is `<unk>`
        assert starts.tolist() == starts_as_published(pieces)
    for (ids, starts, _), alone in zip(
        encoder.with_places(texts, [[len(text) // 2] for text in texts]),
        encoder(texts),
        strict=True,
    ):
        assert np.array_equal(ids, alone[0])
        assert np.array_equal(starts, alone[1])
    assert encoder.fingerprint != Encoder(folder).fingerprint


def test_albert_s_words_of_real_english(shared_data: Path, tmp_path: Path) -> None:
    from plmctl.tokenization.train import train

    folder = shared_data / "corpora" / "wikitext2"
    with (folder / "train.txt").open(encoding="utf-8") as file:
        text = file.read(300_000).split("\n")
    tokenizer = train(config_of("unigram", "albert", vocab_size=2000), text, quiet).tokenizer
    tokenizer.save_pretrained(tmp_path)
    pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert albert_starts(pieces).tolist() == starts_as_published(pieces)
    # The original cuts pieces such as `9,` again, a number and a comma; vocabularies from here have
    # none, since pieces do not mix digits and marks.
    assert not [piece for piece in pieces if re.search(r"\d,$", piece)]
    lines = [
        line for line in (folder / "valid.txt").read_text(encoding="utf-8").split("\n") if line
    ]
    ids, starts = map(np.concatenate, zip(*Encoder(str(tmp_path), "albert")(lines), strict=True))
    expected = np.array(starts_as_published(tokenizer.convert_ids_to_tokens(ids.tolist())))
    assert np.array_equal(starts, expected)
    _, others = map(np.concatenate, zip(*Encoder(str(tmp_path))(lines), strict=True))
    assert 0.005 < (others != expected).mean() < 0.05  # why the rule is one of its own


def test_albert_s_rule_is_for_sentencepiece(saved: Saved) -> None:
    for algorithm, family in (("wordpiece", "bert"), ("byte_bpe", "gpt2")):
        with pytest.raises(ConfigError, match=r"data.words: albert, but .* not a SentencePiece"):
            Encoder(saved(algorithm, family), "albert")


def test_words_of_a_text_do_not_depend_on_its_neighbours(saved: Saved) -> None:
    pytest.importorskip("jieba")
    encoder = pickle.loads(pickle.dumps(Encoder(saved("wordpiece", "bert"), "jieba")))
    texts = [CHINESE, "", ENGLISH, "北京大学", "学生"]
    together = encoder(texts)
    for text, (ids, starts) in zip(texts, together, strict=True):
        [(alone, begins)] = encoder([text])
        assert np.array_equal(ids, alone)
        assert np.array_equal(starts, begins)


def test_the_segmenter_is_part_of_a_stores_identity(saved: Saved) -> None:
    pytest.importorskip("jieba")
    folder = saved("wordpiece", "bert")
    plain, segmented = Encoder(folder).fingerprint, Encoder(folder, "jieba").fingerprint
    assert segmented != plain
    assert "jieba-" in segmented


def test_without_jieba(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import PackageNotFoundError

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("plmctl.tokenization.words.version", missing)
    with pytest.raises(ConfigError, match=r"plmctl\[zh\]"):
        Encoder(saved("wordpiece", "bert"), "jieba")


def store_of(folder: str, texts: list[str], words: str = "pretokenizer") -> TokenStore:
    encoder = Encoder(folder, words)
    encoded = encoder(texts)
    starts = np.concatenate([starts for _, starts in encoded]).tolist()
    return TokenStore.from_lists([[ids.tolist() for ids, _ in encoded]], 1_000, starts)


def masking(unit: str, **fields: object) -> MaskingConfig:
    return MaskingConfig(name="mlm", unit=unit, **fields)


def test_single_characters_are_no_whole_words(saved: Saved) -> None:
    folder = saved("wordpiece", "bert")
    characters = store_of(folder, ["中国人民站起来了。"] * 50)
    with pytest.raises(ConfigError, match=r"objective.unit: word, but 100.0%") as refused:
        check_words(masking("word"), characters, 128)
    assert "data.words: jieba" in str(refused.value)
    check_words(masking("token"), characters, 128)
    check_words(masking("ngram"), characters, 128)  # runs of characters are something of their own
    pytest.importorskip("jieba")
    check_words(masking("word"), store_of(folder, ["中国人民站起来了。"] * 50, "jieba"), 128)


def test_text_without_spaces_is_no_word(saved: Saved) -> None:
    """Thai, of which this vocabulary has bytes only: a sentence is one pre-token."""
    thai = store_of(saved("byte_bpe", "gpt2"), ["ประเทศไทยมีเมืองหลวงคือกรุงเทพมหานคร"] * 50)
    for unit in ("word", "ngram"):
        with pytest.raises(ConfigError, match="more than 19 tokens.*never be masked"):
            check_words(masking(unit), thai, 128)
    check_words(masking("token"), thai, 128)


def test_words_as_they_should_be_are_accepted(saved: Saved, unigram: str) -> None:
    english = ["The catty mattress flattened; a statue's satin mate wasn't met."] * 6
    for folder in (saved("wordpiece", "bert"), saved("byte_bpe", "gpt2"), unigram):
        for unit in ("word", "ngram"):
            check_words(masking(unit), store_of(folder, english), 128)
