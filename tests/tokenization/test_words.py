"""Where words start, for each kind of tokenizer: what whole-word masking goes by."""

import json
import pickle
import re
import tempfile
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from tokenizers.pre_tokenizers import ByteLevel

from plmctl.config.sections import DataConfig
from plmctl.config.tokenizer import TokenizerDataConfig
from plmctl.corpus.build import Stores, build_stores
from plmctl.corpus.reading import documents
from plmctl.corpus.source import resolve
from plmctl.corpus.store import TokenStore
from plmctl.corpus.subsample import subsample_bytes
from plmctl.errors import ConfigError, DataError
from plmctl.objectives.mlm import Config, MaskedLM
from plmctl.tokenization.encode import Encoder
from plmctl.tokenization.train import train
from plmctl.tokenization.words import albert_starts, check_mark
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


def check_words(unit: str, store: TokenStore) -> None:
    MaskedLM(Config(unit=unit)).check_text(store, 128)


def test_single_characters_are_no_whole_words(saved: Saved) -> None:
    folder = saved("wordpiece", "bert")
    characters = store_of(folder, ["中国人民站起来了。"] * 50)
    with pytest.raises(ConfigError, match=r"objective.unit: word, but 100.0%") as refused:
        check_words("word", characters)
    assert "data.words: jieba" in str(refused.value)
    check_words("token", characters)
    check_words("ngram", characters)  # runs of characters are something of their own
    pytest.importorskip("jieba")
    check_words("word", store_of(folder, ["中国人民站起来了。"] * 50, "jieba"))


def test_text_without_spaces_is_no_word(saved: Saved) -> None:
    """Thai, of which this vocabulary has bytes only: a sentence is one pre-token."""
    thai = store_of(saved("byte_bpe", "gpt2"), ["ประเทศไทยมีเมืองหลวงคือกรุงเทพมหานคร"] * 50)
    for unit in ("word", "ngram"):
        with pytest.raises(ConfigError, match="more than 19 tokens.*never be masked"):
            check_words(unit, thai)
    check_words("token", thai)


def test_words_as_they_should_be_are_accepted(saved: Saved, unigram: str) -> None:
    english = ["The catty mattress flattened; a statue's satin mate wasn't met."] * 6
    for folder in (saved("wordpiece", "bert"), saved("byte_bpe", "gpt2"), unigram):
        for unit in ("word", "ngram"):
            check_words(unit, store_of(folder, english))


# Segmented text (`data.words: marked`): the ids of the raw text, and the words of the marks.


Words = list[str]
RAW = ["中国", "人民", "站", "起来", "了", "。", "北京", "abc", "2024", "年"]
KHMER = ["ខ្ញុំ", "ស្រឡាញ់", "ភាសា", "ខ្មែរ", "។"]
MARK = "\u2581"


def built(folder: Path, encoder: Encoder, rows: list[object], **settings: object) -> TokenStore:
    """The store of a jsonl file with these texts."""
    folder = Path(tempfile.mkdtemp(dir=folder))
    lines = "".join(json.dumps({"text": row}) + "\n" for row in rows)
    (folder / "a.jsonl").write_text(lines, encoding="utf-8")
    values = {"train": [str(folder / "a.jsonl")], "valid": None, **settings}
    stores: Stores = build_stores(
        DataConfig.model_validate(values),
        encoder,
        root=folder,
        processes=1,
        progress=lambda done, total: None,
        notice=print,
    )
    return TokenStore.open(stores.train)


def content(store: TokenStore) -> tuple[list[int], list[int], list[int]]:
    ids = store.tokens(np.arange(store.num_tokens)).tolist()
    return ids, store.sentences.tolist(), store.documents.tolist()


def starts_of(store: TokenStore) -> list[int]:
    return np.flatnonzero(store.word_starts(np.arange(store.num_tokens))).tolist()


def test_words_of_marked_chinese(saved: Saved, tmp_path: Path) -> None:
    folder = saved("wordpiece", "bert")
    encoder = Encoder(folder, "marked")
    words = RAW[:-1]  # the tokenizer does not know the last one
    raw = "".join(words)
    assert encoder.fingerprint != Encoder(folder).fingerprint
    for text in (MARK.join(words), words):
        store = built(tmp_path, encoder, [text], words="marked")
        assert content(store) == content(built(tmp_path, Encoder(folder), [raw]))
        tokens = [encoder._tokenizer.id_to_token(id_) or "" for id_ in content(store)[0]]
        groups = np.split(np.array(tokens, dtype=object), starts_of(store)[1:])
        assert ["".join(group).replace("##", "") for group in groups] == words


