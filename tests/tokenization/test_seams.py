"""Cutting where no token can cross: the ids and word starts must be those of whole texts."""

import re
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from plmctl.characters import chinese
from plmctl.tokenization.encode import Encoder, encode_texts
from plmctl.tokenization.seams import (
    ByteSeams,
    PieceSeams,
    byte_seams,
    byte_table,
    merges_alone,
    piece_seams,
)
from plmctl.tokenization.units import WITHIN, unspaced
from tests.tokenization.conftest import config_of, quiet

Made = Callable[[Tokenizer], Encoder]
ALPHABET = pre_tokenizers.ByteLevel.alphabet()
# Characters that share first bytes and last bytes with one another, of several scripts.
HAN = "中丮乭亭国圂在坂一丁"
OTHERS = "かがきくアイー가각갈กขคງ々〇１２٣ใ"
AMONG = " \n\ta1Z,。“’'s\u3000\U00020000\u0301\u0e31\uff21\u0378\x00-é"
LINES = [
    "中国人民站起来了。中国的首都是北京，人民的生活很好。１９９８年１月３日，共１２人",
    "日本語のテキストはスペースなしでかかれます。カタカナー語も、々や〇もある。",
    "한국어 텍스트는 띄어쓰기가있지만없을수도있다 中국",
    "ประเทศไทยมีเมืองหลวงคือกรุงเทพมหานคร ລາວ",
    "Mixed English and 中文text2024年, naïve \U00020000字 don't",
]


def parts(text: str) -> list[bytes]:
    """Each stretch of two to eight bytes of a text that has more than one character's."""
    data = text.encode()
    return [data[a:b] for a in range(len(data)) for b in range(a + 2, min(a + 9, len(data)) + 1)]


