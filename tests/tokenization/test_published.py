"""Published vocabularies in our templates, held to the rules of the original code, written plainly.

The oracles follow google-research/bert's tokenization.py, openai/gpt-2's encoder.py, and Viterbi's
way through a Unigram model, a word at a time.
"""

import json
import struct
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from plmctl.tokenization.encode import Encoder
from plmctl.tokenization.templates import make_tokenizer
from tests.tokenization.conftest import config_of

COUNTS = [1_000, pytest.param(10_000, marks=pytest.mark.sweep)]
# What T5's rule takes for spaces besides those that Unicode's normal form has.
SPACES = dict.fromkeys([0x1680, *range(0x200B, 0x2010), 0x2028, 0x2029, 0xFEFF, 0xFFFD], " ")
ODD = [
    "", " ", "\x00\x01a\tb\r\nc\x7f\ufffd", "naïve e\u0301\u0302 ﬁ", "שלום עולם, مرحبا!",
    "🙂\U0001f469\u200d\U0001f469\u200d\U0001f467", "ab\u200bc\u00add\ufeff",
    "I'LL we'll  don't   x",
    "北京ab京c ｶﾞ 한국어 ガ", "[MASK] <|endoftext|> </s> <pad>", "ÀÉÎ ß İı Ǆ", "a" * 90,
    "𝒳𠀀\U0010ffff", "\n\n \t x", "3.14, 1,000-2%$£", "x\u0085y\u2028z\u3000",
]  # fmt: skip


def lines(data: Path, corpus: str, count: int) -> list[str]:
    path = data / "corpora" / corpus / "train.txt"
    nonempty = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    return nonempty[:count]


def saved(tokenizer: Any, folder: Path) -> Callable[[list[str]], list[list[int]]]:
    """What a tokenizer makes of texts once it is saved, by the encoder of corpora."""
    tokenizer.save_pretrained(folder)
    encoder = Encoder(str(folder))
    return lambda texts: [ids.tolist() for ids, _ in encoder(texts)]


# BERT


def is_mark(c: str) -> bool:
    ascii_mark = c.isascii() and c.isprintable() and not c.isalnum() and c != " "
    return ascii_mark or unicodedata.category(c)[0] == "P"


def is_chinese(c: str) -> bool:
    code = ord(c)
    return (
        0x4E00 <= code <= 0x9FFF
        or 0x3400 <= code <= 0x4DBF
        or 0x20000 <= code <= 0x2CEAF
        or 0xF900 <= code <= 0xFAFF
        or 0x2F800 <= code <= 0x2FA1F
    )


def basic_words(text: str) -> Iterator[str]:
    clean = []
    for c in text:
        if c in "\t\n\r" or unicodedata.category(c) == "Zs":
            clean.append(" ")
        elif c not in "\0\ufffd" and unicodedata.category(c) not in ("Cc", "Cf"):
            clean.append(f" {c} " if is_chinese(c) else c)
    for word in "".join(clean).split():
        plain = unicodedata.normalize("NFD", word.lower())
        spaced = (f" {c} " if is_mark(c) else c for c in plain if unicodedata.category(c) != "Mn")
        yield from "".join(spaced).split()


def word_pieces(vocab: dict[str, int], longest: int) -> Callable[[str], list[int]]:
    @cache
    def pieces(word: str) -> list[int]:
        parts, start = [], 0
        while start < len(word) <= longest:
            mark = "##" if start else ""
            end = len(word)
            while end > start and mark + word[start:end] not in vocab:
                end -= 1
            if end == start:
                break
            parts.append(vocab[mark + word[start:end]])
            start = end
        return parts if start == len(word) else [vocab["[UNK]"]]

    return pieces


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("corpus", ["wikitext2", "zh_news"])
@pytest.mark.parametrize("longest", [100, 200])
def test_bert(corpus: str, longest: int, count: int, shared_data: Path, tmp_path: Path) -> None:
    listed = (
        (shared_data / "parity" / "bert_uncased" / "vocab.txt")
        .read_text(encoding="utf-8")
        .split("\n")
    )
    vocab = {token: number for number, token in enumerate(filter(None, listed))}
    assert len(vocab) == 30_522
    texts = [*lines(shared_data, corpus, count), *ODD, "supercalifragilistic" * 7, "x" * 201]
    config = config_of("wordpiece", "bert", vocab_size=30_522, max_word_length=longest)
    ids = saved(make_tokenizer(config, {"vocab": vocab}), tmp_path)(texts)
    pieces = word_pieces(vocab, longest)
    assert ids == [[n for word in basic_words(text) for n in pieces(word)] for text in texts]


