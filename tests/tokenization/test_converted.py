"""A SentencePiece file without a tokenizer.json: converted and compared, or refused."""

import json
import random
from pathlib import Path
from types import ModuleType

import pytest

from plmctl.errors import DataError, PlmError
from plmctl.tokenization import check
from plmctl.tokenization.encode import Encoder
from plmctl.tokenization.load import open_tokenizer

_PARTS = ("an", "na", "see", "es", "wood", "the", "gar", "den", "of", "be", "la", "do", "she", "in")
_DRAWN = random.Random(1)
TEXT = [
    " ".join("".join(_DRAWN.choices(_PARTS, k=_DRAWN.randint(1, 4))) for _ in range(8))
    for _ in range(300)
]


def folder(place: Path, library: ModuleType, kind: str, class_name: str) -> str:
    """A tokenizer of the library sentencepiece as XLM-R and Llama have theirs."""
    (place / "text.txt").write_text("\n".join(TEXT), encoding="utf-8")
    library.SentencePieceTrainer.train(
        input=str(place / "text.txt"),
        model_prefix=str(place / "sentencepiece.bpe"),
        vocab_size=150,
        model_type=kind,
        minloglevel=2,
        hard_vocab_limit=False,
    )
    config = {"tokenizer_class": class_name, "unk_token": "<unk>"}
    (place / "tokenizer_config.json").write_text(json.dumps(config))
    if class_name == "LlamaTokenizer":
        (place / "sentencepiece.bpe.model").rename(place / "tokenizer.model")
    return str(place)


def test_its_ids_are_those_of_the_library(tmp_path: Path) -> None:
    library = pytest.importorskip("sentencepiece", reason="needs sentencepiece")
    source = folder(tmp_path, library, "unigram", "XLMRobertaTokenizer")
    original = library.SentencePieceProcessor(model_file=f"{source}/sentencepiece.bpe.model")
    for text, (ids, _) in zip(TEXT, Encoder(source)(TEXT), strict=True):
        # fairseq's ids are one more: its <s>, <pad>, </s> and <unk> stand before the pieces.
        assert [id_ - 1 for id_ in ids] == original.encode(text)


def test_another_class_than_the_file_s_is_refused(tmp_path: Path) -> None:
    library = pytest.importorskip("sentencepiece", reason="needs sentencepiece")
    source = folder(tmp_path, library, "unigram", "LlamaTokenizer")
    with pytest.raises(DataError, match=r"LlamaTokenizer cuts .* and tokenizer.model into"):
        open_tokenizer(source)


def test_without_the_library_the_message_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sentencepiece.bpe.model").write_bytes(b"\n\x0e\n\x05<unk>")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "XLMRobertaTokenizer"}')
    monkeypatch.setattr(check, "find_spec", lambda name: None)
    with pytest.raises(PlmError, match="libraries sentencepiece and protobuf are needed"):
        open_tokenizer(str(tmp_path))