def tokenizer_of(merged: list[bytes]) -> Tokenizer:
    """One that has these as tokens, each merged byte by byte from the left."""
    letters = {byte: _letter(byte) for byte in range(256)}
    vocab = {letter: number for number, letter in enumerate(sorted(ALPHABET))}
    merges = dict[tuple[str, str], None]()
    for token in merged:
        text = "".join(letters[byte] for byte in token)
        for end in range(1, len(text)):
            merges.setdefault((text[:end], text[end]))
            vocab.setdefault(text[: end + 1], len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def _letter(byte: int) -> str:
    """How byte-level BPE writes a byte: printable ones as they are, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return chr(byte if byte in printable else 0x100 + byte - sum(p < byte for p in printable))


def check_alike(
    encoder: Encoder, oracle: Tokenizer, texts: list[str], *, marks: bool = False
) -> None:
    oracle.encode_special_tokens = True
    for text, (ids, starts) in zip(texts, encoder(texts), strict=True):
        whole = encode_texts(oracle, [text], marks=marks, segmented=False)
        assert ids.tolist() == whole.ids.tolist(), text
        assert starts.tolist() == whole.starts.tolist(), text


@pytest.fixture(scope="module")
def encoder_of(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("seams")

    def make(tokenizer: Tokenizer) -> Encoder:
        tokenizer.save(str(folder / "tokenizer.json"))
        return Encoder(str(folder))

    return make


TEXT = st.text(st.sampled_from(HAN * 3 + OTHERS * 2 + AMONG), max_size=30)


@settings(deadline=None, max_examples=150)
@given(st.data(), st.lists(TEXT, max_size=4))
def test_tokens_that_hold_parts_of_characters(
    encoder_of: Made, data: st.DataObject, texts: list[str]
) -> None:
    """Merges of any stretch of bytes of the texts, in any order: far worse than is ever learned."""
    alphabet = sorted({part for text in texts for part in parts(text)}) or [b"ab"]
    merged = data.draw(st.lists(st.sampled_from(alphabet), max_size=12))
    tokenizer = tokenizer_of(merged)
    check_alike(encoder_of(tokenizer), tokenizer, texts)


@pytest.mark.parametrize(
    ("algorithm", "family", "size"),
    [
        *(("byte_bpe", "gpt2", size) for size in (300, 420, 900)),
        *(("unigram", "t5", size) for size in (250, 400, 800)),
    ],
)
def test_what_is_learnt_of_several_scripts(
    encoder_of: Made, algorithm: str, family: str, size: int
) -> None:
    from plmctl.tokenization.train import train

    config = config_of(algorithm, family, vocab_size=size)
    tokenizer = train(config, LINES * 3, quiet).tokenizer.backend_tokenizer
    encoder = encoder_of(tokenizer)
    anything = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("".join(LINES))))

    @settings(deadline=None, max_examples=150)
    @given(st.lists(anything, max_size=4))
    @example(LINES)
    @example(["中\x00", "\x00国", "", "中国", "国", "\uffff中国", "中\uffff国 \uffff"])
    def check(texts: list[str]) -> None:
        check_alike(encoder, tokenizer, texts, marks=family == "t5")

    check()


def crosses(tokens: list[bytes], left: bytes, right: bytes) -> bool:
    """Whether a token has the boundary between two characters: the rule in plain words.

    A token may begin within the left one or before it, and end within the right one or after it.
    """
    for token in tokens:
        for at in range(1, len(token)):
            before, after = token[:at], token[at:]
            ends_alike = before.endswith(left) or left.endswith(before)
            begins_alike = after.startswith(right) or right.startswith(after)
            if ends_alike and begins_alike:
                return True
    return False


def plainly_between(tokens: list[bytes], text: str) -> tuple[list[bool], list[bool]]:
    """What ``ByteSeams.between`` gives, one pair of characters after the other."""
    cuts, inner = [], []
    for left, right in pairwise(text):
        sorts = [sort_of(left), sort_of(right)]
        cut = all(sorts) and not crosses(tokens, left.encode(), right.encode())
        han = chinese(np.array([ord(left), ord(right)], dtype=np.uint32))
        cuts.append(cut)
        inner.append(cut and sorts[0] == sorts[1] and not han.any())
    return cuts, inner


@cache
def sort_of(character: str) -> str:
    """L or N for a letter or a number of a script without spaces; empty for all others."""
    return next((sort for sort, inside in patterns().items() if inside.match(character)), "")


@cache
def patterns() -> dict[str, re.Pattern[str]]:
    return {"L": re.compile(f"[{unspaced('L')}]"), "N": re.compile(f"[{unspaced('N')}]")}


EMOJI = "😀👍🏽👩\u200d🚀❤\ufe0f"


@settings(deadline=None, max_examples=40)
@given(
    st.data(),
    st.one_of(
        st.text(max_size=20),
        st.text(st.sampled_from(HAN * 3 + OTHERS + AMONG + EMOJI), min_size=2, max_size=20),
    ),
)
def test_the_table_says_what_the_plain_rule_says(data: st.DataObject, text: str) -> None:
    stretches = sorted(set(parts(text))) or [b"ab"]
    merged = data.draw(st.lists(st.sampled_from(stretches), max_size=10))
    tokenizer = tokenizer_of(merged)
    seams = byte_seams(tokenizer)
    assert seams is not None
    tokens = [bytes(byte_table()[ord(c)] for c in token) for token in tokenizer.get_vocab()]
    cut, inner = seams.between(np.array(list(map(ord, text)), dtype=np.uint32))
    assert (cut.tolist(), inner.tolist()) == plainly_between(tokens, text)


def test_where_it_cuts() -> None:
    merged = ["中国".encode(), "ab国".encode(), "国".encode()[2:] + "在".encode()[:1]]
    seams = byte_seams(tokenizer_of(merged))
    assert seams is not None
    # What ends as 国 does stays with all that begin as 在 and 国 do; 中 begins otherwise.
    assert cut_by(seams, "中国国中") == "中国国|中"
    assert cut_by(seams, "国在圂在") == "国在|圂|在"
    # No word starts within what is not Chinese, but a number is a word of its own.
    assert [cut_by(seams, text) for text in ("かき", "か中", "か１２")] == [
        "か~き",
        "か|中",
        "か|１~２",
    ]
    assert cut_by(seams, "a中b ใ“กิ") == "a中b ใ“กิ"


def cut_by(seams: ByteSeams | PieceSeams, text: str) -> str:
    """The text with | where it can be cut, or ~ if no word starts there."""
    cut, inner = seams.between(np.array(list(map(ord, text)), dtype=np.uint32))
    marks = [
        "~" if within else "|" if free else "" for free, within in zip(cut, inner, strict=True)
    ]
    return "".join(letter + mark for letter, mark in zip(text, [*marks, ""], strict=True))


def test_merges_that_cannot_be_foreseen() -> None:
    vocab = {letter: number for number, letter in enumerate(sorted(ALPHABET))}
    assert byte_seams(Tokenizer(models.BPE(vocab, []))) is not None
    for settings_of in (
        {"dropout": 0.1}, {"ignore_merges": True}, {"continuing_subword_prefix": "##"},
        {"end_of_word_suffix": "</w>"},
    ):  # fmt: skip
        assert byte_seams(Tokenizer(models.BPE(vocab, [], **settings_of))) is None
    # Bytes that are no tokens are left out, so that those beside them can merge.
    assert byte_seams(Tokenizer(models.BPE({"a": 0}, []))) is None
    assert byte_seams(Tokenizer(models.WordLevel(vocab, "a"))) is None


def test_words_that_are_tokens_without_their_merges(encoder_of: Made) -> None:
    # "ab" is a token that no merge gives: with other words beside it, it would not be found.
    vocab = {letter: number for number, letter in enumerate(sorted(ALPHABET))} | {"ab": 256}
    tokenizer = Tokenizer(models.BPE(vocab, [], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    check_alike(encoder_of(tokenizer), tokenizer, ["ab abc ab", "中国ab", "a b ab"])
    assert not merges_alone(tokenizer)


def test_a_table_that_would_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plmctl.tokenization.seams._LARGEST", 8)
    assert cut_by(ByteSeams([*ALPHABET, "ä¸ŃåĽ½"]), "中国人") == "中国人"


def test_special_tokens_stay_text(encoder_of: Made) -> None:
    tokenizer = tokenizer_of(["中国".encode()])
    tokenizer.add_special_tokens([AddedToken("国人", special=True)])
    check_alike(encoder_of(tokenizer), tokenizer, ["中国人国人", "国人"])


# --- Unigram ---


BESIDE = (
    HAN * 3 + "かがアー々〇각ก，。、…“①㎏ﬁΣＡ１ﾌﾟ" + " a1Z,.`'-▁\u3000\u200b\u0301\ufb01\u1100\u1161"
)
SCORES = (-1.0, -1.5, -2.0, -2.5, -3.0, -1e-7, -1.0000001)  # so that many sums are equal, or nearly


def unigram_of(family: str, pieces: dict[str, float]) -> Tokenizer:
    """A family's tokenizer with these pieces."""
    from plmctl.tokenization.templates import make_tokenizer, special_tokens

    config = config_of("unigram", family)
    first, last = special_tokens(config)
    special = [(token, -50.0) for token in first], [(token, -50.0) for token in last]
    vocab = [*special[0], *pieces.items(), *special[1]]
    return make_tokenizer(config, {"vocab": vocab}).backend_tokenizer


@pytest.mark.parametrize("family", ["t5", "albert"])
def test_pieces_of_any_texts(encoder_of: Made, family: str) -> None:
    """Pieces that overlap in all ways, many of them equally probable, and unknown characters."""

    @settings(deadline=None, max_examples=150)
    @given(st.data(), st.lists(st.text(st.sampled_from(BESIDE), max_size=24), max_size=4))
    @example(None, ["中国人民。ab", "``中''国", "ΑΣ中 國①㎏…中", "中\u200b国", "が中", "\u1100中"])
    def check(data: st.DataObject | None, texts: list[str]) -> None:
        whole = "".join(texts)
        normalizer = unigram_of(family, {"a": -1.0}).normalizer
        read = "\u2581".join(normalizer.normalize_str(text) for text in texts).replace(
            " ", "\u2581"
        )
        letters = dict.fromkeys(sorted(read), -3.0)
        pieces = letters | {"国人": -4.0}
        if data is not None and read:
            stretches = sorted({read[a:b] for a in range(len(read)) for b in range(a + 2, a + 5)})
            for piece in data.draw(st.lists(st.sampled_from([*stretches, *letters]), max_size=20)):
                pieces[piece] = data.draw(st.sampled_from(SCORES))
            for unknown in data.draw(st.sets(st.sampled_from([*letters]), max_size=3)):
                pieces.pop(unknown)
        tokenizer = unigram_of(family, pieces or {"a": -1.0})
        encoder = encoder_of(tokenizer)
        check_alike(encoder, tokenizer, [*texts, whole], marks=True)
        assert data is not None or any(part[0] == WITHIN for part in encoder._table.numbers)

    check()


def test_where_it_cuts_between_pieces() -> None:
    letters = dict.fromkeys("中国人民か，,．.123\u2581", -5.0)
    seams = piece_seams(unigram_of("t5", letters | {"中国": -3.0, "国人民": -4.0, ",中": -4.0}))
    assert seams is not None
    assert cut_by(seams, "中国人民国中") == "中国人民|国|中"
    # As the model sees them: the wide comma is the plain one, and １ is 1.
    assert cut_by(seams, "国，中人") == "国|，中|人"
    assert cut_by(seams, "人１２か") == "人|１２か"
    # Not beside what is unknown, a space, or the mark of one.
    assert cut_by(seams, "人在 人▁人") == "人在 人▁人"


def test_of_two_equal_ways_the_whole_text_decides(encoder_of: Made) -> None:
    pieces = dict.fromkeys("中国人民\u2581", -3.0) | {"中国": -4.0, "国人": -4.0}
    tokenizer = unigram_of("t5", pieces)
    seams = piece_seams(tokenizer)
    assert seams is not None
    (ids, starts, sizes), sure = seams.encode(["中国人", "中国", "民", "民在在"], marked=False)
    assert sure.tolist() == [False, True, True, True]  # 中国 and 人, or 中 and 国人
    assert sizes.tolist() == [2, 1, 1, 2]
    assert ids[3:].tolist() == tokenizer.encode("民民在在", add_special_tokens=False).ids[1:]
    assert starts.all()
    encoder = encoder_of(tokenizer)
    check_alike(encoder, tokenizer, ["中国 人 民 中"], marks=True)  # words that are not cut, first
    texts = ["民中国人民", "民中国民", "中国人"]
    check_alike(encoder, tokenizer, texts, marks=True)
    sure, number = encoder._table._sure, encoder._table.numbers
    parts = f"{WITHIN}中国人", "民", f"{WITHIN}中国"
    assert [sure[number[part]] for part in parts] == [-1, 1, 1]


def test_models_whose_pieces_cannot_be_foreseen() -> None:
    import json

    from tokenizers import Regex, normalizers

    tokenizer = unigram_of("t5", {"a": -1.0})
    assert piece_seams(tokenizer) is not None
    settings_of = json.loads(tokenizer.to_str())
    settings_of["model"]["byte_fallback"] = True
    assert piece_seams(Tokenizer.from_str(json.dumps(settings_of))) is None
    tokenizer.normalizer = normalizers.Replace(Regex("中+"), "中")
    assert piece_seams(tokenizer) is None
    tokenizer.normalizer = None
    assert piece_seams(tokenizer) is not None
    assert piece_seams(tokenizer_of([])) is None


# --- Real text ---


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "family"), [("byte_bpe", "gpt2"), ("unigram", "t5")])
def test_news(encoder_of: Made, shared_data: Path, algorithm: str, family: str) -> None:
    from plmctl.tokenization.train import train

    news = (shared_data / "corpora/zh_news/train.txt").read_text(encoding="utf-8")
    lines = [line for line in news.split("\n") if line][:4000]
    config = config_of(algorithm, family, vocab_size=6000)
    tokenizer = train(config, lines, quiet).tokenizer.backend_tokenizer
    encoder, marks = encoder_of(tokenizer), family == "t5"
    check_alike(encoder, tokenizer, lines, marks=marks)
    assert encoder._table.numbers  # not given whole