# GPT-2


def byte_pairs(vocab: dict[str, int], merges: list[str]) -> Callable[[str], list[int]]:
    import regex

    rank = {tuple(merge.split(" ")): number for number, merge in enumerate(merges)}
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    letter = {byte: chr(byte) for byte in shown}
    letter |= {byte: chr(256 + number) for number, byte in enumerate(hidden)}
    words = regex.compile(
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    )

    @cache
    def ids(word: str) -> list[int]:
        row = [letter[byte] for byte in word.encode()]
        while len(row) > 1:
            best = min(zip(row, row[1:], strict=False), key=lambda p: rank.get(p, len(rank)))
            if best not in rank:
                break
            merged: list[str] = []
            place = 0
            while place < len(row):
                step = 2 if tuple(row[place : place + 2]) == best else 1
                merged.append("".join(row[place : place + step]))
                place += step
            row = merged
        return [vocab[token] for token in row]

    return lambda text: [n for word in words.findall(text) for n in ids(word)]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("corpus", ["wikitext2", "zh_news"])
def test_gpt2(corpus: str, count: int, shared_data: Path, tmp_path: Path) -> None:
    folder = shared_data / "parity" / "gpt2"
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    merges = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")[1:50_001]
    assert (len(vocab), len(merges)) == (50_257, 50_000)
    pairs = [tuple(merge.split(" ")) for merge in merges]
    config = config_of("byte_bpe", "gpt2", vocab_size=50_257)
    tokenizer = make_tokenizer(config, {"vocab": vocab, "merges": pairs})
    texts = [*lines(shared_data, corpus, count), *ODD]
    expected = byte_pairs(vocab, merges)
    assert saved(tokenizer, tmp_path)(texts) == [expected(text) for text in texts]
    assert tokenizer.convert_tokens_to_ids("<|endoftext|>") == 50_256


# T5


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of a message in the format of protocol buffers."""

    def varint(at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            value |= (data[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 128:
                return value, at

    at = 0
    while at < len(data):
        key, at = varint(at)
        size = {1: 8, 5: 4}.get(key & 7, 0)
        if key & 7 == 2:
            size, at = varint(at)
        if key & 7 == 0:
            value, at = varint(at)
            yield key >> 3, value
        else:
            yield key >> 3, data[at : at + size]
            at += size


def most_probable(scores: dict[str, float]) -> Callable[[str], list[str]]:
    unknown = min(scores.values()) - 10
    longest = max(map(len, scores))

    @cache
    def pieces(word: str) -> list[str]:
        best: list[tuple[float, list[str]]] = [(0.0, [])]
        for end in range(1, len(word) + 1):
            ways = []
            for start in range(max(0, end - longest), end):
                piece = word[start:end]
                if piece in scores or end - start == 1:
                    before, row = best[start]
                    ways.append((before + scores.get(piece, unknown), [*row, piece]))
            best.append(max(ways, key=lambda way: way[0]))
        row: list[str] = []
        for piece in best[-1][1]:  # unknown characters in a row are one
            name = piece if piece in scores else "<unk>"
            if name != "<unk>" or row[-1:] != ["<unk>"]:
                row.append(name)
        return row

    return pieces


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("corpus", ["botchan", "wikitext2", "zh_news"])
def test_t5(corpus: str, count: int, shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "parity" / "sentencepiece" / "test_model.model"
    message = [dict(fields(value)) for number, value in fields(path.read_bytes()) if number == 1]
    scores = {
        piece[1].decode(): struct.unpack("<f", piece[2])[0]
        for piece in message
        if piece.get(3, 1) == 1
    }
    assert len(scores) == 997
    first, last = ["<pad>", "</s>", "<unk>"], [f"<extra_id_{n}>" for n in reversed(range(100))]
    rows = [(token, 0.0) for token in first]
    rows += [*scores.items(), *((token, -1e4) for token in last)]
    config = config_of("unigram", "t5", vocab_size=len(rows))
    tokenizer = make_tokenizer(config, {"vocab": rows})
    number = {token: place for place, (token, _) in enumerate(rows)}
    if corpus == "botchan":
        texts = path.with_name("botchan.txt").read_text(encoding="utf-8").split("\n")[:count]
    else:
        texts = lines(shared_data, corpus, count)
    pieces = most_probable(scores)
    expected = [
        [
            number[piece]
            for word in unicodedata.normalize("NFKC", text.translate(SPACES)).split()
            for piece in pieces("\u2581" + word)
        ]
        for text in texts
    ]
    assert saved(tokenizer, tmp_path)(texts) == expected
    assert sum(map(len, expected)) > 10_000