@pytest.mark.parametrize("family", ["bert", "gpt2", "albert"])
def test_the_ids_are_those_of_the_raw_text_however_it_is_segmented(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    monkeypatch.setattr("plmctl.corpus.build._BATCH_CHARACTERS", 20)  # in several stretches too
    algorithm = {"bert": "wordpiece", "gpt2": "byte_bpe", "albert": "unigram"}[family]
    plain, marked = (
        Encoder(saved(algorithm, family), words) for words in ("pretokenizer", "marked")
    )
    word = st.sampled_from([*RAW, *KHMER, " ", "\n", "The", " cat", "!", "é", "e\u0301", "👍🏽"])
    texts = st.lists(st.lists(word, min_size=1, max_size=8), min_size=1, max_size=3)

    @settings(max_examples=12, deadline=None)
    @given(texts)
    @example([RAW, KHMER])
    def check(texts: list[Words]) -> None:
        texts = [*texts, RAW]
        raw = content(built(tmp_path, plain, ["".join(words) for words in texts]))
        by_mark = built(tmp_path, marked, [MARK.join(words) for words in texts], words="marked")
        by_list = built(tmp_path, marked, list(texts), words="marked")
        letters = built(tmp_path, marked, [list("".join(t)) for t in texts], words="marked")
        assert content(by_mark) == content(by_list) == content(letters) == raw
        assert starts_of(by_mark) == starts_of(by_list)
        assert set(starts_of(by_mark)) <= set(starts_of(letters))

    check()


def test_a_token_starts_a_word_if_it_begins_where_one_does(saved: Saved, tmp_path: Path) -> None:
    """Checked by bytes: tokens of byte-level BPE cut characters, and cross words."""
    folder = saved("byte_bpe", "gpt2")
    encoder = Encoder(folder, "marked")
    alphabet = sorted(ByteLevel.alphabet())
    names = encoder._tokenizer
    texts = [
        ["中国人", "民的", "生活", "很", "好"],
        ["中", "国", "人", "民"],
        KHMER,
        ["in", "a", "line", "。", "北京abc"],
    ]
    for words in texts:
        store = built(tmp_path, encoder, [words], words="marked")
        ids, _, _ = content(store)
        tokens = [names.id_to_token(id_) or "" for id_ in ids]
        assert set("".join(tokens)) <= set(alphabet)
        begins = [0, *accumulate(map(len, tokens))][:-1]  # one character of a token is a byte
        ends = {0, *accumulate(len(word.encode()) for word in words)}
        assert starts_of(store) == [n for n, begin in enumerate(begins) if begin in ends]


def test_spaces_belong_to_the_word_that_follows(saved: Saved, tmp_path: Path) -> None:
    encoder = Encoder(saved("byte_bpe", "gpt2"), "marked")
    # As jieba has it: a space is a word; as SentencePiece: a mark before each word.
    for text in (f"The{MARK} {MARK}cat{MARK}\n{MARK}sat", "▁The▁ cat▁\nsat", "The▁ cat\nsat"):
        store = built(tmp_path, encoder, [text], words="marked", sentences="none")
        ids, _, _ = content(store)
        groups = np.split(np.array(ids), starts_of(store)[1:])
        decoded = [encoder._tokenizer.decode(group.tolist()) for group in groups]
        assert decoded == ["The", " cat", "\nsat"]


def test_khmer_with_zero_width_spaces(saved: Saved, tmp_path: Path) -> None:
    folder = saved("byte_bpe", "gpt2")
    (tmp_path / "a.txt").write_text("\u200b".join(KHMER) + "\n", encoding="utf-8")
    config = DataConfig(
        train=(str(tmp_path / "a.txt"),), words="marked", word_mark="\u200b", valid=None
    )
    [document] = documents(resolve(config.train)[0], config)
    assert document.text == "".join(KHMER) + "\n"
    store = built(
        tmp_path,
        Encoder(folder, "marked"),
        ["\u200b".join(KHMER)],
        words="marked",
        word_mark="\u200b",
    )
    assert len(starts_of(store)) == len(KHMER)


def test_a_tokenizer_learns_without_the_marks(tmp_path: Path) -> None:
    marked = "\n".join(MARK.join(text) for text in TEXTS)
    (tmp_path / "marked.txt").write_text(marked, encoding="utf-8")
    (tmp_path / "raw.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    vocabularies = []
    for name, words in (("marked", "marked"), ("raw", "pretokenizer")):
        data = {"train": [str(tmp_path / f"{name}.txt")], "words": words}
        config = config_of("wordpiece", "bert", data=data)
        lines = subsample_bytes(config.data, 10**9, 0).lines(lambda done, total: None)
        vocabularies.append(train(config, lines, quiet).tokenizer.get_vocab())
    assert vocabularies[0] == vocabularies[1]


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        (["中国 人民"], {"words": "marked"}, r"no mark '▁' \(U\+2581\) and no list of words"),
        ([["中国", "人民"]], {}, "holds a list, not text"),
        ([["中国", 3]], {"words": "marked"}, "a list of something else than words"),
        ([["the", "cat", "sat"]], {"words": "marked"}, "no spaces between them: 'thecatsat'"),
    ],
)
def test_mistakes_in_segmented_text(
    saved: Saved, tmp_path: Path, rows: list[object], settings: dict[str, object], message: str
) -> None:
    encoder = Encoder(saved("wordpiece", "bert"), str(settings.get("words", "pretokenizer")))
    with pytest.raises(DataError, match=message) as caught:
        built(tmp_path, encoder, rows, **settings)
    if message.startswith("holds"):
        assert "`data.words: marked`" in caught.value.hint
    assert not [path for path in tmp_path.rglob("*") if path.name == "shards"]


def test_mistakes_in_the_config() -> None:
    with pytest.raises(ConfigError, match=r"'_' is in the special token '<extra_id_0>'"):
        check_mark("_", ["<pad>", "<extra_id_0>"])
    data = {"train": ["a.txt"], "words": "marked", "word_mark": "MASK"}
    with pytest.raises(ConfigError, match="data.word_mark"):
        train(config_of("wordpiece", "bert", data=data), TEXTS, quiet)
    with pytest.raises(ValidationError, match="only used with `words: marked`"):
        TokenizerDataConfig(train=("a.txt",), word_mark="|")
    with pytest.raises(ValidationError, match="without line ends"):
        TokenizerDataConfig(train=("a.txt",), words="marked", word_mark="\n")
