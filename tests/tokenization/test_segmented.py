"""Segmented text (`data.words: marked`): the ids of the raw text, and the words of the marks."""

import json
import tempfile
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers.pre_tokenizers import ByteLevel

from plmctl.config.sections import DataConfig
from plmctl.config.tokenizer import TokenizerDataConfig
from plmctl.corpus.build import Stores, build_stores
from plmctl.corpus.reading import documents
from plmctl.corpus.source import resolve
from plmctl.corpus.store import TokenStore
from plmctl.corpus.subsample import subsample_bytes
from plmctl.errors import ConfigError, DataError
from plmctl.tokenization.encode import Encoder
from plmctl.tokenization.train import train
from plmctl.tokenization.words import check_mark
from tests.tokenization.conftest import TEXTS, config_of, quiet

Saved = Callable[[str, str], str]
Words = list[str]

CHINESE = ["中国", "人民", "站", "起来", "了", "。", "北京", "abc", "2024", "年"]
KHMER = ["ខ្ញុំ", "ស្រឡាញ់", "ភាសា", "ខ្មែរ", "។"]
MARK = "\u2581"


def store_of(folder: Path, encoder: Encoder, rows: list[object], **settings: object) -> TokenStore:
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
    words = CHINESE[:-1]  # the tokenizer does not know the last one
    raw = "".join(words)
    assert encoder.fingerprint != Encoder(folder).fingerprint
    for text in (MARK.join(words), words):
        store = store_of(tmp_path, encoder, [text], words="marked")
        assert content(store) == content(store_of(tmp_path, Encoder(folder), [raw]))
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
    word = st.sampled_from(
        [*CHINESE, *KHMER, " ", "\n", "The", " cat", "!", "é", "e\u0301", "👍🏽"]
    )
    texts = st.lists(st.lists(word, min_size=1, max_size=8), min_size=1, max_size=3)

    @settings(max_examples=12, deadline=None)
    @given(texts)
    @example([CHINESE, KHMER])
    def check(texts: list[Words]) -> None:
        texts = [*texts, CHINESE]
        raw = content(store_of(tmp_path, plain, ["".join(words) for words in texts]))
        by_mark = store_of(tmp_path, marked, [MARK.join(words) for words in texts], words="marked")
        by_list = store_of(tmp_path, marked, list(texts), words="marked")
        letters = store_of(tmp_path, marked, [list("".join(t)) for t in texts], words="marked")
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
        store = store_of(tmp_path, encoder, [words], words="marked")
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
        store = store_of(tmp_path, encoder, [text], words="marked", sentences="none")
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
    store = store_of(
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
        store_of(tmp_path, encoder, rows, **settings)
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
