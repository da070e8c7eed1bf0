"""The measures of tokenizers, by hand and through the command."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from plmctl.tokenization.quality import by_size, measure, overlap, segments, sizes_of, surface
from tests.conftest import Cli
from tests.tokenization.conftest import TEXTS

Saved = Callable[[str, str], str]


def word_piece(*tokens: str) -> Tokenizer:
    vocab = {token: number for number, token in enumerate(["[UNK]", *tokens])}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def test_figures_by_hand() -> None:
    tokenizer = word_piece("the", "cat", "##s", ".", "中", "x", "##x")
    # the cat ##s . | [UNK] [UNK] 中 | x ##x
    quality = measure(tokenizer, ["The cats.", "q国中", "xx"])
    assert (quality.vocabulary, quality.tokens, quality.characters) == (8, 9, 14)
    assert quality.bytes == 14 + 2 * 2
    assert quality.unknown == 2
    assert quality.unused == []
    latin, chinese = quality.scripts["latin"], quality.scripts["chinese"]
    assert (latin.words, latin.tokens, latin.whole) == (4, 6, 1)  # the; q is unknown
    assert (chinese.words, chinese.tokens, chinese.whole) == (2, 2, 1)
    figures = quality.metrics()
    assert figures["bytes per token"] == pytest.approx(18 / 9)
    assert figures["tokens per word"] == pytest.approx(8 / 6)
    assert figures["words that are one token, %"] == pytest.approx(100 * 2 / 6)
    assert figures["unknown characters, %"] == pytest.approx(100 * 2 / 14)
    assert measure(tokenizer, ["the x"]).unused == ["[UNK]", "cat", "##s", ".", "中", "##x"]
    assert set(quality.longest[:2]) == {"[UNK]", "cat"} or quality.longest[0] == "[UNK]"


def test_overlap_is_of_the_smaller_without_marks() -> None:
    one = measure(word_piece("the", "cat", "##s"), ["the"])
    other = measure(word_piece("s", "the", "dog", "##gs", "a"), ["the"])
    assert one.surfaces == {"[UNK]", "the", "cat", "s"}
    assert overlap(one, other) == overlap(other, one) == 3 / 4
    assert overlap(one, one) == 1


def test_no_text_is_no_error() -> None:
    quality = measure(word_piece("a"), [""])
    assert (quality.tokens, quality.scripts) == (0, {})
    assert quality.metrics()["bytes per token"] == 0


FAMILIES = [
    ("wordpiece", "bert"), ("byte_bpe", "gpt2"), ("byte_bpe", "roberta"), ("bpe", "gpt1"),
    ("unigram", "t5"), ("unigram", "albert"),
]  # fmt: skip


@pytest.mark.parametrize(("algorithm", "family"), FAMILIES)
def test_each_kind_of_tokenizer(saved: Saved, algorithm: str, family: str) -> None:
    tokenizer = Tokenizer.from_file(f"{saved(algorithm, family)}/tokenizer.json")
    quality = measure(tokenizer, TEXTS[:5])
    encoded = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS[:5]]
    assert quality.tokens == sum(map(len, encoded))
    assert sum(words.tokens for words in quality.scripts.values()) <= quality.tokens
    assert quality.scripts["latin"].words > quality.scripts["digits"].words > 0
    assert {"chinese", "arabic", "hebrew", "cyrillic"} <= set(quality.scripts)
    for text in [*TEXTS[:5], "", "e\u0301🙂 \x00 ﬁ"]:
        assert "".join(segments(tokenizer, text)) == text
    # More of the vocabulary, shorter texts; all of it, the tokenizer itself.
    sizes = [*sizes_of(tokenizer)[:-1], quality.vocabulary]
    curve = by_size(tokenizer, TEXTS[:5], [sizes[0] // 2, *sizes])
    assert curve == sorted(curve)
    assert curve[-1] == pytest.approx(quality.metrics()["bytes per token"])
    assert not any(text.startswith(("##", "\u2581", "Ġ")) for text in quality.surfaces)


def test_surfaces(saved: Saved) -> None:
    gpt2 = Tokenizer.from_file(f"{saved('byte_bpe', 'gpt2')}/tokenizer.json")
    assert surface("Ġcat", gpt2) == "cat"
    gpt1 = Tokenizer.from_file(f"{saved('bpe', 'gpt1')}/tokenizer.json")
    assert surface("cat</w>", gpt1) == "cat"


def test_the_command(saved: Saved, cli: Cli, tmp_path: Path) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "pages" / "out.html"
    text.write_text("\n".join(["<script> & co, as plain text in a line that is shown", *TEXTS]))
    folders = [saved("wordpiece", "bert"), saved("byte_bpe", "gpt2"), saved("unigram", "t5")]
    code, printed, err = cli("compare-tokenizers", *folders, "--text", str(text), "--out", str(out))
    assert code == 0, err
    for words in ("bytes per token", "latin", "longest tokens", "% of the smaller", "|"):
        assert words in printed
    page = out.read_text(encoding="utf-8")
    for words in ("Compression against vocabulary size", 'class="token t1"', "&lt;"):
        assert words in page
    assert "<script" not in page
    code, printed, _ = cli("compare-tokenizers", *folders[:1], "--text", str(text), "--json")
    document = json.loads(printed)
    assert code == 0
    assert document["overlap"] == [[1.0]]


def test_what_it_refuses(saved: Saved, cli: Cli, tmp_path: Path) -> None:
    folder = saved("wordpiece", "bert")
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n")
    code, _, err = cli("compare-tokenizers", folder)
    assert (code, "--text FILE" in err) == (3, True)  # it was not trained by the command
    code, _, err = cli("compare-tokenizers", folder, "--text", str(empty))
    assert (code, "no text in" in err) == (3, True)
    code, _, err = cli("compare-tokenizers", folder, str(tmp_path), "--text", str(empty))
    assert (code, "no tokenizer.json here" in err) == (2, True)


def test_the_tokenizer_of_a_model_folder(saved: Saved, cli: Cli, tmp_path: Path) -> None:
    folder = shutil.copytree(saved("wordpiece", "bert"), tmp_path / "model")
    (folder / "config.json").write_text("{}")
    (tmp_path / "text.txt").write_text("the war is over .\n" * 20)
    code, _, err = cli("compare-tokenizers", str(folder))
    assert code == 2
    assert f"plmctl eval CONFIG model={folder}" in err
    code, out, err = cli("compare-tokenizers", str(folder), "--text", str(tmp_path / "text.txt"))
    assert (code, "bytes per token" in out) == (0, True), err
